"""TERM and INT end a boot by an exception, so that worker and report are closed on the way out.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

import signal
from types import FrameType


class Interrupted(BaseException):
    """A signal that asks the boot to end; no `Exception`, so that no step guard swallows it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def interruptible() -> None:
    """Raise Interrupted at the first TERM or INT; a second one ends the process at once.

    A handler is set also because process 1 of a container has no default action.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _interrupt)


def uninterruptible() -> None:
    """Let the kernel decide again: nobody is there any more who would take the exception."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    uninterruptible()
    raise Interrupted(signal.Signals(number).name)
