"""The worker as the supervisor sees it: started early, told to go, listened to, ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.events import MAX_LINE_BYTES, Ended, Event, Order, ProtocolError, Turns, decode, encode
from app.plan import Plan

_APP_PARENT = Path(__file__).resolve().parent.parent
_POLL_S = 0.5  # how soon a death is noticed whose pipe a child of the worker keeps open
_GRACE_S = 5.0  # from the end of its pipe to the end of the worker
_CHUNK_BYTES = 65536


class WorkerDied(Exception):  # noqa: N818 - an event in the worker's life, told as one
    """The worker ended before its last event, or said something that is none."""

    def __init__(self, text: str, *, by_signal: bool) -> None:
        super().__init__(text)
        self.by_signal = by_signal


class WorkerProcess:
    """A child running `app.worker`. What it prints goes to our standard error."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        self._events, write_end = os.pipe()
        path = os.pathsep.join(filter(None, (str(_APP_PARENT), environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                # -P: what lies in the current folder must not shadow a module.
                [sys.executable, "-P", "-m", "app.worker", str(write_end), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                pass_fds=(write_end,),
                env={**environ, "PYTHONPATH": path},
            )
        except OSError:
            os.close(self._events)
            raise
        finally:
            os.close(write_end)
        self._send(Order(kind="prepare", plan=plan))

    def run(self, plan: Plan, stop_after: str | None) -> Iterator[Event]:
        """Send "go" and yield events up to `Ended`. Raises WorkerDied when there is none."""
        self._send(Order(kind="go", plan=plan, stop_after=stop_after))
        turns = Turns(stop_after)
        for line in self._lines():
            try:
                event = decode(line)
                turns.take(event)
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
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self._events)

    def _lines(self) -> Iterator[bytes]:
        """Whole lines until the pipe or the worker ends.

        A process that the worker has forked may hold the pipe open after it, so its end alone is
        not waited for.
        """
        rest = b""
        poll = select.poll()
        poll.register(self._events, select.POLLIN)
        while True:
            gone = self._process.poll() is not None
            if not poll.poll(0 if gone else _POLL_S * 1000):
                if gone:
                    return
                continue
            chunk = os.read(self._events, _CHUNK_BYTES)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise WorkerDied("a line without end on the event pipe", by_signal=False)
            yield from lines

    def _death(self) -> WorkerDied:
        deadline = time.monotonic() + _GRACE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.poll()
        if code is None:
            return WorkerDied("it closed its event pipe and went on", by_signal=False)
        if code < 0:
            return WorkerDied(f"signal {signal_name(-code)}", by_signal=True)
        return WorkerDied(f"exit {code}", by_signal=False)

    def _send(self, order: Order) -> None:
        """A worker that is gone is noticed at the other pipe's end."""
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(encode(order))
                stdin.flush()
        except BrokenPipeError:
            return


def signal_name(number: int) -> str:
    """`SIGSEGV`, or the number of one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
