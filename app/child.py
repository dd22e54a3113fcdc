"""A child as the supervisor holds it: its pipes, its trace, its end. Nothing here ever waits."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.events import MAX_LINE_BYTES, Order, ProtocolError, encode
from app.lifeline import DUMP_SIGNAL

_CHUNK_BYTES = 65536
_LAST_CHUNKS = 64  # a pipe holds at most a few of them (1 MiB, /proc/sys/fs/pipe-max-size)
_KEPT_LINES = 50
_LONGEST_LINE = 2000
# Lines of a child's output that reach the log: a burst, and a rate for ever.
_BURST_LINES = 2000
_LINES_PER_S = 200
_TRACE_BYTES = 256 * 1024  # of a crash trace: a thread is some kB
# Colours, cursor moves, and what else a terminal would act on or `grep` calls binary.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_BREAKS = re.compile(r"[\r\n]+")  # a progress bar's carriage returns end lines too


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends of a child's pipes; `trace` is a file in memory, `orders` None where it takes none.

    All are set not to block.
    """

    events: int
    output: int
    trace: int
    orders: int | None = None


class Child:
    """A process of ours, leader of a group of its own."""

    def __init__(self, who: str, pid: int, ends: Ends, said: Callable[[str], None]) -> None:
        self.who, self.pid = who, pid
        self.status: int | None = None  # as os.waitpid tells it, once it is reaped
        self.events_end = self.output_end = False
        self.given_up = False  # not even KILL has ended it
        self._ends = ends
        self._outbox = b""
        self._event_rest = b""
        self._lines = _Lines(said)
        for descriptor in (ends.events, ends.output, ends.orders):
            if descriptor is not None:
                os.set_blocking(descriptor, False)

    # What there is to wait for.

    def readable(self, *, events: bool) -> list[int]:
        """Descriptors that tell something when they become readable."""
        found = [self._ends.events] if events and not self.events_end else []
        return found if self.output_end else [*found, self._ends.output]

    def writable(self) -> list[int]:
        """The descriptor of the orders, while some wait to be taken."""
        return [self._ends.orders] if self._outbox and self._ends.orders is not None else []

    # What it says and prints.

    def take_events(self) -> list[bytes] | None:
        """The whole lines that have come, None where nothing has.

        Raises ProtocolError for a line without end.
        """
        chunk = _read(self._ends.events)
        if chunk is None:
            return None
        self.events_end = not chunk
        *lines, self._event_rest = (self._event_rest + chunk).split(b"\n")
        if len(self._event_rest) > MAX_LINE_BYTES:
            raise ProtocolError("a line without end on the event pipe")
        return lines

    def take_output(self) -> bool:
        """Log what has come, at most one chunk of it: a flood must not hold up the rest.

        Whether anything had come; the end of all output is something.
        """
        chunk = _read(self._ends.output)
        if chunk is not None:
            self.output_end = not chunk
            self._lines.feed(chunk)
        return chunk is not None

    def last_lines(self) -> tuple[str, ...]:
        """The last lines that it printed."""
        return tuple(self._lines.last)

    def trace(self) -> tuple[str, ...]:
        """What faulthandler wrote so far."""
        text = os.pread(self._ends.trace, _TRACE_BYTES, 0).decode("utf-8", "replace")
        return tuple(line.rstrip() for line in text.splitlines())

    def trace_bytes(self) -> int:
        """How much it wrote."""
        return os.fstat(self._ends.trace).st_size

    # What it is told.

    def order(self, order: Order) -> None:
        """Send an order, now as far as the pipe takes it and later in `send_waiting`."""
        self._outbox += encode(order)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Go on sending. A child that is gone is noticed elsewhere."""
        if self._ends.orders is None:
            return
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._ends.orders, self._outbox) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outbox = b""

    def signal(self, number: int) -> None:
        """To the process alone, as an orchestrator would."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """To the process and what it has started, but for what has left the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ask_for_stacks(self) -> None:
        """Have it write the Python stacks of its threads into the trace."""
        self.signal(DUMP_SIGNAL)

    # Its end.

    def ended(self) -> bool:
        """Whether it has ended; reaps it then."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by somebody else: nothing is known of its end
                pid, status = self.pid, 0
            if pid:
                self.status = status
        return self.status is not None

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it, None where it left by itself or still runs."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)

    @property
    def exit_code(self) -> int | None:
        """What it left with, None where a signal ended it or it still runs."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    def close(self) -> None:
        """Log what is left in the pipe, and close our ends; the child has ended or is given up."""
        for _ in range(_LAST_CHUNKS):  # something that it has started may go on writing
            if self.output_end or not self.take_output():
                break
        self._lines.flush()
        for descriptor in (self._ends.events, self._ends.output, self._ends.trace):
            os.close(descriptor)
        if self._ends.orders is not None:
            os.close(self._ends.orders)


class _Lines:
    """Cuts output into clean lines, keeps the last ones, and passes on no more than can be read."""

    def __init__(self, said: Callable[[str], None]) -> None:
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._said = said
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._budget = float(_BURST_LINES)
        self._since = time.monotonic()
        self._left_out = 0

    def feed(self, chunk: bytes) -> None:
        """One chunk, the empty one at the end."""
        *lines, self._rest = _BREAKS.split(self._rest + self._decoder.decode(chunk))
        if not chunk or len(self._rest) > _CHUNK_BYTES:
            lines.append(self._rest)
            self._rest = ""
        now = time.monotonic()
        self._budget = min(_BURST_LINES, self._budget + (now - self._since) * _LINES_PER_S)
        self._since = now
        for line in lines:
            self._take(line)

    def flush(self) -> None:
        """Pass on an unfinished line, and say what was left out."""
        self.feed(b"")
        self._tell_left_out()

    def _take(self, line: str) -> None:
        clean = _ESCAPES.sub("", line[: 2 * _LONGEST_LINE]).rstrip()[:_LONGEST_LINE]
        if not clean:
            return
        self.last.append(clean)
        if self._budget < 1:
            self._left_out += 1
            return
        self._budget -= 1
        self._tell_left_out()
        self._said(clean)

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._said(f"({self._left_out} lines left out: more than the log can take)")
            self._left_out = 0


def _read(descriptor: int) -> bytes | None:
    """What is there, empty at the end, None where there is nothing yet."""
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def kill(child: Child) -> None:
    """End it and what it has started, now; also where it has left the group that it led."""
    child.signal_group(signal.SIGKILL)
    child.signal(signal.SIGKILL)
