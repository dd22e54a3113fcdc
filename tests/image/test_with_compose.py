"""Facts about the real Compose file with the real image, on a fresh clone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import IMAGE as BASE
from tests.containers.engine import PATIENCE_S
from tests.containers.moments import is_valid
from tests.image.engine import LABEL, REVISION, SOURCE, Image

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
YOU = 1000


OVERRIDE = "compose.override.yaml"  # Compose reads it by itself
RESET = "reset.yaml"


@dataclass(frozen=True)
class Project:
    """A clone, and who calls Compose in it."""

    folder: Path
    name: str
    uid: int
    profile: str

    @property
    def gpu_service(self) -> str:
        return f"boot-{self.profile}"

    def compose(
        self, *arguments: str, files: Sequence[str] = (), **environ: str
    ) -> subprocess.CompletedProcess[str]:
        named = [f"--file={name}" for name in files]
        command = ["docker", "compose", f"--project-name={self.name}", *named, *arguments]
        if self.uid:
            socket = os.environ["DOCKER_HOST"].removeprefix("unix://")
            groups = f"--groups={Path(socket).stat().st_gid}"
            command = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", groups, *command]
        own = {"BASE_IMAGE": BASE, "REVISION": REVISION, "SOURCE": SOURCE, **environ}
        # The builder's notes are beside the plugins and root's alone, once root has built.
        own["BUILDX_CONFIG"] = str(self.folder / ".buildx")
        return subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
            env={**os.environ, **own},
        )

    def rehearse(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A boot without a GPU: the h100 image has a service for it."""
        if self.profile == "h100":
            return self.compose("run", "--rm", "-T", "boot-cpu", *arguments, **environ)
        return self.without_device(
            "--env=BOOT_HARDWARE=cpu", self.gpu_service, *arguments, **environ
        )

    def without_device(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The GPU service, whose request for a device is taken away."""
        files = ["compose.yaml", OVERRIDE, RESET]
        return self.compose("run", "--rm", "-T", *arguments, files=files, **environ)

    def report(self) -> dict[str, Any]:
        text = (self.folder / "reports" / "boot-report.json").read_text(encoding="utf-8")
        report = dict(json.loads(text))
        is_valid(report)
        return report


def override(profile: str) -> str:
    """What the tests change: images by other names, and labels by which all is found.

    JSON is YAML. The network of the build is the machine's, as for `docker build` in `engine.py`.
    """
    images = {f"boot-{profile}": profile, f"prepare-{profile}": profile}
    images |= {"boot-cpu": "h100"} if profile == "h100" else {}
    labelled = {"labels": [LABEL]}
    services = {
        name: {"image": f"bootguard-test:{tag}", "build": {"network": "host", **labelled}}
        | labelled
        for name, tag in images.items()
    }
    volumes = dict.fromkeys(("models", "cache-h100", "cache-v100", "cache-cpu"), labelled)
    return json.dumps({"services": services, "volumes": volumes, "networks": {"default": labelled}})


@contextlib.contextmanager
def project(image: Image, uid: int = 0) -> Iterator[Project]:
    """A clone of that user's, outside pytest's folders, which only their owner enters."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        folder = Path(above) / "clone"
        shutil.copytree(image.clone, folder)
        (folder / ".env").unlink()
        (folder / OVERRIDE).write_text(override(image.profile), encoding="utf-8")
        (folder / RESET).write_text(
            f"services: {{boot-{image.profile}: {{deploy: {{resources: "
            "{reservations: {devices: !reset []}}}}}\n",
            encoding="utf-8",
        )
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid)
        made = Project(folder, f"bootguard-test-{uuid.uuid4().hex[:12]}", uid, image.profile)
        try:
            yield made
        finally:
            made.compose("down", "--volumes", "--timeout=0")


@needs_root
@pytest.mark.parametrize("uid", [0, YOU], ids=["root", "a user"])
def test_a_fresh_clone_is_built_and_boots_again_and_again(image: Image, uid: int) -> None:
    """The build finds all in the cache; the second boot's command has a status of its own."""
    with project(image, uid) as made:
        build = made.compose("build", made.gpu_service)
        assert build.returncode == 0, build.stderr
        first = made.rehearse()
        assert first.returncode == 0, first.stderr
        report = made.report()
        assert (report["verdict"], report["rehearsal"]) == ("pass", True)
        second = made.rehearse("--", "sh", "-c", "exit 9")
        assert second.returncode == 9, second.stderr
        assert made.report()["report_id"] != report["report_id"]
        kept = [json.loads(path.read_text("utf-8")) for path in previous(made)]
        assert [each["report_id"] for each in kept] == [report["report_id"]]


def previous(made: Project) -> list[Path]:
    """Reports of earlier boots."""
    return list((made.folder / "reports" / "previous").iterdir())


@needs_root
def test_statuses_pass_through_compose(image: Image) -> None:
    with project(image) as made:
        refused = made.compose("run", "--rm", "-T", made.gpu_service)
        assert refused.returncode == 1
        assert "could not select device driver" in refused.stderr
        unfit = made.without_device(made.gpu_service)
        assert unfit.returncode == 69, unfit.stderr
        assert "no NVIDIA device file" in made.report()["exit"]["reason"]
        wrong = made.rehearse(BOOT_STEPS="0")
        assert wrong.returncode == 78, wrong.stderr
        assert "BOOT_STEPS" in made.report()["exit"]["reason"]
