"""The worker as the supervisor sees it: started early, told to go, listened to, ended."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from app.events import MAX_LINE_BYTES, Ended, Event, Order, ProtocolError, Turns, decode, encode
from app.facts.words import signal_name
from app.plan import Plan

_APP_PARENT = Path(__file__).resolve().parent.parent
_POLL_S = 0.5  # how soon a death is noticed whose pipe a child of the worker keeps open
_GRACE_S = 5.0  # from the end of its pipe to the end of the worker
_CHUNK_BYTES = 65536
_KEPT_LINES = 50
_LONGEST_LINE = 2000
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours and cursor moves


class WorkerDied(Exception):  # noqa: N818 - an event in the worker's life, told as one
    """The worker ended before its last event, or said something that is none."""

    def __init__(self, text: str, *, by_signal: bool) -> None:
        super().__init__(text)
        self.by_signal = by_signal


class WorkerProcess:
    """A child running `app.worker`. What it prints goes to `said`, line by line.

    It never writes to our own standard error: a reader that goes away would kill it.
    """

    def __init__(self, plan: Plan, environ: Mapping[str, str], said: Callable[[str], None]) -> None:
        self._events, write_end = os.pipe()
        path = os.pathsep.join(filter(None, (str(_APP_PARENT), environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                # -P: what lies in the current folder must not shadow a module.
                [sys.executable, "-P", "-m", "app.worker", str(write_end), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                env={**environ, "PYTHONPATH": path},
            )
        except OSError:
            os.close(self._events)
            raise
        finally:
            os.close(write_end)
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._said = said
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
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

    def last_lines(self) -> list[str]:
        """The last lines that the worker printed."""
        self._reader.join(_POLL_S)
        return list(self._last)

    def end(self) -> None:
        """Kill the worker if it still runs, and reap it."""
        self._process.kill()
        self._process.wait()
        self._reader.join(_POLL_S)  # longer only where a child of the worker holds the pipe
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self._events)

    def _read_output(self) -> None:
        """Pass on what the worker prints; a progress bar's carriage returns end lines too."""
        output = self._process.stdout
        if output is None:
            return
        with output:
            text = io.TextIOWrapper(output, encoding="utf-8", errors="replace", newline=None)
            for line in text:
                clean = _ESCAPES.sub("", line).rstrip()
                if clean:
                    self._last.append(clean[:_LONGEST_LINE])
                    self._said(clean[:_LONGEST_LINE])

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
