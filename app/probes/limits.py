"""Reads what this process may use of processors, processes, files and address space."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from app.facts.node import LimitFacts
from app.probes.cgroups import groups, number_of, text_of

_RESOURCES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")


def probe_limits(proc: Path) -> LimitFacts:
    """Control groups of both versions, all parents, and the soft limits; `proc` is /proc."""
    quota, quota_by = _cpu_quota(proc)
    left, left_by = _tasks_left(proc)
    return LimitFacts(
        n_cpus=len(os.sched_getaffinity(0)),
        cpu_quota=quota,
        quota_by=quota_by,
        tasks_left=left,
        tasks_by=left_by,
        resources=tuple((name, _soft(name)) for name in _RESOURCES),
    )


def _soft(name: str) -> int | None:
    """The soft limit, None where there is none."""
    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return None if soft == resource.RLIM_INFINITY else soft


def _cpu_quota(proc: Path) -> tuple[float | None, str]:
    """Processors that the tightest group gives per period, and its file."""
    best: float | None = None
    file = ""
    for folder, version in groups(proc, "cpu"):
        if version == 2:  # noqa: PLR2004 - the version of control groups
            name = "cpu.max"
            quota, _, period = text_of(folder / name).strip().partition(" ")
        else:
            name = "cpu.cfs_quota_us"
            quota = str(number_of(folder / name) or "")
            period = str(number_of(folder / "cpu.cfs_period_us") or "")
        if not (quota.isdigit() and period.isdigit() and int(period)):  # "max", or -1
            continue
        found = int(quota) / int(period)
        if best is None or found < best:
            best, file = found, str(folder / name)
    return best, file


def _tasks_left(proc: Path) -> tuple[int | None, str]:
    """Tasks (processes and threads) that can still be started, and what bounds them.

    RLIMIT_NPROC counts those of the whole account on the machine, and does not bind root.
    """
    left: int | None = None
    file = ""
    for folder, _ in groups(proc, "pids"):
        most, now = number_of(folder / "pids.max"), number_of(folder / "pids.current")
        if most is None or now is None:
            continue
        found = max(0, most - now)
        if left is None or found < left:
            left, file = found, str(folder / "pids.max")
    own = _soft("NPROC")
    if own is not None and os.getuid():
        found = max(0, own - _tasks_of(proc, os.getuid()))
        if left is None or found < left:
            left, file = found, "ulimit -u"
    return left, file


def _tasks_of(proc: Path, uid: int) -> int:
    """Tasks of an account that this process can see; those in other namespaces are not among them.

    /proc/PID/status is cheap and cannot block on the memory lock of a process that hangs.
    """
    n_tasks = 0
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        fields = dict(
            line.split(":", 1) for line in text_of(folder / "status").splitlines() if ":" in line
        )
        if fields.get("Uid", "").split()[:1] == [str(uid)]:
            n_tasks += int(fields.get("Threads", "1"))
    return n_tasks
