"""A checkout as Compose sees it, with real boots in a small image instead of the built ones.

The image is the stand-in base with the folders, the user and the entry point of ours; code and
environment of this checkout are mounted into it. Compose file and prepare script are the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.containers.engine import IMAGE, PATIENCE_S, docker, unavailable

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "compose.yaml"
BOOTS = ("boot-h100", "boot-v100", "boot-cpu")
PREPARES = ("prepare-h100", "prepare-v100")
SERVICES = (*BOOTS, *PREPARES)

_ENTRY = ["/usr/bin/tini", "-s", "--", sys.executable, "-P", "-m", "app.boot"]
_LIKE_OURS = (
    "USER 10001:0",
    "WORKDIR /workspace",
    'VOLUME ["/cache", "/models"]',
    f"ENTRYPOINT {json.dumps(_ENTRY)}",
    f"ENV PYTHONPATH={ROOT} HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/models",
    "ENV BOOT_HARDWARE=h100 BOOT_REPORT_DIR=/reports",
)
# Where the client finds Compose: a test has a home folder of its own.
_CLIENT = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker"))
_SOCKET = os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or "/var/run/docker.sock"
_QUICK = {"BOOT_STOP_AFTER": "settings"}
_FOLDERS = "install -d -m 1777 /cache /models; install -d -m 775 /reports /workspace"


@cache
def _plugin() -> Path | None:
    """Compose itself. Asked for while modules are imported: a test has a home folder of its own."""
    try:
        said = docker("info", "--format={{json .ClientInfo.Plugins}}", check=False).stdout
    except FileNotFoundError:
        return None
    plugins = json.loads(said or "null") or []
    return next((Path(one["Path"]) for one in plugins if one["Name"] == "compose"), None)


def no_compose() -> str:
    """Why Compose cannot be asked here; empty where it can."""
    return "" if _plugin() else "there is no Docker client with Compose"


def no_engine() -> str:
    """Why Compose can start nothing here; empty where it can."""
    return no_compose() or unavailable()


def composed(*arguments: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What Compose makes of the file."""
    command = ["docker", "compose", *arguments, "config", "--format", "json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=shell(environ), cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return dict(json.loads(done.stdout))


def shell(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """A shell with nothing of ours set but `environ`."""
    ours = ("BOOT", "COMPOSE_", "CUDA_", "HF_", "HUGGING")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "DOCKER_CONFIG": str(_CLIENT), **(environ or {})}


@contextlib.contextmanager
def small_image() -> Iterator[str]:
    """The image, made without a build, which would leave a cache behind."""
    tag = f"bootguard-test-compose:{uuid.uuid4().hex[:12]}"
    made = docker(
        "create", "--network=none", "--user=0", IMAGE, "sh", "-c", _FOLDERS
    ).stdout.strip()
    try:
        docker("start", "--attach", made)
        docker("cp", str(ROOT / "docker"), f"{made}:/opt/bootguard")
        changes = [f"--change={line}" for line in _LIKE_OURS]
        docker("commit", *changes, made, tag)
    finally:
        docker("rm", "--force", made)
    try:
        yield tag
    finally:
        docker("image", "rm", "--force", tag)


@dataclass(frozen=True)
class Project:
    """A folder with the Compose file; `more` is the file that puts the small image in."""

    folder: Path
    name: str
    more: Path
    client: Path  # the client's folder, with Compose in it
    uid: int  # of who calls Compose

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def compose(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        files: Sequence[Path] = (),
    ) -> subprocess.CompletedProcess[str]:
        """One command of Compose, as that user, who may talk to the engine."""
        named = [f"--file={file}" for file in (self.folder / "compose.yaml", self.more, *files)]
        command = ["docker", "compose", f"--project-name={self.name}", *named, *arguments]
        return subprocess.run(
            self._as_user(command),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env=shell({"DOCKER_CONFIG": str(self.client), **_QUICK, **(environ or {})}),
            cwd="/",  # from anywhere: what is relative is so to the file
        )

    def _as_user(self, command: list[str]) -> list[str]:
        if not self.uid:
            return command
        group = Path(_SOCKET).stat().st_gid
        user = [f"--reuid={self.uid}", f"--regid={self.uid}", f"--groups={group}"]
        return ["setpriv", *user, *command]

    def boot(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A boot without a GPU."""
        return self.compose("run", "--rm", "-T", "boot-cpu", *arguments, environ=environ)

    def prepare(self, **environ: str) -> list[str]:
        """The prepare service alone. The lines that it said."""
        done = self.compose("run", "--rm", "-T", "prepare-h100", environ=environ)
        assert (done.returncode, done.stdout) == (0, "")
        return [line for line in done.stderr.splitlines() if line.startswith("prepare: ")]

    def report(self) -> dict[str, Any]:
        """The report of the last boot."""
        return dict(json.loads((self.reports / "boot-report.json").read_text(encoding="utf-8")))

    def on_host(self, *command: str) -> int:
        """A command of that user on the host."""
        return subprocess.run(self._as_user(list(command)), check=False).returncode


@contextlib.contextmanager
def project(image: str, uid: int = 0) -> Iterator[Project]:
    """A checkout that belongs to `uid`, and nothing of it in the end.

    Not in pytest's folders, which nobody but their owner may enter.
    """
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        made = _checkout(Path(above) / "a project", image, uid)
        try:
            yield made
        finally:
            made.compose("down", "--volumes", "--timeout=0")


def _checkout(folder: Path, image: str, uid: int) -> Project:
    folder.mkdir()
    shutil.copy(COMPOSE, folder)
    more, client = folder.parent / "more.yaml", folder.parent / "client"
    more.write_text(_with_image(image), encoding="utf-8")
    (client / "cli-plugins").mkdir(parents=True)
    plugin = _plugin()
    assert plugin is not None
    shutil.copy(plugin, client / "cli-plugins")  # root's own lies where only root may look
    for path in (folder, folder / "compose.yaml"):
        os.chown(path, uid, uid)
    return Project(folder, f"bootguard-test-{uuid.uuid4().hex[:12]}", more, client, uid)


def _with_image(image: str) -> str:
    places = sorted({str(ROOT), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)})
    code = "".join(f"      - {json.dumps(f'{place}:{place}:ro')}\n" for place in places)
    text = "services:\n"
    for name in SERVICES:
        text += f"  {name}:\n    image: {image}\n    build: !reset null\n"
        text += f"    volumes:\n{code}" if name in BOOTS else ""
    return text


def written() -> dict[str, Any]:
    """The Compose file as YAML, without Compose."""
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8")))
