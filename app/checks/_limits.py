"""Judges of what the launcher grants: processors, processes, files, addresses, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from app.checks import Check
from app.facts.host import HostFacts, size
from app.facts.node import LimitFacts
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

# A rehearsal was refused at an address space of 3 GiB (its imports died) and passed at 6. With a
# device the driver reserves addresses for all memory of the board and of the machine besides.
_LEAST_ADDRESSES = 4 * GIB
_ONE_FILE = 8 * GIB  # shards of models are cut at 5 GB, and 4-bit ones of 8 GB come as one file
_A_DAY = 24 * 3600  # seconds of processor time, of which every thread spends
_LEAST_FILES = 16  # a compile with 12 found too few of them; a rehearsal with 20 passed
_FEW_FILES = 256  # descriptors; Docker gives 1048576, most shells 1024
_FEW_TASKS = 64  # beside one a processor for each pool of threads
_LEAST_DATA = GIB // 2  # as of memory: see `app.checks._node`
_DOCKERS_SHM = 64 * 2**20


def cpus(facts: HostFacts, _plan: Plan) -> Finding:
    """Less than one processor makes every stage slow, and deadlines are met by chance."""
    found = facts.limits
    quota = "no quota" if found.cpu_quota is None else f"a quota of {found.cpu_quota:.2f}"
    expected = "one processor or more"
    actual = f"{found.n_cpus} processors to run on, {quota}"
    if found.cpu_quota is not None and found.cpu_quota < 1:
        return warned(
            f"only {found.cpu_quota:.2f} of a processor is granted ({found.quota_by})",
            expected=expected,
            actual=actual,
            next_step="raise the quota (Kubernetes: resources.limits.cpu; Docker: --cpus), or give "
            "stages longer deadlines (BOOT_<STAGE>_TIMEOUT_S)",
        )
    return passed(actual, expected=expected, actual=actual)


def limits(facts: HostFacts, plan: Plan) -> Finding:
    """ulimits of the launcher and the number of tasks; Slurm takes ulimits along from the login."""
    lacking = _hopeless(facts.limits)
    if lacking:
        # Others that share a limit of tasks end some time; a ulimit stays what it is.
        shared = all(each.shared for each in lacking)
        return failed(
            lacking[0].what,
            fault=Fault.TEMPORARY if shared else None,
            expected="room for the processes and imports",
            actual="; ".join(each.actual for each in lacking),
            next_step="; ".join(each.step for each in lacking),
        )
    low = _low(facts.limits, plan)
    if low:
        return warned(
            "; ".join(each.what for each in low),
            expected="no limit, or one that training does not reach",
            actual="; ".join(each.actual for each in low),
            next_step="; ".join(each.step for each in low),
        )
    return passed("no limit of processes, files or addresses is near")


@dataclass(frozen=True, slots=True)
class _Bound:
    """A limit that is near: in words, as a number, and what to do."""

    what: str
    actual: str
    step: str
    shared: bool = False  # with other processes, which may end


def _hopeless(found: LimitFacts) -> list[_Bound]:
    """What no boot gets through."""
    said = []
    for name, flag, least in (("AS", "v", _LEAST_ADDRESSES), ("DATA", "d", _LEAST_DATA)):
        most = found.resource(name)
        if most is not None and most < least:
            why = f"{size(most)} of addresses for a process, too few to load the libraries"
            said.append(_ulimit(flag, why, most // 1024))
    if found.no_tasks:
        said.append(_tasks(found))
    files = found.resource("NOFILE")
    if files is not None and files < _LEAST_FILES:
        said.append(_ulimit("n", f"{files} open files for a process", files))
    return said


def _low(found: LimitFacts, plan: Plan) -> list[_Bound]:
    """What a training run may hit."""
    said = []
    few = _FEW_TASKS + 2 * min(found.n_cpus, 64)
    if found.tasks_left is not None and found.tasks_left < few:
        said.append(_tasks(found))
    files = found.resource("NOFILE")
    if files is not None and files < _FEW_FILES:
        said.append(_ulimit("n", f"{files} open files for a process", files))
    seconds = found.resource("CPU")
    if seconds is not None and seconds < _A_DAY:
        said.append(_ulimit("t", f"{seconds} seconds of processor time for a process", seconds))
    addresses, one_file = found.resource("AS"), found.resource("FSIZE")
    if plan.profile.needs_gpu and addresses is not None:
        why = f"{size(addresses)} of addresses, and the driver reserves hundreds of GiB of them"
        said.append(_ulimit("v", why, addresses // 1024))
    if plan.profile.needs_gpu and one_file is not None and one_file < _ONE_FILE:
        why = f"{size(one_file)} for a single file, less than a model's may have"
        said.append(_ulimit("f", why, one_file // 1024))
    return said


def _tasks(found: LimitFacts) -> _Bound:
    return _Bound(
        f"only {found.tasks_left} more processes and threads may be started ({found.tasks_by})",
        f"{found.tasks_left} tasks left",
        "raise the limit (Docker: --pids-limit; Kubernetes: the node's podPidsLimit; ulimit -u), "
        "or end what else runs there",
        shared=True,
    )


def _ulimit(flag: str, why: str, value: int) -> _Bound:
    """`value` as the shell's builtin counts: KiB, seconds, or a number."""
    return _Bound(
        f"only {why} (ulimit -{flag})",
        f"ulimit -{flag} {value}",
        f"raise ulimit -{flag} where the job is started or submitted",
    )


