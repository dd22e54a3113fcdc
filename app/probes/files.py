"""Reads files that may be anything: bounded, and never waiting for a pipe."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file to read, links followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a regular file")
        yield file


def read_bytes(path: Path, limit: int, *, offset: int = 0) -> tuple[bytes, int]:
    """Up to `limit` bytes of a regular file and its whole size, links followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with opened(path) as file:
        file.seek(offset)
        return file.read(limit), os.fstat(file.fileno()).st_size
