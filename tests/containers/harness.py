"""A boot in a container as a test holds it: started, watched, struck, ended, cleared away."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.containers import boot_and_look
from tests.containers.engine import IMAGE, PATIENCE_S, docker, started
from tests.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
REPORTS = "/reports"
_BOOT = "tests.containers.boot_and_look"
# How the lines of what may stand above a boot begin; the engine's init is known by its path.
_ABOVE = ("/sbin/docker-init", "tini", "sh ")
_LOOK_S = 0.02  # a tiny model loads in 200 ms
# How a container can be set up: with the boot as its first process, or below an init of the
# engine's or of the image's own.
ENTRIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pid1": ((), ()),
    "init": (("--init",), ()),
    "tini": ((), ("tini", "--")),
}


@dataclass(frozen=True)
class Process:
    """A process of a container; `inner` is its PID there."""

    inner: int
    line: str


@dataclass(frozen=True)
class End:
    """What a container left behind."""

    code: int
    out: str
    err: str
    report: dict[str, Any]
    left: list[str] | None  # processes beside the boot at its end; None where nobody looked

    @property
    def line(self) -> dict[str, Any]:
        """The verdict line: standard output holds it and nothing else."""
        assert self.out.count("\n") == 1, self.out
        return dict(json.loads(self.out))

    @property
    def statuses(self) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.report["stages"]}


@dataclass(frozen=True)
class Container:
    """A container; `folder` is the host's side of its report folder."""

    id: str
    folder: Path

    def report(self) -> dict[str, Any]:
        """The report as it is now; empty where there is none. It is replaced, so always whole."""
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((self.folder / "boot-report.json").read_text(encoding="utf-8")))
        return {}

    def until(self, ready: Callable[[], object], what: str) -> None:
        """Wait for a moment of the boot; fail where the container ends before it."""
        began = asked = time.monotonic()
        while not ready():
            now = time.monotonic()
            assert now < began + PATIENCE_S, f"{what} did not come\n{self._log()}"
            if now > asked + 1.0:
                assert self.is_running() or ready(), f"ended before: {what}\n{self._log()}"
                asked = now
            time.sleep(_LOOK_S)

    def until_stage(self, name: str) -> None:
        """Wait until that stage has begun."""
        self.until(lambda: name in started_stages(self.report()), f"stage {name}")

    def until_file(self, name: str) -> None:
        """Wait for a file that a job leaves."""
        self.until((self.folder / name).exists, f"file {name}")

    def is_running(self) -> bool:
        return docker("inspect", "-f", "{{.State.Running}}", self.id).stdout.strip() == "true"

    def processes(self, words: str = "") -> list[Process]:
        """The processes of the container whose command line has these words, oldest first."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self.id not in Path(f"/proc/{each.pid}/cgroup").read_text(encoding="utf-8"):
                    continue
                status = Path(f"/proc/{each.pid}/status").read_text(encoding="utf-8")
                inner = next(row for row in status.splitlines() if row.startswith("NSpid:"))
                line = " ".join(each.cmdline())
                if words in line:
                    found.append(Process(int(inner.split()[-1]), line))
        return sorted(found, key=lambda process: process.inner)

    def worker(self) -> Process:
        """The worker's process, waited for."""
        self.until(lambda: self.processes("app.worker"), "a worker")
        return self.processes("app.worker")[0]

    def supervisor(self) -> Process:
        """The boot's own process."""
        return self._with_its_line()[0]

    def writer(self) -> Process:
        """The process that writes the files: the first one that the boot forks."""
        self.until(lambda: len(self._with_its_line()) > 1, "a writer")
        return self._with_its_line()[1]

    def preflight(self) -> Process:
        """The process of the first stages: the second one that the boot forks."""
        self.until(lambda: len(self._with_its_line()) > 2, "a preflight")
        return self._with_its_line()[2]

    def _with_its_line(self) -> list[Process]:
        """The boot, and what it has forked, which has its command line too."""
        return [each for each in self.of_the_boot() if _BOOT in each.line]

    def of_the_boot(self) -> list[Process]:
        """All processes but those above the boot: an init, a shell and what the shell runs."""
        found = self.processes(sys.executable)
        return [each for each in found if not each.line.startswith(_ABOVE)]

    def kill_inside(self, process: Process, name: str = "KILL") -> None:
        """As somebody in the container would, whom the container's end may take along."""
        docker("exec", self.id, "sh", "-c", f"kill -{name} {process.inner}", check=False)

    def kill(self, name: str) -> None:
        """As `docker kill -s`: to the container's first process."""
        docker("kill", "-s", name, self.id)

    def stop(self) -> float:
        """`docker stop`: TERM, and KILL ten seconds later. Seconds until the end."""
        began = time.monotonic()
        docker("stop", self.id)
        return time.monotonic() - began

    def end(self) -> End:
        """Wait for the container's end, and read what it left."""
        code = int(docker("wait", self.id).stdout)
        logs = docker("logs", self.id)
        look = self.folder / boot_and_look.LEFT
        left = json.loads(look.read_text(encoding="utf-8")) if look.exists() else None
        return End(code, logs.stdout, logs.stderr, self.report(), left)

    def _log(self) -> str:
        return docker("logs", "--tail", "40", self.id, check=False).stderr


def started_stages(report: Mapping[str, Any]) -> list[str]:
    """The stages that have begun, in order: a reader takes the last one for the current one."""
    return [stage["name"] for stage in report.get("stages", []) if stage["started"]]


@dataclass(frozen=True)
class Given:
    """What a container is started with."""

    settings: Mapping[str, str] = field(default_factory=dict)
    entry: str = "pid1"
    options: Sequence[str] = ()  # of `docker run`
    shell: str = ""  # runs instead of the boot, which is "$@" in it
    network: str = "none"
    arguments: Sequence[str] = ()  # of the boot


@contextlib.contextmanager
def running(folder: Path, given: Given) -> Iterator[Container]:
    """A container with a boot in it, removed in the end. `folder` gets the reports."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # for other uids
    options, above = ENTRIES[given.entry]
    shell = ["sh", "-c", given.shell, "sh"] if given.shell else []
    boot = [sys.executable, "-P", "-m", _BOOT, REPORTS, *given.arguments]
    entry, *rest = [*above, *shell, *boot]
    with started(
        *options,
        *_mounts(folder),
        *_variables(given),
        *given.options,
        f"--network={given.network}",
        "--shm-size=1g",  # with Docker's own 64 MB a boot warns
        f"--entrypoint={entry}",
        IMAGE,
        *rest,
    ) as identity:
        yield Container(identity, folder)


def _mounts(folder: Path) -> list[str]:
    """The code read-only where it lies here, and the report folder."""
    places = {str(ROOT), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    code = [f"--volume={place}:{place}:ro" for place in sorted(places)]
    return [*code, f"--volume={folder}:{REPORTS}", "--tmpfs=/tmp", "--workdir=/tmp"]


def _variables(given: Given) -> list[str]:
    """The settings over those of a quick rehearsal."""
    wanted = {
        "BOOT_HARDWARE": "cpu",
        "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
        "BOOT_MAX_SEQ_LENGTH": "2048",  # the model's own; a boot warns beyond it
        "BOOT_REPORT_DIR": REPORTS,
        "HOME": "/tmp",  # noqa: S108 - inside the container
        "PYTHONPATH": str(ROOT),
        **given.settings,
    }
    return [f"--env={name}={value}" for name, value in wanted.items()]
