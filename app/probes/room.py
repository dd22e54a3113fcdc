"""Free space of the file system that a folder is, or will be, on."""

from __future__ import annotations

import os
from pathlib import Path

from app.facts.cache import RoomFacts
from app.probes.mounts import kind_of, mounts

_PROC = Path("/proc")


def room_of(folder: Path, needed_bytes: int, proc: Path = _PROC) -> RoomFacts:
    """What this uid may write there; the nearest folder that exists answers. Sizes in bytes."""
    there = folder.absolute()
    try:
        there = next(each for each in (there, *there.parents) if each.exists())
        found = os.statvfs(there)
        kind = kind_of(there.resolve(), mounts(proc))
    except OSError as error:
        return RoomFacts(str(there), needed_bytes, problem=error.strerror or str(error))
    free = found.f_bavail * found.f_frsize
    return RoomFacts(str(there), needed_bytes, free, fuse=kind.startswith("fuse"))
