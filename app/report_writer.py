"""How the report gets out: asked of a process that may hang, and insisted on at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# A volume that takes longer is slow: the boot goes on, and only the last write waits for it.
WRITE_S = 1.0


class Writer(Protocol):
    """Writes the report; `app.file_writer` does it in a process of its own."""

    def report(
        self, report_json: str, report_id: str, deadline_s: float, *, insist: bool = False
    ) -> bool:
        """Replace the report; True when another boot's was found in its place.

        Raises OSError, and of these TimeoutError where it takes longer than `deadline_s`; while an
        earlier one is not answered at once, unless it is to `insist`.
        """


def insisted(write: Callable[[float], None], left: Callable[[], float]) -> None:
    """Try again while `left` says that there is time, which a signal may shorten meanwhile.

    Raises OSError, and TimeoutError where the time is over.
    """
    while True:
        seconds = left()
        try:
            return write(min(WRITE_S, seconds))
        except TimeoutError:
            if seconds <= WRITE_S:
                raise
