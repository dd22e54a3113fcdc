"""Reads files that may be anything: bounded, and never waiting for a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bytes(path: Path, limit: int, *, offset: int = 0) -> tuple[bytes, int]:
    """Up to `limit` bytes of a regular file and its whole size, links followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        file.seek(offset)
        return file.read(limit), status.st_size
