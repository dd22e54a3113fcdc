"""Signals as the supervisor takes them: noted by a handler, acted on between two steps.

A handler is set for each because process 1 of a container has no default action. A leaf: imports
nothing of the app.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

# A request to end: by a person, an orchestrator, a terminal that is gone, a processor time limit.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
# Slurm's `--signal` and others use these to tell a job something; a guard has no use for them.
TOLD = (signal.SIGUSR1, signal.SIGUSR2)
CHANGEABLE = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
# srun and some runtimes send the same TERM by two ways; this close together it is one request.
_SAME_S = 0.5


class Interrupted(BaseException):
    """A signal that asks the boot to end; no `Exception`, so that no step guard swallows it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Late(BaseException):
    """The time of `Signals.within` is over."""


def exit_status(name: str) -> int:
    """130 after an INT, 143 after anything else that asks to end."""
    return 130 if name == "SIGINT" else 143


def ignored_signals() -> frozenset[signal.Signals]:
    """Signals that this process ignores: at its start what the caller (`nohup`) has chosen.

    Python ignores PIPE and XFSZ from its start and keeps no memory of what they were before.
    """
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}
    return frozenset(
        signal.Signals(each)
        for each in CHANGEABLE - of_python
        if signal.getsignal(each) is signal.SIG_IGN
    )


class Signals:
    """Notes signals; `forward` takes them instead while a job runs.

    `ignored` are those that were when this was made, at the start of the process.
    """

    def __init__(self) -> None:
        self.ignored = ignored_signals()
        self.forward: Callable[[int], None] | None = None
        self.received: list[str] = []  # requests to end, first one first
        self.forwarded: list[str] = []  # all that a job was told
        self._told: deque[str] = deque(maxlen=16)
        self._first = 0.0
        self._raises = False
        # The loop polls this: a handler alone does not end a wait (PEP 475).
        self.wakeup, self._write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self._write_end, False)

    def install(self) -> None:
        """Take over every signal that would end this process without a report.

        Whatever the caller has left: a blocked TERM would never come, and where CHLD is ignored
        the kernel keeps nobody's status. Only what `nohup` asks for is left alone.
        """
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in ENDING + TOLD:
            if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, *TOLD, signal.SIGALRM))

    def hold(self) -> None:
        """The end has been told: no signal may make the process end otherwise any more."""
        for each in ENDING + TOLD:
            signal.signal(each, signal.SIG_IGN)

    def heard(self) -> None:
        """Empty the wakeup pipe, which would end every further wait at once."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 512):
                pass

    def check(self) -> list[str]:
        """Raise Interrupted if the boot is asked to end; else what was noted or forwarded since."""
        if self.received and self.forward is None:
            raise Interrupted(self.received[0])
        told = list(self._told)
        self._told.clear()
        return told

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bound a step of this process itself: raises Late after that time, Interrupted at once."""
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a stray one means nothing

    def _note(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        # A job may take HUP for something else, as daemons do; the guard has no other use for it.
        if number in ENDING and not (number == signal.SIGHUP and self.forward is not None):
            self._end(name)
        if self.forward is not None:
            self.forwarded.append(name)
            self.forward(number)
        elif number not in TOLD:
            return
        self._told.append(name)

    def _end(self, name: str) -> None:
        now = time.monotonic()
        again = bool(self.received) and now - self._first > _SAME_S
        if again and self.forward is None:
            # Whoever asks twice does not want to wait. The children die with this process.
            os._exit(exit_status(name))
        if not self.received:
            self._first = now
        self.received.append(name)
        if self._raises and self.forward is None:
            self._raises = False
            raise Interrupted(name)


def _late(_number: int, _frame: FrameType | None) -> None:
    raise Late
