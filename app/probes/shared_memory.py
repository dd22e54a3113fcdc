"""Takes real memory in /dev/shm for a moment, as data loaders and collectives will."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from app.facts.node import SharedMemoryFacts

# Enough to be refused by a full one; the kernel clears a page in a quarter of a microsecond.
_TRIED = 8 * 2**20
_PATH = Path("/dev/shm")  # noqa: S108 - the name that libc's shm_open uses


def probe_shared_memory(path: Path = _PATH, most: int = _TRIED) -> SharedMemoryFacts:
    """Allocate up to `most` bytes in a file there, never more than half of what is free.

    The numbers of a tmpfs are what it may take, not what there is: a control group or the machine
    can refuse, and the pages of a refused one raise SIGBUS in whoever touches them.
    """
    try:
        space = os.statvfs(path)
    except OSError as error:
        return SharedMemoryFacts(str(path), str(error.strerror), error.errno)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    tried = min(most, free // 2) if total else 4096
    problem, number = _allocate(path, max(tried, 4096))
    return SharedMemoryFacts(str(path), problem, number, total, free, max(tried, 4096))


def _allocate(folder: Path, n_bytes: int) -> tuple[str, int | None]:
    """What the system said against it, and its number; the file is gone before it is filled."""
    name = folder / f"bootguard-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return str(error.strerror), error.errno
    try:
        name.unlink()
        os.posix_fallocate(handle, 0, n_bytes)
    except OSError as error:
        return str(error.strerror), error.errno
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            name.unlink()
    return "", None
