"""What is known of a process of ours while it runs, and of its end.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process and its descendants, from /proc. Zero where it could not be read.

    `state` is the main thread's letter of proc(5): R, S, D, Z, ...
    """

    rss_bytes: int = 0
    read_bytes: int = 0  # rchar: by system calls, cached or not
    cpu_s: float = 0.0
    state: str = ""


@dataclass(frozen=True, slots=True)
class OomFacts:
    """The kernel's account of memory in our control group; None where it keeps none.

    `kills` counts killed processes of the group, `machine_kills` those of the whole machine, both
    since it was booted or made: only differences tell something.
    """

    kills: int | None = None
    machine_kills: int | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the process's CUDA device when an allocation failed, in bytes.

    `own_bytes` is what torch's allocator holds in this process, `peak_bytes` the most that its
    tensors have used: what is needed is more than that.
    """

    free_bytes: int
    total_bytes: int
    own_bytes: int
    peak_bytes: int

    @property
    def others_bytes(self) -> int:
        """What is neither free nor ours: other processes, our own context, the driver's share."""
        return max(0, self.total_bytes - self.free_bytes - self.own_bytes)


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended that ought to have said `ended`, and what was left of it.

    Exactly one of these is set: `signal`, `exit_code` (0 too), or `protocol`, what it said that is
    no event. `on_device` tells whether it had begun to use the GPU. `before` and `after` are the
    group's account at the child's start and after its end.
    """

    who: str  # worker or preflight
    signal: int | None = None
    exit_code: int | None = None
    protocol: str = ""
    on_device: bool = False
    before: OomFacts = field(default_factory=OomFacts)
    after: OomFacts = field(default_factory=OomFacts)
    rss_peak_bytes: int = 0
    trace: tuple[str, ...] = ()  # what faulthandler wrote, oldest line first
    output: tuple[str, ...] = ()  # the last lines that it printed
