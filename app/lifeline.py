"""What ties the processes of a boot together: they die with their parent and say where they were.

A leaf: imports nothing of the app. Constants are those of linux/prctl.h.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Makes a child write its Python stacks. A real-time signal, which no library here and no
# orchestrator uses: USR1, USR2 and HUP are the job's.
DUMP_SIGNAL = signal.SIGRTMIN + 7


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent's thread ends; False when it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trace_into(descriptor: int) -> None:
    """Write the Python stacks of all threads there at a crash, and at `DUMP_SIGNAL`.

    Both work while C code holds the interpreter's lock: the handlers are faulthandler's, in C.
    """
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True)
