"""Reads files that may be anything: bounded, and never waiting for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol


class Source(Protocol):
    """Bytes at a place, of something that holds `size` bytes."""

    @property
    def size(self) -> int:
        """Bytes in all, as they were when it was opened."""

    def read(self, length: int, offset: int) -> bytes:
        """As many of these bytes as there are; fewer only at the end.

        Raises:
            OSError: the disk or mount does not give them.
        """


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that is open, read without a position of its own and without a buffer."""

    handle: int
    size: int

    def read(self, length: int, offset: int) -> bytes:
        """One call of the system where it gives all at once, as local disks do."""
        found = os.pread(self.handle, length, offset)
        if not found or len(found) == length:
            return found
        parts = [found]
        got = len(found)
        while got < length and (found := os.pread(self.handle, length - got, offset + got)):
            parts.append(found)
            got += len(found)
        return b"".join(parts)


@contextmanager
def open_file(path: Path) -> Iterator[OpenFile]:
    """A regular file to read from, links followed.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = _handle(path)
    try:
        yield OpenFile(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file to read in order, links followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with os.fdopen(_handle(path), "rb") as file:
        yield file


def read_bytes(path: Path, limit: int) -> tuple[bytes, int]:
    """The first `limit` bytes of a regular file and its whole size, links followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_file(path) as file:
        return file.read(limit, 0), file.size


def _handle(path: Path) -> int:
    """Looked at before it is opened, since opening a device can do things, and once more after."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    _refuse_others(path.stat())
    handle = os.open(path, flags)
    try:
        _refuse_others(os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return handle


def _refuse_others(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")


def stays_inside(name: str) -> bool:
    """Whether a name from outside stays below the folder that it is looked up in."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts
