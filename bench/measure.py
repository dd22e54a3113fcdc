"""One process with all that it starts, measured from outside."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.005
_LAST_LINES = 20


class Failed(Exception):  # noqa: N818 - it ends the program, with this as the reason
    """A run did not do its work, so its time says nothing."""


@dataclass(frozen=True)
class Cost:
    """Seconds of wall and of all processors, and the resident peak of the first process alone."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measured(
    command: list[str],
    environ: Mapping[str, str],
    folder: Path,
    limit_s: float,
    *,
    status: int = 0,
) -> tuple[Cost, str]:
    """Run it in `folder` to its end; what it printed comes back too.

    Raises:
        Failed: it took over `limit_s`, or its exit status is not `status`.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=log
        )
        peak = 0
        while True:
            pid, ended, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            # A peak never falls, so the last one read counts. Not the largest: before the process
            # has become Python, what is read is ours.
            peak = peak_bytes(process.pid) or peak
            if time.perf_counter() - began > limit_s:
                process.kill()
            time.sleep(_POLL_S)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(ended)
        if process.returncode != status:
            log.seek(0)
            last = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
            raise Failed("\n".join([f"{command[3]} ended with {process.returncode}", *last]))
        output.seek(0)
        text = output.read().decode(errors="replace")
    # Of the process and of every descendant that was waited for.
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak), text


def peak_bytes(pid: int) -> int:
    """VmHWM of proc(5), which counts in KiB; 0 when the process has none any more.

    Not `ru_maxrss` of wait4: that is the largest of the process and its children.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(line.split()[1]) * 1024


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and largest, for a table and for JSON."""
    found = sorted(values)
    return {
        "median": round(statistics.median(found), 3),
        "min": round(found[0], 3),
        "max": round(found[-1], 3),
    }


def cpu_model() -> str:
    """The processor as the kernel names it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
