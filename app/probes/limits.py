"""Reads what this process may use of processors, processes, files and address space."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from app.facts.node import LimitFacts
from app.probes.cgroups import fields_of, groups, number_of, text_of

_FAR = 4096  # tasks: no check asks for as many
_RESOURCES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")


def probe_limits(proc: Path) -> LimitFacts:
    """Control groups of both versions, all parents, and the soft limits; `proc` is /proc."""
    quota, quota_by = _cpu_quota(proc)
    left, left_by = _tasks_left(proc)
    return LimitFacts(
        n_cpus=_n_cpus(),
        cpu_quota=quota,
        quota_by=quota_by,
        tasks_left=left,
        tasks_by=left_by,
        resources=tuple((name, _soft(name)) for name in _RESOURCES),
    )


def _soft(name: str) -> int | None:
    """The soft limit, None where there is none, or where a policy keeps it from being asked."""
    try:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    except OSError:
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _n_cpus() -> int:
    """Processors that this process may run on, or all where a policy keeps that from being asked.

    A profile of seccomp refuses calls that its author has not thought of.
    """
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


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
        # "max", or -1
        if not (f"{quota}{period}".isascii() and quota.isdigit() and period.isdigit()):
            continue
        if not int(period):
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
        # Counting takes a tenth of a second on a large node, so only where it can matter.
        every = _tasks_of_all(proc)
        near = every is None or own - every < _FAR
        found = max(0, own - (_tasks_of(proc, os.getuid()) if near else every or 0))
        if left is None or found < left:
            left, file = found, "ulimit -u"
    return left, file


def _tasks_of_all(proc: Path) -> int | None:
    """Tasks of the whole machine (the fourth field is `running/all`), None where it is not said."""
    fields = text_of(proc / "loadavg").split()
    _, _, number = fields[3].partition("/") if len(fields) > 3 else ("", "", "")  # noqa: PLR2004
    return int(number) if number.isascii() and number.isdigit() else None


def _tasks_of(proc: Path, uid: int) -> int:
    """Tasks of an account that this process can see; those in other namespaces are not among them.

    /proc/PID/status is cheap and cannot block on the memory lock of a process that hangs. Its
    folder belongs to the account, or to root where the process may not be traced.
    """
    n_tasks = 0
    for folder in proc.iterdir():
        if not folder.name.isdigit() or _owner(folder) not in (uid, 0):
            continue
        fields = fields_of(text_of(folder / "status"))
        if fields.get("Uid", "").split()[:1] == [str(uid)]:
            n_tasks += int(fields.get("Threads", "1"))
    return n_tasks


def _owner(folder: Path) -> int | None:
    """None for a process that has ended meanwhile."""
    try:
        return folder.stat().st_uid
    except OSError:
        return None
