"""A process that does all writing of files, so that a volume that hangs stops it and not the boot.

A system call on a dead network volume waits uninterruptibly: no deadline, signal or KILL ends it.
The supervisor asks this process and waits for the answer as long as it wants to. The child ignores
the signals that end a boot, and goes when its end of the socket is closed: a report that was handed
over is still written when the supervisor is killed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

from app.report_file import Place, ReportFile
from app.text_file import OnlyIf, write_text

_IGNORED = frozenset(
    (
        *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN),
    )
)
# A fork of the supervisor that keeps our end of the socket open hides its death from the child.
_PARENT_CHECK_S = 1.0
_CHUNK = 256 * 1024  # bytes a read or write of the socket
_REAP_S = 0.2  # how long a killed child may take to be gone; one in an uninterruptible wait stays


class FileWriter:
    """Writes the report into `folder`, and other files, in a process of its own.

    Forks at once: the caller has one thread. Every call raises OSError as the child met it, and
    TimeoutError when the child does not answer in time, which gives it up for good. A child that
    is found dead is replaced once, and the call repeated.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: Place | None = None
        self._given_up = False
        self._n = 0
        self.restarted = False
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # A signal between the fork and the child's own dispositions would run our handlers there.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            parent, self.pid = os.getpid(), os.fork()
            if self.pid == 0:
                _be_the_child(theirs, ReportFile(self._folder, known=self._place), parent)
            with contextlib.suppress(OSError):  # it does so itself too: whoever comes first
                os.setpgid(self.pid, self.pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()
        ours.settimeout(0)
        self._socket = ours
        self._out = bytearray()
        self._in = b""

    @property
    def alive(self) -> bool:
        """Whether the process runs; it is not reaped by asking."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, flags) is None
        except ChildProcessError:  # somebody else has reaped it
            return False

    def fileno(self) -> int:
        """Our end of the socket, for forks of the supervisor to close."""
        return self._socket.fileno()

    def report(self, report_json: str, report_id: str, deadline_s: float) -> bool:
        """Replace the report; True where another boot's stood in the place of ours meanwhile."""
        payload = report_json.encode("utf-8", "backslashreplace")
        answer = self._ask({"op": "report", "report_id": report_id}, payload, deadline_s)
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
        order = {"op": "text", "path": str(path), "replace": replace, "only_if": only_if}
        self._ask(order, text.encode("utf-8", "backslashreplace"), deadline_s)

    def close(self, deadline_s: float) -> bool:
        """End the process; False where it had to be killed. Never waits longer than asked for."""
        self._socket.close()
        if self._reaped(0 if self._given_up else deadline_s):
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

    def _ask(self, order: dict[str, Any], payload: bytes, deadline_s: float) -> dict[str, Any]:
        end = time.monotonic() + deadline_s
        if self._given_up:
            raise TimeoutError(errno.ETIMEDOUT, "the process that writes files hangs in a write")
        try:
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
                    return answer
                continue
            self._wait(select.POLLIN, end)
            with contextlib.suppress(BlockingIOError):
                self._in += _received(self._socket)

    def _wait(self, what: int, end: float) -> None:
        gate = select.poll()
        gate.register(self._socket, what)
        if not gate.poll(max(0.0, end - time.monotonic()) * 1000):
            self._given_up = True
            raise TimeoutError(
                errno.ETIMEDOUT, "the process that writes files does not answer: its volume hangs"
            )


def _received(one: socket.socket) -> bytes:
    data = one.recv(_CHUNK)
    if not data:
        raise BrokenPipeError(errno.EPIPE, "the process that writes files has ended")
    return data


def _be_the_child(channel: socket.socket, report: ReportFile, parent: int) -> NoReturn:
    """The child's whole life. Nothing of the parent's may run here, whatever happens."""
    try:
        gc.disable()  # collecting the parent's garbage could close numbers that are ours by now
        for each in _IGNORED:
            signal.signal(each, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _close_all_but(channel.fileno())
        _serve(channel, report, parent)
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """A pipe that we held open would not end for its reader, however long we hang."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        if number != kept:
            os.dup2(nowhere, number)
    try:
        found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        found = list(range(3, 4096))
    for number in found:
        if number > 2 and number != kept:  # noqa: PLR2004 - the standard streams
            with contextlib.suppress(OSError):
                os.close(number)


def _serve(channel: socket.socket, report: ReportFile, parent: int) -> None:
    """Answer orders until the other end is closed. An order that came in whole is carried out."""
    gate = select.poll()
    gate.register(channel, select.POLLIN)
    data = bytearray()
    order: dict[str, Any] = {}
    while True:
        if not order and b"\n" in data:
            size = data.index(b"\n")
            order = json.loads(data[:size])
            del data[: size + 1]
        if order and len(data) >= order["size"]:
            payload = data[: order["size"]].decode("utf-8")
            del data[: order["size"]]
            answer = {"n": order["n"], **_carry_out(order, payload, report)}
            order = {}
            # Who asked may be gone: the next read says so.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                channel.sendall(json.dumps(answer).encode("ascii") + b"\n")
            continue
        if not gate.poll(_PARENT_CHECK_S * 1000):
            if os.getppid() != parent:
                return
            continue
        more = channel.recv(_CHUNK)
        if not more:
            return
        data += more


def _carry_out(order: dict[str, Any], payload: str, report: ReportFile) -> dict[str, Any]:
    try:
        if order["op"] == "report":
            moved = report.write_text(payload, order["report_id"])
            return {"displaced": bool(moved), "place": report.place}
        write_text(Path(order["path"]), payload, replace=order["replace"], only_if=order["only_if"])
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        number = getattr(error, "errno", None) or errno.EINVAL
        text = getattr(error, "strerror", None) or str(error)
        path = getattr(error, "filename", None)
        return {"errno": number, "error": text, "path": None if path is None else str(path)}
    return {}
