"""Runs the processes that call into the driver, and reads what they tell under a deadline.

One thread and one selector: the kernel ends a child with the thread that started it, so none is
started by a thread that ends before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from app.facts.board import NvmlFacts
from app.facts.gpu import DeviceFacts
from app.facts.words import one_line, signal_name
from app.probes import cuda_child, nvml_child

# 16 boards tell some 80 lines of 60 bytes each, and 64 processes of 60 bytes.
_MAX_BYTES = 1024**2
_CHUNK_BYTES = 65_536
_REAP_S = 1.0  # for a killed child to go; one that hangs inside the kernel stays
_TICK_S = 0.05  # between looks at whether a child still runs
# A child's last word: nothing comes after it, even if something keeps its output open.
_LAST_LINE = b'{"done": true}\n'
# NVML's share of the deadline: when it hangs, time is left for CUDA, which waits for it.
_NVML_SHARE = 2 / 3

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class CudaAnswer:
    """What `app.probes.cuda_child` told; the fields of `app.facts.gpu.GpuFacts`, and of memory."""

    libcuda: str = ""
    load_error: str = ""
    cuda_version: int | None = None
    call: str = ""
    init_error: int | None = None
    n_devices: int | None = None
    devices: tuple[DeviceFacts, ...] = ()
    unopenable: Mapping[str, int] = field(default_factory=dict)
    free_bytes: int | None = None
    context_error: int = 0
    problem: str = ""


def ask_driver(
    environ: Mapping[str, str],
    deadline_s: float,
    *,
    devices: Path,
    proc: Path,
    with_nvml: bool = True,
) -> tuple[CudaAnswer, NvmlFacts | None]:
    """Ask CUDA and NVML at the same time; NVML's is None where it was not asked."""
    # -I -S: neither the user's modules nor site-packages, which start slowly and can break;
    # nvidia-ml-py lies in the latter.
    cuda = _Child(["-I", "-S", "-B", cuda_child.__file__], devices, environ, deadline_s)
    nvml = None
    if with_nvml:
        nvml = _Child(["-I", "-B", nvml_child.__file__], proc, environ, deadline_s * _NVML_SHARE)
    try:
        _listen(cuda, nvml)
    finally:
        for child in filter(None, (cuda, nvml)):
            child.end()
    told = told_by(nvml.output, nvml.problem, NvmlFacts, "board", "boards") if nvml else None
    return told_by(cuda.output, cuda.problem, CudaAnswer, "device", "devices"), told


class _Child:
    """A process that tells lines of JSON. `problem` says why it did not tell all."""

    def __init__(
        self, program: Sequence[str], folder: Path, environ: Mapping[str, str], deadline_s: float
    ) -> None:
        self.output = b""
        self.problem = ""
        self.deadline_s = deadline_s
        self.end_at = time.monotonic() + deadline_s
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.process = subprocess.Popen(
                [sys.executable, *program, str(os.getpid()), str(folder)],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a path or variable
            self.problem = f"the probing process could not start: {error}"

    @property
    def runs(self) -> bool:
        """Whether more can come."""
        return self.process is not None and not self.problem

    @property
    def told_all(self) -> bool:
        """Whether its last word has come."""
        return self.output.endswith(b"\n" + _LAST_LINE)

    def go(self) -> None:
        """Let it do what it waits with: its standard input ends."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def read(self) -> bool:
        """Take what has come; False at the end of the output, or with its last word."""
        if self.process is None or self.process.stdout is None:
            return False
        piece = os.read(self.process.stdout.fileno(), _CHUNK_BYTES)
        self.output += piece
        if len(self.output) > _MAX_BYTES:
            self.problem = "the probing process told more than it can have to tell"
            return False
        return bool(piece) and not self.told_all

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
    reading = [child for child in (cuda, nvml) if child is not None and child.runs]
    closed: list[_Child] = []
    outputs = {
        child: child.process.stdout for child in reading if child.process and child.process.stdout
    }
    with selectors.DefaultSelector() as selector:
        for child, output in outputs.items():
            selector.register(output, selectors.EVENT_READ, child)
        while reading or closed:
            if nvml not in (*reading, *closed):
                cuda.go()
            wait_s = min(child.end_at for child in (*reading, *closed)) - time.monotonic()
            wait_s = max(0.0, min(wait_s, _TICK_S))
            # Whoever has ended before this look at the outputs has nothing more to tell after it.
            gone = [child for child in reading if child.left()]
            # Without anything registered a selector waits all the same.
            told = {key.data: key.data.read() for key, _ in selector.select(0 if gone else wait_s)}
            for child in tuple(reading):
                silent = child in gone and child not in told
                if silent or not told.get(child, True) or child.late():
                    selector.unregister(outputs[child])
                    reading.remove(child)
                    closed += [] if silent or child.problem or child.told_all else [child]
            closed = [child for child in closed if not child.left() and not child.late()]


def told_by(output: bytes, problem: str, kind: type[AnswerT], one: str, many: str) -> AnswerT:
    """The lines of a child as one value; lines of `one` are gathered as `many`.

    `problem` is why there may be no more of them. Anything may have come: what is none of ours is
    a problem too, and then nothing else is believed.
    """
    told: dict[str, Any] = {many: []}
    try:
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):  # else it was cut
                _add(told, json.loads(line, parse_constant=_no_number), one, many)
        done = bool(told.pop("done", False))
        if not done and not told.get("problem"):
            told["problem"] = _where(problem or "the probing process ended early", told.get("call"))
        text = json.dumps(told, allow_nan=False)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except (ValueError, RecursionError, ValidationError):
        pass
    text = json.dumps({"problem": problem or "the probing process told what makes no sense"})
    return TypeAdapter(kind).validate_json(text)


def _add(told: dict[str, Any], line: object, one: str, many: str) -> None:
    if not isinstance(line, dict):
        raise ValueError("no object")  # noqa: TRY004 - as of JSON that is none
    if one in line:
        told[many].append(line.pop(one))
    if many in line:
        raise ValueError(f"all {many} at once")
    told |= line


def _no_number(name: str) -> float:
    raise ValueError(name)


def _where(problem: str, call: object) -> str:
    return f"{problem} (in {one_line(call)})" if isinstance(call, str) and call else problem
