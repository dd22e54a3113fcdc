"""Takes real memory in /dev/shm for a moment, as data loaders and collectives will."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
from pathlib import Path

from app.facts.node import SharedMemoryFacts

# Enough to be refused by a full one; the kernel clears a page in a quarter of a microsecond.
_TRIED = 8 * 2**20
_PAGE = 4096
# Not of shared memory: a policy such as a profile of seccomp, or a kernel without the call.
_REFUSED = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP))
_PATH = Path("/dev/shm")  # noqa: S108 - the name that libc's shm_open uses


def probe_shared_memory(path: Path = _PATH, most: int = _TRIED) -> SharedMemoryFacts:
    """Allocate up to `most` bytes in a file there, never more than half of what is free.

    The numbers of a tmpfs are what it may take, not what there is: a control group or the machine
    can refuse, and the pages of a refused one raise SIGBUS in whoever touches them.
    """
    total = free = None
    try:
        space = os.statvfs(path)
        total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    except OSError as error:
        if error.errno not in _REFUSED:
            return SharedMemoryFacts(str(path), str(error.strerror), error.errno)
    with contextlib.suppress(OSError):
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # of which `host.limits` tells
        most = most if largest == resource.RLIM_INFINITY else min(most, largest)
    tried = max(min(most, free // 2) if total and free else 0, _PAGE)
    problem, number = _allocate(path, tried)
    return SharedMemoryFacts(str(path), problem, number, total, free, tried)


def _allocate(folder: Path, n_bytes: int) -> tuple[str, int | None]:
    """What the system said against it, and its number; the file is gone before it is filled."""
    name = folder / f"bootguard-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return str(error.strerror), error.errno
    try:
        name.unlink()
        _fill(handle, n_bytes)
    except OSError as error:
        return str(error.strerror), error.errno
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            name.unlink()
    return "", None


def _fill(handle: int, n_bytes: int) -> None:
    """Take the memory. Raises OSError where there is none."""
    try:
        os.posix_fallocate(handle, 0, n_bytes)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        for start in range(0, n_bytes, 256 * _PAGE):
            os.pwrite(handle, bytes(min(256 * _PAGE, n_bytes - start)), start)
