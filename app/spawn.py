"""Starts the two children that speak events: the preflight by fork, the worker by spawn.

Both lead a process group, die with the supervisor's thread and write a crash trace into a file in
memory. The supervisor has one thread, so a fork copies no foreign lock.
"""

from __future__ import annotations

import errno
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
# How a profile of seccomp answers the calls that it does not allow.
_REFUSED = (errno.EPERM, errno.ENOSYS)
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
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    events_end, events = os.pipe()
    output_end, output = os.pipe()
    trace = os.memfd_create("trace")
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become(main, parent, events, (nothing, output, output), trace)
        _lead_a_group(pid)
    except OSError:
        for each in (events_end, output_end, trace):
            os.close(each)
        raise
    finally:
        for each in (events, output, nothing):
            os.close(each)
    return Child("preflight", pid, Ends(events_end, output_end, trace), said)


def _lead_a_group(pid: int) -> None:
    """Give a child its own group. It does so itself too: whoever comes first.

    Raises OSError, with the child ended, where a policy refuses that.
    """
    try:
        os.setpgid(pid, pid)
    except OSError as error:
        if error.errno in _REFUSED:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise


def _become(
    main: Callable[[BinaryIO], None],
    parent: int,
    events: int,
    streams: tuple[int, int, int],
    trace: int,
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
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
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
    """A limit, or a machine without memory: what ends elsewhere frees a place here.

    A policy's refusal and a container without devices are there next time too.
    """
    if error.filename == os.devnull:
        return BootError(
            f"{os.devnull} cannot be opened: {os.strerror(error.errno or 0)}",
            fault=Fault.CONFIG,
            expected=f"a /dev with the usual devices, {os.devnull} among them",
            actual=f"{type(error).__name__} errno {error.errno}",
            source="open(2)",
            next_step="start the container with its engine's own /dev, or mount the host's there",
        )
    if error.errno in _REFUSED:
        return BootError(
            f"the system refuses a call that every boot makes: {os.strerror(error.errno)}",
            fault=Fault.CONFIG,
            expected="fork, setpgid, memfd_create, pipe2 and execve are allowed",
            actual=f"{type(error).__name__} errno {error.errno}",
            source="seccomp(2)",
            next_step="start the container with its engine's default profile of seccomp, or take "
            "these calls into the site's own",
        )
    return BootError(
        f"no process could be started: {os.strerror(error.errno or 0)}",
        fault=Fault.TEMPORARY,
        expected="room for five processes of this user and their threads",
        actual=f"{type(error).__name__} errno {error.errno}",
        source="fork(2)",
        next_step="raise the limits (pids.max, ulimit -u and -n), or try again later",
    )
