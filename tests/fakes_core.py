"""Fakes of what the core stands on, and real children that say what a test tells them to."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.child import Child
from app.config import ModelRequest
from app.deadlines import Deadlines
from app.events import CheckEnded, Event, StageFinished, StageStarted, encode
from app.journal import Journal
from app.limits import Limits
from app.log import Log
from app.outcome import Severity, Status
from app.plan import Plan
from app.profiles import CPU
from app.redaction import Redactor
from app.report import CheckRecord, Identity
from app.signals import ENDING, TOLD, Signals
from app.spawn import spawn_worker
from app.watch import Watch

SECRET = "sEcret-of-the-hub"
IDENTITY = Identity(bootguard="0", hostname="node", pid=1, uid=2, python="3.11.7", platform="Linux")
PLAN = Plan(profile=CPU, request=ModelRequest(), report_dir=Path("reports"))
# `app.worker` is started with EVENTS TRACE STDOUT PARENT.
_START = """\
import os, signal, sys, time
events, trace, raw, parent = map(int, sys.orig_argv[-4:])
"""


class FakeWriter:
    """Keeps what it is told to write; raises what it is told to raise."""

    def __init__(self, *errors: OSError | None) -> None:
        self.reports: list[str] = []
        self.deadlines: list[float] = []
        self.displaced = self.insisted = False
        self.errors = list(errors)  # one a call, None for a write that succeeds

    def report(
        self, report_json: str, report_id: str, deadline_s: float, *, insist: bool = False
    ) -> bool:
        assert report_id in report_json
        self.deadlines.append(deadline_s)
        self.insisted = insist
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.reports.append(report_json)
        return self.displaced


def a_journal(
    writer: FakeWriter | None = None,
    *,
    folder: Path = Path("/reports"),
    log: io.StringIO | None = None,
    secret: str = SECRET,
) -> Journal:
    redactor = Redactor({"HF_TOKEN": secret}, None)
    said = Log("text", redactor, log or io.StringIO())
    return Journal(folder, writer or FakeWriter(), IDENTITY, said, redactor)


def a_record(stage: str, **fields: object) -> CheckRecord:
    given = {
        "stage": stage,
        "id": f"{stage}.x",
        "status": Status.PASS,
        "severity": Severity.CRITICAL,
        "reason": "",
        **fields,
    }
    return CheckRecord.model_validate(given)


def a_stage(name: str, status: Status = Status.PASS) -> list[Event]:
    return [
        StageStarted(name=name),
        CheckEnded(record=a_record(name)),
        StageFinished(name=name, status=status, finding=""),
    ]


def lines(*events: Event) -> bytes:
    return b"".join(map(encode, events))


def no_deadline() -> Deadlines:
    return Deadlines(Limits())


@contextmanager
def installed() -> Iterator[Signals]:
    """Signal handling of a supervisor; afterwards the test run's own is back."""
    kept = {each: signal.getsignal(each) for each in (*ENDING, *TOLD, signal.SIGALRM)}
    kept[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signals = Signals()
    signals.install()
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(signals.wakeup)
        for each, handler in kept.items():
            signal.signal(each, handler)


class Children:
    """Starts children whose work is a line of a test's, under one watch, and ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.signals = Signals()
        self.beats: list[int] = []
        self.told: list[str] = []
        self.said: list[str] = []
        self.watch = Watch(
            self.signals, lambda child: self.beats.append(child.pid), self.told.append
        )
        self._all: list[Child] = []

    def start(self, code: str, said: Callable[[str], None] | None = None) -> Child:
        """A worker that runs this before any code of the product: no torch, some 50 ms.

        `events`, `trace`, `raw` and `parent` are the worker's arguments.
        """
        folder = self._folder / str(len(self._all))
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_START + code)
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        child = spawn_worker(environ, said or self.said.append)
        self._all.append(child)
        self.watch.add(child)
        return child

    @contextmanager
    def signalled(self) -> Iterator[None]:
        """The watch gets the signals of this process."""
        with installed() as signals:
            self.watch._signals = signals
            try:
                yield
            finally:
                self.watch._signals = self.signals

    def forget(self, child: Child) -> None:
        """It has ended and is closed."""
        self._all.remove(child)

    def end(self) -> None:
        for child in self._all:
            child.signal_group(signal.SIGKILL)
        assert self.watch.reaped(self._all, 2.0)
        for child in self._all:
            child.close()
        os.close(self.signals.wakeup)


@contextmanager
def children(folder: Path) -> Iterator[Children]:
    found = Children(folder)
    try:
        yield found
    finally:
        found.end()
