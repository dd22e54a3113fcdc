"""Starts the two children that speak events: the preflight by fork, the worker by spawn.

Both lead a process group, die with the supervisor's thread and write a crash trace into a file in
memory. The supervisor has one thread, so a fork copies no foreign lock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn

from app.child import Child, Ends
from app.errors import BootError
from app.lifeline import close_all_but, die_with, trace_into
from app.outcome import Fault
from app.signals import ENDING, TOLD

_APP_PARENT = Path(__file__).resolve().parent.parent
# What our own handlers and Python's defaults must not pass on to a spawned program.
_DEFAULTS = (*ENDING, *TOLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGALRM)
_BUG = 70  # what a forked child leaves with after an exception; the supervisor judges it


def spawn_worker(environ: Mapping[str, str], said: Callable[[str], None]) -> Child:
    """Start `app.worker`. Raises BootError where no process or descriptor can be had."""
    try:
        return _spawned(environ, said)
    except OSError as error:
        raise _no_process(error) from error


def fork_preflight(main: Callable[[BinaryIO], None], said: Callable[[str], None]) -> Child:
    """Run `main` in a copy of this process, given the pipe of the events.

    Raises BootError where no process or descriptor can be had.
    """
    try:
        return _forked(main, said)
    except OSError as error:
        raise _no_process(error) from error


def _spawned(environ: Mapping[str, str], said: Callable[[str], None]) -> Child:
    path = os.pathsep.join(filter(None, (str(_APP_PARENT), environ.get("PYTHONPATH"))))
    orders, orders_end = os.pipe()
    events_end, events = os.pipe()
    output_end, output = os.pipe()
    trace = os.memfd_create("trace")
    # Our standard output, for a job's own; what libraries print must never get there.
    raw = os.dup(1)
    given = (events, trace, raw)
    try:
        pid = os.posix_spawn(
            sys.executable,
            # -P: what lies in the current folder must not shadow a module.
            [sys.executable, "-P", "-m", "app.worker", *map(str, (*given, os.getpid()))],
            {**environ, "PYTHONPATH": path},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, orders, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                *((os.POSIX_SPAWN_DUP2, each, each) for each in given),  # clears close-on-exec
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=_DEFAULTS,
        )
    except OSError:
        for each in (orders_end, events_end, output_end, trace):
            os.close(each)
        raise
    finally:
        for each in (orders, events, output, raw):
            os.close(each)
    return Child("worker", pid, Ends(events_end, output_end, trace, orders_end), said)


def _forked(main: Callable[[BinaryIO], None], said: Callable[[str], None]) -> Child:
    events_end, events = os.pipe()
    output_end, output = os.pipe()
    trace = os.memfd_create("trace")
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        for each in (events_end, events, output_end, output, trace):
            os.close(each)
        raise
    if pid == 0:
        _become(main, parent, events, output, trace)
    os.close(events)
    os.close(output)
    with contextlib.suppress(OSError):  # the child does it too: whoever comes first
        os.setpgid(pid, pid)
    return Child("preflight", pid, Ends(events_end, output_end, trace), said)


def _become(
    main: Callable[[BinaryIO], None], parent: int, events: int, output: int, trace: int
) -> NoReturn:
    """The forked child, which never returns into the supervisor's code."""
    code = _BUG
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for each in _DEFAULTS:
            # Under a limit of file sizes a write must end in an error, which can be told.
            if each != signal.SIGXFSZ:
                signal.signal(each, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        close_all_but(events, trace)
        trace_into(trace)
        if die_with(parent):
            main(os.fdopen(events, "wb"))
            code = 0
    finally:
        try:
            if code:
                traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _no_process(error: OSError) -> BootError:
    """A limit, or a machine without memory: what ends elsewhere frees a place here."""
    return BootError(
        f"no process could be started: {os.strerror(error.errno or 0)}",
        fault=Fault.TEMPORARY,
        expected="room for five processes of this user and their threads",
        actual=f"{type(error).__name__} errno {error.errno}",
        source="fork(2)",
        next_step="raise the limits (pids.max, ulimit -u and -n), or try again later",
    )
