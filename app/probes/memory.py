"""Reads how much memory this process can have: the machine's, less what control groups forbid.

And what the kernel did about it: the most that was used, and whom it killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.facts.host import MemoryFacts
from app.facts.process import OomFacts

# Version 1 writes "no limit" as the largest page-aligned 63-bit number; nothing real comes near.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class _Files:
    """File names of one version of the memory controller."""

    limit: str
    usage: str
    peak: str  # page cache included; version 2 has it since Linux 5.19
    events: str  # has a line `oom_kill N`; version 1 since Linux 4.13


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
)
_V2 = _Files("memory.max", "memory.current", "memory.peak", "memory.events")


def probe_memory(proc: Path) -> MemoryFacts:
    """Machine and control groups together; `proc` is /proc.

    A limit on any parent group binds too, hence the minimum over the whole way up.
    """
    machine = _meminfo(proc / "meminfo")
    available = machine.get("MemAvailable")
    limit: int | None = None
    limited_by = ""
    for folder, files, found in _limits(proc):
        if limit is None or found < limit:
            limit, limited_by = found, str(folder / files.limit)
        usage = _number(folder / files.usage)
        if usage is not None:
            # Page cache counts as usage, and the kernel gives it up before it kills anyone.
            left = max(0, found - usage + _reclaimable(folder / "memory.stat"))
            available = left if available is None else min(available, left)
    return MemoryFacts(machine.get("MemTotal"), available, limit, limited_by)


def oom_facts(proc: Path = Path("/proc")) -> OomFacts:
    """The kernel's account of memory in our control group, and of the machine's.

    Kills are counted where the killed process was, so our own group tells, whatever limit it died
    of. The peak is that of the group whose limit is the smallest, for it is the one that was hit.
    """
    events = (_value(folder / files.events, "oom_kill") for folder, files in _groups(proc))
    tightest = min(_limits(proc), key=lambda each: each[2], default=None)
    peaks = [_number(folder / files.peak) for folder, files in _groups(proc)]
    if tightest is not None:
        peaks.insert(0, _number(tightest[0] / tightest[1].peak))
    return OomFacts(
        kills=next((count for count in events if count is not None), None),
        machine_kills=_value(proc / "vmstat", "oom_kill"),
        peak_bytes=next((peak for peak in peaks if peak is not None), None),
        limit_bytes=tightest[2] if tightest else None,
        limited_by=str(tightest[0] / tightest[1].limit) if tightest else "",
    )


def _limits(proc: Path) -> Iterator[tuple[Path, _Files, int]]:
    """The groups that limit, each with its limit in bytes."""
    for folder, files in _groups(proc):
        found = _number(folder / files.limit)
        if found is not None and found < _UNLIMITED:
            yield folder, files, found


def _groups(proc: Path) -> Iterator[tuple[Path, _Files]]:
    """The memory groups of this process, from its own up to the mount's root."""
    own = _own_groups(proc / "self" / "cgroup")
    for line in _text(proc / "self" / "mountinfo").splitlines():
        # man 5 proc: id parent dev root mountpoint options [optional...] - type source superoptions
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:  # noqa: PLR2004 - see the format above
            continue
        if kind[0] == "cgroup2":
            files, group = _V2, own.get("")
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            files, group = _V1, own.get("memory")
        else:
            continue
        top = Path(fields[4])
        yield from ((folder, files) for folder in _upwards(top, _below(group, fields[3])))


def _own_groups(path: Path) -> dict[str, str]:
    """Controller -> group of this process; the empty name is version 2."""
    groups: dict[str, str] = {}
    for line in _text(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), group)
    return groups


def _below(group: str | None, mounted: str) -> str:
    """The group's path below the mount point.

    In a container without a cgroup namespace the group is named from the host's root while the
    mount shows a part of it; what lies outside of the mount cannot be read, so its root is taken.
    """
    if group is None or mounted == "/":
        return (group or "").strip("/")
    return group.removeprefix(mounted).strip("/") if group.startswith(mounted) else ""


def _upwards(top: Path, below: str) -> Iterator[Path]:
    parts = [part for part in below.split("/") if part not in {"", ".."}]
    for length in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:length])


def _meminfo(path: Path) -> dict[str, int]:
    """The machine's numbers, in bytes (the file counts in KiB)."""
    found: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        number = value.split()[0] if value.split() else ""
        if number.isdigit():
            found[name] = int(number) * 1024
    return found


def _reclaimable(stat: Path) -> int:
    return _value(stat, "total_inactive_file") or _value(stat, "inactive_file") or 0


def _value(path: Path, name: str) -> int | None:
    """The number after a name in a file of `name number` lines; None where there is none."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, another text or no file."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
