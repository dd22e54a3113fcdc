"""Facts about what ties the processes of a boot together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.lifeline import DUMP_SIGNAL
from app.signals import ENDING, TOLD
from tests.boots import ROOT, runs, until

SLEEP = "import time; time.sleep(60)"


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own that runs this; its group ends with the context."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_child_dies_with_its_parent_however_that_ends() -> None:
    """By the kernel's hand, so also when the parent is killed without a word."""
    child = "import os; from app.lifeline import die_with; assert die_with(os.getppid()); "
    child += f"print(os.getpid(), flush=True); {SLEEP}"
    with python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])") as it:
        pid = int(said(it))
        assert runs(pid)
        it.kill()
        until(lambda: not runs(pid), "the child's end")


def test_a_child_whose_parent_is_gone_already_is_told_so() -> None:
    """The kernel tells nothing of a death before it was asked to."""
    # A grandchild: its parent, the child in between, is not the one that is asked for.
    code = (
        "import os, sys; from app.lifeline import die_with; asked = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        print(die_with(asked), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait(); os._exit(0)\n"
        "os.wait()"
    )
    with python(code) as process:
        assert said(process) == "False"


def test_orphans_come_to_the_one_that_adopts_them() -> None:
    code = (
        "import os, time; from app.lifeline import adopt_orphans; adopt_orphans()\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); os.close(writing); os.read(reading, 1); os._exit(7)\n"
        "    os._exit(0)\n"
        "os.wait(); os.close(writing)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)"
    )
    with python(code) as process:
        assert said(process) == "7"


TRACED = "import os; from app.lifeline import trace_into; fd = os.memfd_create('t'); "
TRACED += "trace_into(fd); print(fd, flush=True); "
# In C, with the interpreter's lock held, for a mutex that nobody will release.
WEDGED = (
    "import ctypes\n"
    "def wedged():\n"
    "    mutex = ctypes.create_string_buffer(64); libc = ctypes.PyDLL(None)\n"
    "    libc.pthread_mutex_lock(mutex); libc.pthread_mutex_lock(mutex)\n"
    "wedged()"
)


def trace_of(process: subprocess.Popen[str], descriptor: int) -> str:
    return Path(f"/proc/{process.pid}/fd/{descriptor}").read_text()


@pytest.mark.parametrize("code", [f"def slept():\n    {SLEEP}\nslept()", WEDGED])
def test_a_process_that_hangs_says_where(code: str) -> None:
    """Also one that hangs in C and lets no Python run."""
    name = "slept" if "slept" in code else "wedged"
    with python(f"{TRACED}\n{code}") as process:
        descriptor = int(said(process))
        end = time.monotonic() + 20
        while f"in {name}" not in trace_of(process, descriptor):
            assert time.monotonic() < end, trace_of(process, descriptor)
            os.kill(process.pid, DUMP_SIGNAL)
            time.sleep(0.1)
        assert process.poll() is None  # it goes on


def test_the_signal_that_asks_is_nobody_elses() -> None:
    """USR1, USR2 and HUP are a job's; 32 to 34 are the C library's own."""
    assert DUMP_SIGNAL not in {*ENDING, *TOLD}
    assert signal.SIGRTMIN < DUMP_SIGNAL < signal.SIGRTMAX
