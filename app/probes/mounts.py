"""Which mount a path lies on, from the kernel's table of this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.probes.cgroups import text_of, unescaped


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: str
    kind: str  # type of the file system


def mounts(proc: Path) -> tuple[Mount, ...]:
    """All of them, as they were mounted; `proc` is /proc."""
    found = []
    for line in text_of(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) > 4 and kind[0]:  # noqa: PLR2004 - id parent dev root mountpoint ...
            found.append(Mount(unescaped(fields[4]), kind[0]))
    return tuple(found)


def kind_of(path: Path, table: tuple[Mount, ...]) -> str:
    """The type of the file system that a path lies on; empty where the table does not say.

    The longest mount point above it counts, and of those on one point the last.
    """
    real = str(path)
    best: Mount | None = None
    for mount in table:
        above = mount.point.rstrip("/")
        if real != mount.point and not real.startswith(f"{above}/"):
            continue
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best.kind if best else ""
