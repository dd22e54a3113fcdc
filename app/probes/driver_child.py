"""The process that asks the driver: `python -I -S -B driver_child.py PARENT MODULE ARGUMENT...`.

Any call into the driver can hang or crash, so each library has such a process of its own. PARENT is
the process that listens; this one dies with it. MODULE, `cuda_child` or `nvml_child`, is a file
beside this one; its `ask(tell, *arguments)` makes the calls. Standard library only, nothing of the
app: a start takes some 20 ms.

What is told is one line of JSON for each thing. Common to both: `call` before each call, so that
the reader knows where it hangs or dies; `load_error` where there is no library to ask;
`init_error`, the number of the call that failed, 0 for none; `done`, the last word.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with(parent: int) -> bool:
    """The kernel kills this process when its parent ends; False when that has happened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash would leave the environment in it
    return os.getppid() == parent


def _teller() -> Callable[..., None]:
    """What writes a line to the standard output that the process was started with.

    What the libraries print themselves goes nowhere.
    """
    descriptor = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(**facts: object) -> None:
        os.write(descriptor, json.dumps(facts).encode() + b"\n")

    return tell


if __name__ == "__main__" and _die_with(int(sys.argv[1])):
    sys.path.append(str(Path(__file__).parent))  # last: it must hide no module of Python's
    telling = _teller()
    importlib.import_module(sys.argv[2]).ask(telling, *sys.argv[3:])
    telling(done=True)
    os._exit(0)  # not through the library's own end, which can crash and would tell nothing
