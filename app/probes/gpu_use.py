"""How much the GPU is used while a stage runs, told by a process that may hang instead of us.

Nothing here is judged, and nothing here blocks: a boot goes on without these figures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.facts.words import listed, one_line, signal_name
from app.probes import gpu_use_child

# A line is about 60 bytes a device, and a machine has at most 16. Longer is no line of ours.
_MAX_LINE_BYTES = 16_384
# Four times what a pipe holds: a child that floods it must not keep its reader.
_MAX_DRAIN_BYTES = 262_144
_CHUNK_BYTES = 65_536
_MAX_LINES = 64  # of one piece that are looked at, the last ones: a flood may be of line ends
# After so many periods without a line the last one tells nothing of now.
_STALE_PERIODS = 10
_REAP_S = 1.0


class Use(NamedTuple):
    """Memory in use, summed over the devices, and the busiest one's percent; None where unknown.

    `age_s` is the time since the devices were asked.
    """

    memory_bytes: int | None
    busy_percent: int | None
    age_s: float


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Device(_Message):
    used: Annotated[int, Field(ge=0, lt=2**63)] | None
    busy: Annotated[int, Field(ge=0, le=100)] | None
    errors: tuple[str, ...]


class _Line(_Message):
    at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    devices: tuple[_Device, ...] = ()
    problem: str = ""


class GpuUse:
    """The sampling process, started at once in a process group of its own; it dies with us.

    The thread that makes this must live on: the kernel ends the process with the thread.
    """

    def __init__(self, environ: Mapping[str, str], period_s: float = 1.0) -> None:
        self._stale_s = period_s * _STALE_PERIODS
        self._rest = b""
        self._skipping = False  # inside a line that is too long
        self._line: _Line | None = None
        self._told = ""  # the problem that it named itself
        self._eof = self._ended = False
        visible = environ.get("CUDA_VISIBLE_DEVICES", "")
        # -I: neither the current folder nor PYTHONPATH nor the user's packages; nvidia-ml-py
        # lies where the interpreter's own packages do.
        command = [sys.executable, "-I", str(gpu_use_child.__file__)]
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*command, str(os.getpid()), str(period_s), visible],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            self._process = None
            self._told = f"the sampling process could not start: {error}"
        if self.fileno() >= 0:
            os.set_blocking(self.fileno(), False)

    @property
    def pid(self) -> int | None:
        """The process, which leads its group; None when it could not start."""
        return self._process.pid if self._process else None

    @property
    def problem(self) -> str:
        """Why figures are missing, on one line, by the last `latest()`; empty when none is."""
        if self._told:
            return self._told
        if self._eof and self._process and not self._ended:
            return _death(self._process.poll())
        if self._line is None:
            return ""
        errors = (error for device in self._line.devices for error in device.errors)
        return listed(dict.fromkeys(errors))

    def fileno(self) -> int:
        """The pipe, readable for ever once its other end is closed; -1 when there is none."""
        pipe = self._process.stdout if self._process else None
        return -1 if pipe is None or pipe.closed else pipe.fileno()

    def latest(self) -> Use | None:
        """The newest whole line that has come. None when none came yet or it is too old."""
        self._drain()
        if self._line is None or self._line.at is None:
            return None
        age_s = time.monotonic() - self._line.at
        if age_s > self._stale_s:
            return None
        used = [device.used for device in self._line.devices]
        known = [each for each in used if each is not None]
        busy = [device.busy for device in self._line.devices if device.busy is not None]
        # A sum that leaves a device out is none; the busiest of those that tell still is busy.
        whole = sum(known) if used and len(known) == len(used) else None
        return Use(whole, max(busy, default=None), age_s)

    def end(self) -> None:
        """Kill the process and reap it; one that hangs in the kernel is left behind."""
        process, self._ended = self._process, True
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_REAP_S)
        if process.stdout is not None:
            process.stdout.close()

    def _drain(self) -> None:
        """Take what is in the pipe, up to a bound."""
        taken = 0
        while not self._eof and self.fileno() >= 0 and taken < _MAX_DRAIN_BYTES:
            try:
                chunk = os.read(self.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._eof = not chunk
            taken += len(chunk)
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        """Whole lines are read; what stands after the last one is kept for the next time."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        for line in lines[-_MAX_LINES:]:
            self._read(line)
        if self._skipping or len(rest) > _MAX_LINE_BYTES:
            self._skipping, rest = True, b""
        self._rest = rest

    def _read(self, text: bytes) -> None:
        """One line; what is none of ours is passed over, since a driver may print anything."""
        if len(text) > _MAX_LINE_BYTES:
            return
        try:
            line = _Line.model_validate_json(text)
        except ValidationError:
            return
        if line.problem:
            self._told = one_line(line.problem)
        elif line.at is not None and line.at <= time.monotonic():  # a later one would never age
            self._line = line


def _death(code: int | None) -> str:
    """How a process ended that ought to have gone on."""
    if code is None:
        return "the sampling process closed its output"
    if code < 0:
        return f"the sampling process died of signal {signal_name(-code)}"
    return f"the sampling process ended by itself (exit {code})"
