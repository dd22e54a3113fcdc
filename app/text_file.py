"""Writes small text files: replaced whole, or in place where the place itself is given.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Literal

OnlyIf = Literal["any", "exists", "absent"]

# What devices and some network file systems answer.
_NOTHING_TO_SYNC = frozenset((errno.EINVAL, errno.EROFS, errno.ENOTSUP))


def write_text(path: Path, text: str, *, replace: bool, only_if: OnlyIf = "any") -> None:
    """Make the file hold `text`. Raises OSError; no folder is made.

    `replace` puts a new file in the place of the old one, so that no reader sees half of it;
    without, the file there is written over, as a bind-mounted one can only be. A device is always
    written in place: a rename would put a file where /dev/null was. What else is no regular file
    is refused, and never waited for. `exists` and `absent` raise FileNotFoundError and
    FileExistsError where that is not so.
    """
    data = text.encode("utf-8", "backslashreplace")
    path = Path(os.path.realpath(path))  # a link stays one, and its target is replaced
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if only_if == "exists":
            raise
        mode = None
    if mode is not None and only_if == "absent":
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        raise OSError(errno.EINVAL, "neither a regular file nor a device", str(path))
    if only_if == "exists" and mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if replace and (mode is None or stat.S_ISREG(mode)):
        _replace(path, data)
    else:
        _write(path, data)


def _replace(path: Path, data: bytes) -> None:
    # The process in the name: several boots may write there at once.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(temporary, data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _write(path: Path, data: bytes) -> None:
    """Write and sync. A FIFO that has come meanwhile raises instead of waiting for a reader."""
    calm = os.O_NONBLOCK | os.O_NOCTTY
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | calm, 0o666)
    try:
        while data:
            data = data[os.write(number, data) :]
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise
    finally:
        os.close(number)
