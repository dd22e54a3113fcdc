"""The life of the process that writes files: orders in, answers out, over one socket.

An order is a line of JSON (`n`, `op`, `size` and what the operation needs) and `size` bytes of
UTF-8, an answer is a line of JSON with the same `n`. The other side is `app.file_writer`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import shutil
import signal
import socket
from pathlib import Path
from typing import Any, NoReturn

from app.lifeline import close_all_but
from app.report_file import ReportFile
from app.signals import ENDING, TOLD
from app.text_file import write_text

_IGNORED = (*ENDING, *TOLD, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)
# A fork of the supervisor that keeps our end of the socket open hides its death from the child.
_PARENT_CHECK_S = 1.0
_CHUNK = 256 * 1024  # bytes a read of the socket


def be_the_writer(channel: socket.socket, report: ReportFile, parent: int) -> NoReturn:
    """The child's whole life. Nothing of the parent's may run here, whatever happens."""
    try:
        gc.disable()  # collecting the parent's garbage could close numbers that are ours by now
        for each in _IGNORED:
            signal.signal(each, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _let_go_of_streams(channel.fileno())
        close_all_but(channel.fileno())
        _serve(channel, report, parent)
    finally:
        os._exit(0)


def _let_go_of_streams(kept: int) -> None:
    """Held open, they would not end for their reader, however long we hang.

    Where there is no /dev/null the report says so, if it can be written.
    """
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            if number != kept:
                os.dup2(nowhere, number)


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
        if order["op"] == "remove":
            _remove(order["paths"])
            return {}
        write_text(Path(order["path"]), payload, replace=order["replace"], only_if=order["only_if"])
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        number = getattr(error, "errno", None) or errno.EINVAL
        text = getattr(error, "strerror", None) or str(error)
        path = getattr(error, "filename", None)
        return {"errno": number, "error": text, "path": None if path is None else str(path)}
    return {}


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            try:
                Path(path).unlink()
            except IsADirectoryError:
                shutil.rmtree(path, ignore_errors=True)