def shared_memory(facts: HostFacts, _plan: Plan) -> Finding:
    """Never fails a boot: the boot passes without; data loaders with workers and NCCL do not."""
    found = facts.shared_memory
    expected = f"more than 64 MiB (Docker's default) of shared memory at {found.path}"
    step = (
        "raise it (Docker: --shm-size=8g or --ipc=host; Kubernetes: an emptyDir with medium: "
        "Memory mounted there), or train with dataloader_num_workers=0"
    )
    if found.problem:
        return warned(
            f"{found.path} cannot be used: {found.problem}; data loaders with workers will fail",
            expected=expected,
            actual=found.problem,
            next_step=step,
        )
    if found.total_bytes is None:
        return skipped(f"how large {found.path} is was not read")
    actual = f"{size(found.free_bytes)} free of {size(found.total_bytes)}"
    if found.total_bytes and found.total_bytes <= _DOCKERS_SHM:
        return warned(
            f"{found.path} has only {size(found.total_bytes)}: data loaders with workers die of "
            "that",
            expected=expected,
            actual=actual,
            next_step=step,
        )
    if found.total_bytes and (found.free_bytes or 0) < _DOCKERS_SHM:
        return warned(
            f"{found.path} is nearly full: {actual}",
            expected=expected,
            actual=actual,
            next_step=f"remove what ended processes left in {found.path}, or {step}",
        )
    return passed(f"{found.path}: {actual}", expected=expected, actual=actual)


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.cpus",
        Fault.CONFIG,
        "sched_getaffinity and control groups",
        cpus,
        Severity.WARNING,
        cause="The container asks for a fraction of a processor.",
        fix="Raise resources.limits.cpu (Kubernetes), --cpus (Docker) or --cpus-per-task (Slurm).",
    ),
    Check(
        "host.limits",
        Fault.CONFIG,
        "getrlimit and the pids controller",
        limits,
        cause="A shell's ulimit, which Slurm takes along from the login node, or a container's "
        "limit of processes.",
        fix="Set ulimit -v, -d, -f and -u to unlimited and -n to 1024 or more where the job is "
        "started; raise --pids-limit.",
    ),
    Check(
        "host.shared_memory",
        Fault.CONFIG,
        "statvfs and a real allocation; Docker's default is 64 MiB",
        shared_memory,
        Severity.WARNING,
        cause="Docker and Kubernetes give a container 64 MiB of /dev/shm unless told otherwise.",
        fix="Start it with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir with "
        "medium: Memory at /dev/shm. Data loaders with workers and NCCL use it, the boot does not.",
    ),
)
