"""Runs the processes that call into the driver, and reads what they tell under a deadline.

One thread and one selector: the kernel ends a child with the thread that started it, so none is
started by a thread that ends before it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from app.facts.board import NvmlFacts
from app.facts.words import signal_name
from app.probes import driver_child
from app.probes.driver_answers import AnswerT, CudaAnswer, told_by

# 16 boards tell some 80 lines of 60 bytes each, and 64 processes of 60 bytes.
_MAX_BYTES = 1024**2
_CHUNK_BYTES = 65_536  # what a pipe holds
_REAP_S = 1.0  # for a killed child to go; one that hangs inside the kernel stays
_TICK_S = 0.05  # between looks at whether a child still runs
# A child's last word: nothing comes after it, even if something keeps its output open.
_LAST_LINE = b'\n{"done": true}\n'
# NVML's share of the deadline: when it hangs, time is left for CUDA, which waits for it.
_NVML_SHARE = 2 / 3


def ask_driver(
    environ: Mapping[str, str],
    deadline_s: float,
    *,
    devices: Path,
    proc: Path,
    with_nvml: bool = True,
) -> tuple[CudaAnswer, NvmlFacts | None]:
    """Ask CUDA and NVML at the same time; NVML's is None where it was not asked."""
    cuda = _Child("cuda_child", [str(devices)], environ, deadline_s)
    nvml = None
    if with_nvml:
        about = [str(proc), _folder_of("pynvml")]
        nvml = _Child("nvml_child", about, environ, deadline_s * _NVML_SHARE)
    try:
        _listen(cuda, nvml)
    finally:
        for child in filter(None, (cuda, nvml)):
            child.end()
    return cuda.told(CudaAnswer), nvml.told(NvmlFacts) if nvml else None


def _folder_of(module: str) -> str:
    """Where a module would be imported from; empty where it would not."""
    try:
        spec = PathFinder.find_spec(module)
    except (ImportError, OSError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    path = Path(spec.origin)
    return str(path.parent.parent if path.name.startswith("__init__.") else path.parent)


class _Child:
    """A process that tells lines of JSON (`driver_child`). `problem` says why not all.

    `start_errno` is the number of why it could not even start, 0 where it did.
    """

    def __init__(
        self, module: str, about: Sequence[str], environ: Mapping[str, str], deadline_s: float
    ) -> None:
        self.output = b""
        self.problem = ""
        self.start_errno = 0
        self.deadline_s = deadline_s
        self.end_at = time.monotonic() + deadline_s
        self.process: subprocess.Popen[bytes] | None = None
        # Neither the user's modules nor site-packages, which start slowly and can break.
        command = [sys.executable, "-I", "-S", "-B"]
        try:
            self.process = subprocess.Popen(
                [*command, driver_child.__file__, str(os.getpid()), module, *about],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a path or variable
            self.problem = f"the probing process could not start: {error}"
            self.start_errno = getattr(error, "errno", None) or errno.EINVAL

    @property
    def over(self) -> bool:
        """Whether nothing is worth waiting for: its last word has come, or it has a problem."""
        return self.output.endswith(_LAST_LINE) or bool(self.problem)

    def fileno(self) -> int:
        """Its output, for a selector; -1 where it could not start."""
        pipe = self.process.stdout if self.process is not None else None
        return -1 if pipe is None else pipe.fileno()

    def told(self, kind: type[AnswerT]) -> AnswerT:
        """All that it has told, once it has ended or its time is over."""
        return replace(told_by(self.output, self.problem, kind), start_errno=self.start_errno)

    def go(self) -> None:
        """Let it do what it waits with: its standard input ends."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def read(self) -> bool:
        """Take what has come, a pipe's all; False where nothing more is to come."""
        piece = os.read(self.fileno(), _CHUNK_BYTES)
        self.output += piece
        if len(self.output) > _MAX_BYTES:
            self.problem = "the probing process told more than it can have to tell"
        return bool(piece) and not self.over

    def late(self) -> bool:
        """Whether its time is over, which is its problem then."""
        if time.monotonic() < self.end_at:
            return False
        self.problem = f"no answer within {round(self.deadline_s, 2):g} s"
        return True

    def left(self) -> bool:
        """Whether the process has ended by itself; how, when that was no good end.

        It is not reaped yet: until then its number, and its group's, are nobody else's.
        """
        if self.process is None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            ended = os.waitid(os.P_PID, self.process.pid, flags)
        except ChildProcessError:  # somebody else has buried it
            return True
        if ended is None:
            return False
        if ended.si_code != os.CLD_EXITED:
            self.problem = f"the probing process died of signal {signal_name(ended.si_status)}"
        elif ended.si_status:
            self.problem = f"the probing process ended with exit {ended.si_status}"
        return True

    def end(self) -> None:
        """Leave nothing behind but a process that hangs inside the kernel and cannot die.

        What the driver has started in it (nvidia-modprobe, a daemon) is of its group.
        """
        self.go()
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A short deadline is a short patience: the stage's own one comes soon after.
            self.process.wait(timeout=min(_REAP_S, self.deadline_s / 20))
        if self.process.stdout is not None:
            self.process.stdout.close()


def _listen(cuda: _Child, nvml: _Child | None) -> None:
    """Read both until each has ended or its time is over; CUDA goes on when NVML is through.

    The end of a process, and not only of its output, which a descendant may hold open.
    """
    waiting = [child for child in (cuda, nvml) if child is not None and child.process is not None]
    with selectors.DefaultSelector() as selector:
        for child in waiting:
            selector.register(child, selectors.EVENT_READ, child)
        while waiting:
            if nvml not in waiting:
                cuda.go()
            wait_s = min(_TICK_S, min(child.end_at for child in waiting) - time.monotonic())
            # Whoever has ended before this look at the outputs has nothing more to tell after it.
            gone = [child for child in waiting if child.left()]
            # Without anything registered a selector waits all the same.
            ready = [key.data for key, _ in selector.select(0 if gone else max(0.0, wait_s))]
            at_end = [child for child in ready if not child.read()]
            for child in at_end:
                selector.unregister(child)
            for child in tuple(waiting):
                silent = child in gone and child not in ready
                if silent or (child in at_end and child.over) or child.late():
                    waiting.remove(child)
                    with contextlib.suppress(KeyError):  # after the end of its output
                        selector.unregister(child)
