"""What ties the processes of a boot together: they die with their parent and say where they were.

A leaf: imports nothing of the app. Constants are those of linux/prctl.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
# Makes a child write its Python stacks. A real-time signal, which no library here and no
# orchestrator uses: USR1, USR2 and HUP are the job's.
DUMP_SIGNAL = signal.SIGRTMIN + 7


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent's thread ends; False when it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans(*, adopt: bool = True) -> bool:
    """Become the parent of every descendant whose own parent ends, so that none is lost.

    Or be it no more. Returns whether it was before.
    """
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))
    return bool(before.value)


def close_all_but(*kept: int) -> None:
    """Close what a fork has copied, standard streams apart: a pipe held open never ends."""
    try:
        found = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers
    except OSError:
        found = list(range(4096))
    for number in found:
        if number > 2 and number not in kept:  # noqa: PLR2004 - the standard streams
            with contextlib.suppress(OSError):  # the listing's own has gone already
                os.close(number)


def trace_into(descriptor: int) -> None:
    """Write the Python stacks of all threads there at a crash, and at `DUMP_SIGNAL`.

    Both work while C code holds the interpreter's lock: the handlers are faulthandler's, in C.
    """
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True)
