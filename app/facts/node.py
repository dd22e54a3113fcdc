"""Facts of the node itself: machine, account, clock, limits, shared memory.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

# On 2 processors a rehearsal that had 4 left at this point died for want of a thread, one with 6
# passed.
_LEAST_TASKS = 5


# What the levels of x86-64 add, by the kernel's names in /proc/cpuinfo (System V ABI for x86-64).
LEVELS: tuple[frozenset[str], ...] = (
    frozenset(("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")),
    frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")),
    frozenset(("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")),
)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine and its kernel, and how this process is confined. Empty is what was not read.

    `processor` is the model's name; `flags` are those of LEVELS that it has, None where they were
    not read. `seccomp` is 0, 1 or 2 as in /proc/self/status: off, strict, filtered.
    """

    machine: str = ""  # as in `uname -m`
    kernel: str = ""  # as in `uname -r`
    glibc: str = ""  # as in "2.36"; empty where the C library is another one
    container: str = ""  # docker, podman, kubernetes, singularity, ...
    processor: str = ""
    flags: frozenset[str] | None = None
    seccomp: int | None = None
    no_new_privileges: bool | None = None
    umask: int | None = None

    @property
    def x86_64_level(self) -> int | None:
        """3 for a processor of x86-64-v3; None where the flags were not read."""
        if self.flags is None:
            return None
        return 1 + next((n for n, level in enumerate(LEVELS) if level - self.flags), len(LEVELS))


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """What the clock says, and a moment that lies in the past for certain: seconds since 1970."""

    now: float
    built: float
    built_from: str  # which file tells


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """The account this process runs under. `name` is None for a uid without a passwd entry."""

    uid: int
    gid: int = 0
    name: str | None = None
    home: str | None = None  # HOME, None where it is unset


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """What this process may use of processors, processes, files and address space.

    `cpu_quota` is the smallest quota of all parent groups, in processors. `tasks_left` is what the
    pids controller, or RLIMIT_NPROC where it binds, still gives out. `resources` are the soft
    limits by their names in `man prlimit`, None where unlimited; bytes, or a count.
    """

    n_cpus: int  # that this process may run on
    cpu_quota: float | None = None
    quota_by: str = ""
    tasks_left: int | None = None
    tasks_by: str = ""
    resources: tuple[tuple[str, int | None], ...] = ()

    @property
    def no_tasks(self) -> bool:
        """Whether not even the imports of the stack get the threads that they start."""
        return self.tasks_left is not None and self.tasks_left < _LEAST_TASKS

    def resource(self, name: str) -> int | None:
        """A soft limit; None where it is unlimited or was not read."""
        return dict(self.resources).get(name)


@dataclass(frozen=True, slots=True)
class SharedMemoryFacts:
    """Shared memory after a real allocation of `tried_bytes`. Bytes, None where not read.

    `problem` is empty when the allocation worked; `errno` is the system's number behind it.
    """

    path: str = "/dev/shm"  # noqa: S108 - the name that libc's shm_open uses
    problem: str = ""
    errno: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    tried_bytes: int = 0
