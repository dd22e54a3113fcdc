"""Asks cuDNN for its version: `python -m app.bake.cudnn_child LIBRARY`. It needs no driver."""

from __future__ import annotations

import ctypes
import sys

from app.facts.cudnn import release


def main(library: str) -> None:
    """Print it as `9.10.2`."""
    ask = ctypes.CDLL(library).cudnnGetVersion
    ask.restype = ctypes.c_size_t
    print(*release(int(ask())), sep=".")  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(sys.argv[1])
