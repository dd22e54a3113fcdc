"""Standard streams that never decide how a boot ends: closed, full or broken ones lose their text.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def ensure_open() -> None:
    """Give standard input, output and error somewhere to go where the caller has closed them.

    Otherwise the next file that is opened gets the number, and is written to as if it were a log.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number. Children need it as much as we do.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def put(stream: TextIO, text: str) -> None:
    """Write and flush. A stream that fails once is turned to nowhere.

    Python would try the rest again while it ends, and change the exit status to 120.
    """
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):  # a closed file object has no number, and nothing to flush
            return
