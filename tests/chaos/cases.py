"""What one chaos boot is: a fault, where it strikes, what is done from outside, what must come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OutsideT = Literal[
    "",  # nothing: the fault strikes by itself
    "another boot",  # a second boot runs in the same report folder
    "fill",  # the report's volume is full from now on
    "freeze",  # a write to the report's volume waits in the kernel from now on
    "freeze, then signals",  # the same, and then `Case.signals`
    "kill all",  # KILL to every process of the boot at once
    "kill preflight or worker",
    "kill supervisor",
    "kill writer",
    "read-only",  # the report's volume is remounted
    "remove",  # the report's folder is deleted
    "remove cwd",  # the working folder is deleted
    "signals",  # `Case.signals` to the supervisor
    "signals to all",  # the same to every process of the boot, as a terminal or Slurm does
    "stop writer",  # STOP: it hangs, and KILL would end it
    "suspend",  # STOP to all processes, and after two seconds CONT
    "unmount",  # the report's volume is gone, its mount point is there
]
VolumeT = Literal["", "tmpfs", "loop"]  # what the report folder is made on
StreamsT = Literal[
    "files",
    "nobody reads stderr",
    "nobody reads stdout",
    "stderr closed",
    "stderr full",
    "stdout closed",
    "stdout full",
]


@dataclass(frozen=True, slots=True)
class Expect:
    """What must come, and why by the design's exit table.

    `codes`: what the process may exit with, negative for a signal. `kind` is the report's
    `crash.kind`, "" for no crash, None where either is right. `where` is the stage to be named,
    the struck one by default. `report`: in the file, in the log where the file cannot be written,
    or left behind by a killed boot. `says` must stand in the report.
    """

    codes: frozenset[int]
    why: str
    states: frozenset[str] = frozenset({"complete"})
    kind: str | None = ""
    signal: str | None = None
    where: str | None = None
    report: Literal["file", "log", "left", "any"] = "file"
    says: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One boot. `within_s` bounds the time from the strike to the end of the process.

    In the values of `settings` `{folder}` is the boot's own, empty one.
    """

    name: str
    stage: str
    fault: str
    expect: Expect
    within_s: float
    settings: Mapping[str, str] = field(default_factory=dict)
    outside: OutsideT = ""
    signals: tuple[int, ...] = ()
    at_s: float | None = None  # strike from outside after this time, wherever the boot is
    frozen: bool = False  # a frozen file system for the fault to write to
    memory_bytes: int = 0  # a real limit of a control group
    processes: int = 0  # the same, of how many there may be
    files: int = 0  # that a process may have open
    inherited: tuple[str, ...] = ()  # options of env(1): signals ignored or blocked at the start
    volume: VolumeT = ""
    streams: StreamsT = "files"

    @property
    def needs_root(self) -> bool:
        """Mounts and limits are root's to make."""
        return bool(self.frozen or self.memory_bytes or self.processes or self.volume)

    @property
    def heavy(self) -> bool:
        """Whether the worker gets to its stages, which takes the import of the stack."""
        return self.settings.get("BOOT_STOP_AFTER") not in PREFLIGHT


PREFLIGHT = ("settings", "host", "gpu", "cache", "checkpoint")
WORKER = ("stack", "load", "precision", "adapter", "numerics")
