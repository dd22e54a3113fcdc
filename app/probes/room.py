"""Free space of the file system that a folder is, or will be, on."""

from __future__ import annotations

import os
from pathlib import Path

from app.facts.cache import RoomFacts

_MOUNTS = Path("/proc/self/mountinfo")


def room_of(folder: Path, needed_bytes: int, mounts: Path = _MOUNTS) -> RoomFacts:
    """What this uid may write there; the nearest folder that exists answers."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        found = os.statvfs(there)
    except OSError as error:
        return RoomFacts(str(there), needed_bytes, problem=error.strerror or str(error))
    free = found.f_bavail * found.f_frsize
    return RoomFacts(str(there), needed_bytes, free, fuse=_is_fuse(there, mounts))


def _is_fuse(folder: Path, mounts: Path) -> bool:
    """By the mount table (man 5 proc): device number, `-`, type of the file system."""
    try:
        device = folder.stat().st_dev
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 2 and fields[2] == wanted and kinds:  # noqa: PLR2004 - the third field
            return kinds[0].startswith("fuse")
    return False
