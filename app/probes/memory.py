"""Reads how much memory this process can have: the machine's, less what control groups forbid.

And what the kernel did about it: the most that was used, and whom it killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.facts.host import MemoryFacts
from app.facts.process import OomFacts
from app.probes.cgroups import fields_of, groups, number_of, text_of, value_of

# Version 1 writes "no limit" as the largest page-aligned 63-bit number; nothing real comes near.
_UNLIMITED = 1 << 60
_STAT = "memory.stat"


@dataclass(frozen=True, slots=True)
class _Files:
    """File names of one version of the memory controller."""

    limit: str
    brake: str  # above it the kernel slows a group down to a crawl; version 2 only
    usage: str
    peak: str  # page cache included; version 2 has it since Linux 5.19
    events: str  # has a line `oom_kill N`; version 1 since Linux 4.13


_FILES = {
    1: _Files(
        "memory.limit_in_bytes",
        "",
        "memory.usage_in_bytes",
        "memory.max_usage_in_bytes",
        "memory.oom_control",
    ),
    2: _Files("memory.max", "memory.high", "memory.current", "memory.peak", "memory.events"),
}


def probe_memory(proc: Path) -> MemoryFacts:
    """Machine and control groups together; `proc` is /proc.

    `memory.high` counts as a limit here: nobody is killed at it, but nothing gets on either. Swap
    is told and not counted: a model in swap is not a model in memory.
    """
    machine = _meminfo(proc / "meminfo")
    available = machine.get("MemAvailable")
    limit: int | None = None
    limited_by = ""
    for folder, files, name, found in _bounds(proc):
        if limit is None or found < limit:
            limit, limited_by = found, str(folder / name)
        usage = number_of(folder / files.usage)
        if usage is not None:
            # Page cache counts as usage, and the kernel gives it up before it kills anyone.
            left = max(0, found - usage + _reclaimable(folder / _STAT))
            available = left if available is None else min(available, left)
    return MemoryFacts(
        machine.get("MemTotal"), available, limit, limited_by, machine.get("SwapFree")
    )


def oom_facts(proc: Path = Path("/proc")) -> OomFacts:
    """The kernel's account of memory in our control group, and of the machine's.

    Kills are counted where the killed process was, so our own group tells, whatever limit it died
    of. The peak is that of the group whose limit is the smallest, for it is the one that was hit.
    """
    every = [(folder, _FILES[version]) for folder, version in groups(proc, "memory")]
    events = (value_of(folder / files.events, "oom_kill") for folder, files in every)
    limits = [each for each in _bounds(proc) if each[2] == each[1].limit]
    tightest = min(limits, key=lambda each: each[3], default=None)
    peaks = [number_of(folder / files.peak) for folder, files in every]
    if tightest is not None:
        peaks.insert(0, number_of(tightest[0] / tightest[1].peak))
    return OomFacts(
        kills=next((count for count in events if count is not None), None),
        machine_kills=value_of(proc / "vmstat", "oom_kill"),
        peak_bytes=next((peak for peak in peaks if peak is not None), None),
        limit_bytes=tightest[3] if tightest else None,
        limited_by=str(tightest[0] / tightest[1].limit) if tightest else "",
    )


def _bounds(proc: Path) -> Iterator[tuple[Path, _Files, str, int]]:
    """The groups that limit: folder, names, the file that limits and its bytes."""
    for folder, version in groups(proc, "memory"):
        files = _FILES[version]
        for name in (files.limit, files.brake):
            found = number_of(folder / name) if name else None
            if found is not None and found < _UNLIMITED:
                yield folder, files, name, found
        if version == 1:
            # The smallest of all parents, also of those that a container's mount does not show.
            found = value_of(folder / _STAT, "hierarchical_memory_limit")
            if found is not None and found < _UNLIMITED:
                yield folder, files, _STAT, found


def _meminfo(path: Path) -> dict[str, int]:
    """The machine's numbers, in bytes (the file counts in KiB)."""
    numbers = ((name, value.split(" ")[0]) for name, value in fields_of(text_of(path)).items())
    return {name: int(number) * 1024 for name, number in numbers if number.isdigit()}


def _reclaimable(stat: Path) -> int:
    """Cached files, those in use of late too: a job before this one may have read a model."""
    kinds = ("inactive_file", "active_file")
    # Version 1 tells the group's own numbers too; those with all below it are the totals.
    totals = [value_of(stat, f"total_{kind}") for kind in kinds]
    own = [value_of(stat, kind) for kind in kinds]
    return sum((own if totals[0] is None else totals)[n] or 0 for n in range(len(kinds)))
