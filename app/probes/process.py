"""What a process of ours does: what it uses, where it waits, what it has started.

Plain files of /proc and not psutil, by measurement (2 cores, 88 processes, psutil 7.2.2): its
import takes 26 to 33 ms and 4 MB of the supervisor's 60, one sample costs the same either way
(1.0 ms with psutil, 1.3 ms here), and where the threads of a hung process wait in the kernel it
does not read at all.

Never read here: cmdline, environ, maps and smaps. They take the memory lock of the process that
they describe, and a process in an uninterruptible wait can hold that for ever: who reads them hangs
with it. A process that is gone gives zeros and empty texts, never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.facts.process import Sample
from app.facts.words import one_line

PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_THREADS = 64  # torch alone starts some dozens; what hangs is among the first by its state
_MOST_FRAMES = 6  # of a kernel stack: enough to tell a file system from a driver
_ARGUMENTS = 3  # of a system call, of the six registers that may hold any
_UNINTERRUPTIBLE = "D"
_MOST_ADJUSTMENT = 1000  # OOM_SCORE_ADJ_MAX of linux/oom.h


@dataclass(frozen=True, slots=True)
class _Stat:
    """What /proc/PID/stat says, by man 5 proc. `cpu_s` is with the children that it has reaped."""

    name: str
    state: str
    parent: int
    cpu_s: float
    rss_bytes: int


def sample(pid: int, proc: Path = PROC) -> Sample:
    """The process and all its descendants together, for one call a second.

    Resident memory counts shared pages once per process. Processor time and bytes read include
    children that have ended, so the sums grow as long as nothing is read from the wrong end.
    """
    table = _family(pid, proc)
    own = table.get(pid)
    if own is None:
        return Sample()
    family = list(table)
    return Sample(
        rss_bytes=sum(table[each].rss_bytes for each in family),
        read_bytes=sum(
            _read_bytes(proc / str(each))
            for each in family
            # Kernels before 5.11 let a reader of `io` wait for an execve to end, and that of a
            # program on a dead mount never does. The process itself has its execve behind it.
            if each == pid or table[each].state != _UNINTERRUPTIBLE
        ),
        cpu_s=sum(table[each].cpu_s for each in family),
        state=own.state,
    )


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Children, their children and so on, parents first; without the process itself."""
    return list(_below(pid, _table(proc)))


def waits(pid: int, proc: Path = PROC) -> list[str]:
    """One line for each thread: who it is, and where in the kernel it waits.

    `4711 python3 D: nfs_wait_bit_killable; syscall 0 0x3 0x7f2e 0x1000; stack a < b < c`: number,
    name, state, and what this account may read of the rest; a thread that runs waits nowhere.
    System call numbers are the architecture's. The main thread first, then uninterruptible ones.
    Not for a process that may be inside an execve: see `sample`.
    """
    folder = proc / str(pid) / "task"
    threads = [(number, found) for number in _numbers(folder) if (found := _stat(folder / number))]
    threads.sort(key=lambda each: (each[0] != str(pid), each[1].state != _UNINTERRUPTIBLE))
    lines = [_wait(folder / number, number, found) for number, found in threads[:_MOST_THREADS]]
    more = len(threads) - _MOST_THREADS
    return [*lines, f"and {more} more threads"] if more > 0 else lines


def raise_oom_score(by: int = 100, proc: Path = PROC) -> None:
    """Offer this process to the kernel's out-of-memory killer before its parent; best effort.

    The score is in thousandths of the memory that may be used. Raising it needs no right; where
    /proc is read-only nothing changes.
    """
    path = proc / "self" / "oom_score_adj"
    try:
        now = int(path.read_text())
        path.write_text(str(min(_MOST_ADJUSTMENT, now + by)))
    except (OSError, ValueError):
        return


def _family(pid: int, proc: Path) -> dict[int, _Stat]:
    """The process and its descendants.

    Each thread lists its children where the kernel is built for that; on a node with thousands of
    processes that is a hundredth of the work of looking at all of them.
    """
    if not (proc / str(pid) / "task" / str(pid) / "children").exists():
        table = _table(proc)
        return {each: table[each] for each in (pid, *_below(pid, table)) if each in table}
    found: dict[int, _Stat] = {}
    queue = [pid]
    while queue:
        current = queue.pop(0)
        if (known := _stat(proc / str(current))) is not None and current not in found:
            found[current] = known
            threads = proc / str(current) / "task"
            for thread in _numbers(threads):
                queue += map(int, _text(threads / thread / "children").split())
    return found


def _table(proc: Path) -> dict[int, _Stat]:
    """Every process that can be seen. `children` of a task is not in every kernel, this is."""
    return {int(number): found for number in _numbers(proc) if (found := _stat(proc / number))}


def _below(pid: int, table: Mapping[int, _Stat]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for each, found in table.items():
        children.setdefault(found.parent, []).append(each)
    queue = sorted(children.get(pid, ()))
    while queue:
        current = queue.pop(0)
        yield current
        queue += sorted(children.get(current, ()))


def _stat(folder: Path) -> _Stat | None:
    """None where the process or thread is gone.

    The name stands in parentheses and may hold any character, these included.
    """
    text = _text(folder / "stat")
    before, _, after = text.rpartition(")")
    fields = after.split()
    try:
        return _Stat(
            name=before.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            cpu_s=sum(int(ticks) for ticks in fields[11:15]) / _TICKS,
            rss_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (IndexError, ValueError):
        return None


def _read_bytes(folder: Path) -> int:
    """What it has read by system calls, from the page cache too; of foreign accounts zero."""
    name, _, value = _text(folder / "io").partition("\n")[0].partition(":")
    return int(value) if name == "rchar" and value.strip().isdigit() else 0


def _wait(folder: Path, number: str, found: _Stat) -> str:
    parts = [_place(folder / "wchan"), _system_call(folder / "syscall"), _stack(folder / "stack")]
    where = "; ".join(part for part in parts if part) or "nowhere that can be read"
    return f"{number} {one_line(found.name, 32)} {found.state}: {where}"


def _place(path: Path) -> str:
    """The kernel's function; `0` says that it runs, or that this account may not know."""
    text = _text(path).strip()
    return "" if text in {"", "0"} else one_line(text, 80)


def _system_call(path: Path) -> str:
    """Number and first arguments: `running`, or -1 outside of a system call, tell nothing here."""
    fields = _text(path).split()
    if not fields or not fields[0].isdigit():
        return ""
    return f"syscall {' '.join(fields[: 1 + _ARGUMENTS])}"


def _stack(path: Path) -> str:
    """The innermost functions of the kernel's stack, which root alone may read."""
    frames = [line.split()[-1].partition("+")[0] for line in _text(path).splitlines() if line]
    return f"stack {' < '.join(frames[:_MOST_FRAMES])}" if frames else ""


def _numbers(folder: Path) -> list[str]:
    """Names of processes or threads; none where the process is gone."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.isdigit()]
    except OSError:
        return []


def _text(path: Path) -> str:
    """A file of /proc; empty where it is gone or not ours to read."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
