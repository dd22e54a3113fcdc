"""What a chaos boot stands on: volumes that can be broken, control groups that count and limit.

Mounts and groups need root; both are undone whatever happened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cases import Case

_GROUPS = Path("/sys/fs/cgroup")
_TMPFS_BYTES = 512 * 1024  # room for a few reports
_LOOP_BYTES = 8 * 1024 * 1024  # the smallest ext4 with a journal


def run(*command: str) -> None:
    """Run a program of the system; its words are in the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def can_mount() -> bool:
    """Whether mounts and control groups can be made here."""
    return os.geteuid() == 0 and bool(_parents())


@dataclass(slots=True)
class Place:
    """Where one boot runs. `groups` hold all its processes, whatever they do to get away."""

    folder: Path
    work: Path
    reports: Path
    groups: list[Path] = field(default_factory=list)
    frozen: Path | None = None

    def pids(self) -> set[int]:
        """Every process of the boot that is no zombie: by control group, else by environment.

        A marker in the environment, since process ids are used again.
        """
        if self.groups:
            members = (self.groups[0] / "cgroup.procs").read_text(encoding="ascii").split()
            return {int(member) for member in members}
        marker = f"CHAOS_DIR={self.folder}\0".encode()
        found = set()
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marker in (each / "environ").read_bytes() and int(each.name) != os.getpid():
                    found.add(int(each.name))
        return found

    def kill_all(self, patience_s: float = 5.0) -> None:
        """End what is left, also what forks itself anew."""
        until = time.monotonic() + patience_s
        while (left := self.pids()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def thaw(self) -> None:
        """Let what waits in the kernel go on."""
        for each in (self.frozen, self.reports):
            if each is not None:
                with contextlib.suppress(OSError):
                    run("fsfreeze", "--unfreeze", str(each))


@contextlib.contextmanager
def place_for(case: Case, folder: Path) -> Iterator[Place]:
    """Make what the case needs, and undo it."""
    place = Place(folder, folder / "work", folder / "reports")
    place.work.mkdir()
    with contextlib.ExitStack() as stack:
        if can_mount():
            place.groups = stack.enter_context(_groups(folder.name, case))
        if case.volume:
            place.reports = stack.enter_context(_volume(folder / "volume", case.volume))
        if case.frozen:
            place.frozen = stack.enter_context(_volume(folder / "frozen", "loop"))
            run("fsfreeze", "--freeze", str(place.frozen))
        try:
            yield place
        finally:
            place.thaw()
            place.kill_all()


def _parents() -> list[Path]:
    """Version 1's controllers of memory and processes, or the one hierarchy of version 2."""
    found = [_GROUPS / "memory", _GROUPS / "pids", _GROUPS]
    return [each for each in found if (each / "cgroup.procs").exists()]


@contextlib.contextmanager
def _groups(name: str, case: Case) -> Iterator[list[Path]]:
    """A group of its own for the boot, in each hierarchy."""
    made = [parent / name for parent in _parents()]
    for group in made:
        group.mkdir()
    try:
        for file, limit in (
            ("memory.limit_in_bytes", case.memory_bytes),
            ("memory.max", case.memory_bytes),
            ("pids.max", case.processes),
        ):
            for group in made:
                if limit and (group / file).exists():
                    (group / file).write_text(str(limit), encoding="ascii")
        yield made
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    """A group that has just lost its last process may be busy for a moment."""
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def _volume(at: Path, kind: str) -> Iterator[Path]:
    """A mounted file system; the folder within it is the caller's."""
    at.mkdir()
    if kind == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}", "chaos", str(at))
    else:
        image = at.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(_LOOP_BYTES)
        run("mkfs.ext4", "-q", str(image))
        run("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        with contextlib.suppress(OSError):
            run("fsfreeze", "--unfreeze", str(at))
        with contextlib.suppress(OSError):  # the case may have unmounted it
            run("umount", "--lazy", str(at))
