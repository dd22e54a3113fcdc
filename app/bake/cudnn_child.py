"""Asks cuDNN for its version: `python -m app.bake.cudnn_child LIBRARY`. It needs no driver."""

from __future__ import annotations

import ctypes
import sys

# cuDNN 9 writes 9.10.2 as 91002, cuDNN 8 wrote 8.9.7 as 8907 (cudnn_version.h).
_SINCE_9 = 90_000


def main(library: str) -> None:
    """Print it as `9.10.2`."""
    ask = ctypes.CDLL(library).cudnnGetVersion
    ask.restype = ctypes.c_size_t
    number = int(ask())
    major, rest = divmod(number, 10_000 if number >= _SINCE_9 else 1000)
    print(major, *divmod(rest, 100), sep=".")  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(sys.argv[1])
