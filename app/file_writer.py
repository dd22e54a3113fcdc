"""A process that does all writing of files, so that a volume that hangs stops it and not the boot.

A system call on a dead network volume waits uninterruptibly: no deadline, signal or KILL ends it.
The supervisor asks this process and waits for the answer as long as it wants to. The child ignores
the signals that end a boot, and goes when its end of the socket is closed: a report that was handed
over is still written when the supervisor is killed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.file_server import be_the_writer
from app.report_file import Place, ReportFile
from app.text_file import OnlyIf

_CHUNK = 256 * 1024  # bytes a read or write of the socket
_REAP_S = 0.2  # how long a killed child may take to be gone; one in an uninterruptible wait stays


class FileWriter:
    """Writes the report into `folder`, and other files, in a process of its own.

    Forks at once: the caller has one thread. Every call raises OSError as the child met it, and
    TimeoutError when the child does not answer in time. A report then raises it at once until the
    answer has come after all; a text, which may lie on another volume, gets a child of its own. A
    child that is found dead is replaced once, and the call repeated. A call after `close` starts
    anew, as after a start that failed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: Place | None = None
        self._n = 0
        self.pid = -1
        self.restarted = False
        self._beside: FileWriter | None = None
        self._hangs, self._closed = False, True
        with contextlib.suppress(OSError):  # no process to be had: the first call says so
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # A signal between the fork and the child's own dispositions would run our handlers there.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            parent, self.pid = os.getpid(), os.fork()
            if self.pid == 0:
                be_the_writer(theirs, ReportFile(self._folder, known=self._place), parent)
            with contextlib.suppress(OSError):  # it does so itself too: whoever comes first
                os.setpgid(self.pid, self.pid)
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            theirs.close()
        ours.settimeout(0)
        self._socket = ours
        self._out = bytearray()
        self._in = b""
        self._hangs = self._closed = False

    @property
    def pids(self) -> list[int]:
        """Its processes: the one, and the one beside it."""
        return [self.pid] if self._beside is None else [self.pid, *self._beside.pids]

    @property
    def alive(self) -> bool:
        """Whether the process runs; it is not reaped by asking."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, flags) is None
        except OSError:  # somebody else has reaped it, or it never was
            return False

    def report(
        self, report_json: str, report_id: str, deadline_s: float, *, insist: bool = False
    ) -> bool:
        """Replace the report; True where another boot's stood in the place of ours meanwhile.

        `insist` waits also for a child that hangs: the last report is worth its deadline.
        """
        payload = report_json.encode("utf-8", "backslashreplace")
        order = {"op": "report", "report_id": report_id}
        answer = self._ask(order, payload, deadline_s, insist=insist)
        self._place = tuple(answer["place"])
        return bool(answer["displaced"])

    def text(
        self,
        path: Path,
        text: str,
        *,
        deadline_s: float,
        replace: bool,
        only_if: OnlyIf = "any",
    ) -> None:
        """Write a text file: see `app.text_file.write_text`."""
        if self._still_hangs():
            self._beside = self._beside or FileWriter(self._folder)
            self._beside.text(path, text, deadline_s=deadline_s, replace=replace, only_if=only_if)
            return
        order = {"op": "text", "path": str(path), "replace": replace, "only_if": only_if}
        self._ask(order, text.encode("utf-8", "backslashreplace"), deadline_s)

    def remove(self, paths: Sequence[Path], deadline_s: float) -> None:
        """Remove files and whole folders, where they are; what cannot be removed stays."""
        self._ask({"op": "remove", "paths": [str(path) for path in paths]}, b"", deadline_s)

    def close(self, deadline_s: float) -> bool:
        """End the process; False where it had to be killed. Never waits longer than asked for."""
        if self._beside is not None:
            self._beside.close(_REAP_S)
        if self._closed:
            return True
        self._socket.close()
        self._closed = True
        if self._reaped(0 if self._hangs else deadline_s):
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._reaped(_REAP_S)
        return False

    def _reaped(self, deadline_s: float) -> bool:
        end = time.monotonic() + deadline_s
        while True:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:  # somebody else has reaped it
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)

    def _still_hangs(self) -> bool:
        if self._hangs and not self._closed:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                try:
                    self._answer(0.0)
                except TimeoutError:
                    return True
        return False

    def _ask(
        self, order: dict[str, Any], payload: bytes, deadline_s: float, *, insist: bool = False
    ) -> dict[str, Any]:
        end = time.monotonic() + deadline_s
        if self._closed:
            self._start()
        try:
            if self._hangs:
                self._answer(end if insist else 0.0)
            answer = self._exchange(order, payload, end)
        except (BrokenPipeError, ConnectionResetError):
            if self.restarted:
                raise
            self.restarted = True
            self._socket.close()
            self._reaped(_REAP_S)
            self._start()
            answer = self._exchange(order, payload, end)
        if answer.get("error"):
            raise OSError(answer["errno"], answer["error"], answer["path"])
        return answer

    def _exchange(self, order: dict[str, Any], payload: bytes, end: float) -> dict[str, Any]:
        # Numbered, and kept until it is sent: an exception of a signal handler may come between.
        self._n += 1
        head = json.dumps({**order, "n": self._n, "size": len(payload)})
        self._out += head.encode("ascii") + b"\n" + payload
        return self._answer(end)

    def _answer(self, end: float) -> dict[str, Any]:
        """The answer to the last order, after what is left of it is sent; earlier ones are past."""
        while self._out:
            self._wait(select.POLLOUT, end)
            with contextlib.suppress(BlockingIOError):
                del self._out[: self._socket.send(self._out[:_CHUNK])]
        while True:
            line, found, rest = self._in.partition(b"\n")
            if found:
                self._in = rest
                answer: dict[str, Any] = json.loads(line)
                if answer["n"] == self._n:
                    self._hangs = False
                    return answer
                continue
            self._wait(select.POLLIN, end)
            with contextlib.suppress(BlockingIOError):
                self._in += _received(self._socket)

    def _wait(self, what: int, end: float) -> None:
        gate = select.poll()
        gate.register(self._socket, what)
        if not gate.poll(max(0.0, end - time.monotonic()) * 1000):
            self._hangs = True
            raise TimeoutError(
                errno.ETIMEDOUT, "the process that writes files does not answer: its volume hangs"
            )


def _received(one: socket.socket) -> bytes:
    data = one.recv(_CHUNK)
    if not data:
        raise BrokenPipeError(errno.EPIPE, "the process that writes files has ended")
    return data
