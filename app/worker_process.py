"""The worker as the supervisor sees it: started early, told to go, listened to, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.events import MAX_LINE_BYTES, Ended, Event, Order, ProtocolError, decode, encode
from app.plan import Plan

_APP_PARENT = Path(__file__).resolve().parent.parent


class WorkerDied(Exception):  # noqa: N818 - an event in the worker's life, told as one
    """The worker's pipe closed before its last event, or it said something that is none."""

    def __init__(self, text: str, *, by_signal: bool) -> None:
        super().__init__(text)
        self.by_signal = by_signal


class WorkerProcess:
    """A child running `app.worker`. What it prints goes to our standard error."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        path = os.pathsep.join(filter(None, (str(_APP_PARENT), environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.worker", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                pass_fds=(write_end,),
                env={**environ, "PYTHONPATH": path},
            )
        finally:
            os.close(write_end)
        self._events = os.fdopen(read_end, "rb")
        self._send(Order(kind="prepare", plan=plan))

    def run(self, plan: Plan, stop_after: str | None) -> Iterator[Event]:
        """Send "go" and yield events up to `Ended`. Raises WorkerDied when there is none."""
        self._send(Order(kind="go", plan=plan, stop_after=stop_after))
        while line := self._events.readline(MAX_LINE_BYTES):
            try:
                event = decode(line)
            except ProtocolError as error:
                raise WorkerDied(str(error), by_signal=False) from error
            yield event
            if isinstance(event, Ended):
                return
        raise self._death()

    def end(self) -> None:
        """Kill the worker if it still runs, and reap it."""
        self._process.kill()
        self._process.wait()
        self._events.close()

    def _death(self) -> WorkerDied:
        code = self._process.wait()
        if code < 0:
            return WorkerDied(f"signal {signal.Signals(-code).name}", by_signal=True)
        return WorkerDied(f"exit {code}", by_signal=False)

    def _send(self, order: Order) -> None:
        """A worker that is gone is noticed at the other pipe's end."""
        if self._process.stdin is None:
            raise AssertionError("the worker was started with a pipe")
        try:
            self._process.stdin.write(encode(order))
            self._process.stdin.flush()
        except BrokenPipeError:
            return
