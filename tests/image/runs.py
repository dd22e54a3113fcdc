"""A boot in a container of the image: started with a report folder, ended, read."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.containers.engine import docker
from tests.containers.harness import Container
from tests.containers.moments import is_valid
from tests.image.engine import LABEL, Image

HARDENED = (
    "--read-only",
    "--tmpfs=/tmp:mode=1777",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges:true",
)
REHEARSAL = {"BOOT_HARDWARE": "cpu"}
# A level as our log, Python's and torch's (W1201 00:43:14) write it.
_WARNING = re.compile(r"warn|\bW\d{4} ", re.IGNORECASE)


@dataclass(frozen=True)
class Given:
    """What a container is started with; `settings` are variables."""

    settings: Mapping[str, str] = field(default_factory=lambda: REHEARSAL)
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()
    mount: str = ":/reports"  # what follows the report folder's path
    shared_memory: str = "1g"  # with Docker's own 64 MB a boot warns


@dataclass(frozen=True)
class Run:
    """What a container left behind."""

    code: int
    out: str
    err: str
    folder: Path
    changed: list[str]  # lines of `docker diff`

    @property
    def report(self) -> dict[str, Any]:
        """The report, which is whole."""
        text = (self.folder / "boot-report.json").read_text(encoding="utf-8")
        report = dict(json.loads(text))
        is_valid(report)
        return report

    @property
    def warnings(self) -> list[str]:
        """Lines of the log that warn."""
        return [line for line in self.err.splitlines() if _WARNING.search(line)]


@contextlib.contextmanager
def container(image: Image, folder: Path, given: Given) -> Iterator[Container]:
    """A started container, removed with its volumes in the end."""
    variables = [f"--env={name}={value}" for name, value in given.settings.items()]
    mount = f"--volume={folder}{given.mount}"
    options = [*variables, mount, f"--shm-size={given.shared_memory}", *given.options]
    identity = docker(
        "create", "--network=none", f"--label={LABEL}", *options, image.tag, *given.arguments
    ).stdout.strip()
    try:
        docker("start", identity)
        yield Container(identity, folder)
    finally:
        docker("rm", "--force", "--volumes", identity, check=False)


def ran(image: Image, folder: Path, given: Given) -> Run:
    """Run to the end."""
    with container(image, folder, given) as started:
        code = int(docker("wait", started.id).stdout)
        logs = docker("logs", started.id)
        changed = docker("diff", started.id).stdout.splitlines()
    return Run(code, logs.stdout, logs.stderr, folder, changed)


def reports(folder: Path, uid: int | None = None, mode: int = 0o777) -> Path:
    """A folder for reports, of that user where this process may give things away."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    if uid is not None and os.geteuid() == 0:
        os.chown(folder, uid, uid)
    return folder
