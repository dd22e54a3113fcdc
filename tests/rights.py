"""Acting as another account than root, whom no mode of a file stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """As nobody where this is root, else as whoever this is."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
