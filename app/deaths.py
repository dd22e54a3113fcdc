"""How a process of ours died, and what that amounts to.

Nothing is read here: the kernel's counts, the crash trace and the last lines are in the `Death`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from app import blame, traces
from app.facts.host import size
from app.facts.process import Death
from app.facts.words import one_line, signal_name
from app.outcome import Fault, Finding, Status
from app.report import Crash

# Sent by somebody; a fault in native code raises others. To the whole group they never come here:
# the supervisor gets them too, and closes the boot as interrupted.
_SENT = frozenset(
    (
        *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    )
)
# The kernel kills when a group stands at its limit; its counters are kept in batches per processor.
_NEAR = 0.9
# What the C++ and Rust run times say before they abort for want of memory.
_NO_MEMORY = ("std::bad_alloc", "memory allocation of ")
# Shells and their like turn a signal n of their child into this plus n.
_OF_SIGNAL = 128


def judge(death: Death) -> Finding:
    """What the end of the process amounts to, from the evidence that there is."""
    if death.protocol:
        return _found(
            death,
            Fault.INTERNAL,
            f"the {death.who} said what is no event: {one_line(death.protocol, 300)}",
            "report this with the boot's report: two versions of bootguard may be mixed",
            source="the event pipe",
        )
    number = _signal(death)
    if number is None:
        return _left(death)
    if number in _OF_THE_KERNEL:
        return _OF_THE_KERNEL[number](death)
    if number in _SENT:
        return _sent(death, number)
    return _native(death, number)


def crash_of(death: Death, where: str) -> Crash:
    """The report's section; `where` is the stage."""
    kind = "protocol" if death.protocol else "exit" if death.signal is None else "signal"
    return Crash(
        where=where,
        kind=kind,
        text=judge(death).reason,
        signal=None if death.signal is None else signal_name(death.signal),
        exit_code=death.exit_code,
        traceback=traces.arranged(death.trace),
        output=list(death.output),
    )


def _signal(death: Death) -> int | None:
    """The signal it died of, told by the kernel or by an exit status in a shell's manner."""
    if death.signal is not None:
        return death.signal
    told = (death.exit_code or 0) - _OF_SIGNAL
    return told if told in signal.valid_signals() else None


def _killed(death: Death) -> Finding:
    """SIGKILL leaves no word behind: only the kernel's counts tell the out-of-memory killer."""
    ours = _rise(death, lambda facts: facts.kills)
    machine = _rise(death, lambda facts: facts.machine_kills)
    counts = f"out-of-memory kills: {_told(ours)} in our group, {_told(machine)} on the machine"
    if ours:
        return _no_memory(death, "killed by the kernel for lack of memory", counts)
    # A group that keeps a count would have counted it: then the machine's was another process.
    if machine and ours is None and _near_limit(death) is not False:
        doubt = "probably" if _near_limit(death) else "possibly"
        return _no_memory(death, f"{doubt} killed by the kernel for lack of memory", counts)
    return _found(
        death,
        _node_or_ours(death),
        f"the {death.who} was killed from outside ({_shown(death)}), and not for lack of memory as "
        f"far as the kernel tells",
        "look in the node's kernel log and in the scheduler's events for who killed it",
        actual=counts,
        source="memory.events or memory.oom_control, /proc/vmstat",
    )


def _no_memory(death: Death, what: str, counts: str) -> Finding:
    after = death.after
    held = f"{size(death.rss_peak_bytes)} resident at most" if death.rss_peak_bytes else ""
    used = f"peak {size(after.peak_bytes)} of limit {size(after.limit_bytes)}"
    if after.limit_bytes is None:
        used = "no limit on our group"
    step = "raise the memory limit (Kubernetes: resources.limits.memory; Slurm: --mem)"
    if _near_limit(death) is not True:
        step = "take a node with more free memory, or have the scheduler reserve what this needs"
    return _found(
        death,
        Fault.HARDWARE_MISMATCH,
        f"the {death.who} was {what}: {', '.join(filter(None, (used, held)))}",
        step,
        actual=counts,
        source=", ".join(
            filter(None, (after.limited_by, "memory.events or memory.oom_control", "/proc/vmstat"))
        ),
    )


def _no_time(death: Death) -> Finding:
    """The kernel sends SIGXCPU at the soft limit, and SIGKILL at the hard one."""
    reason = f"the {death.who} used up the processor time that it may have (SIGXCPU)"
    step = "raise the limit of processor time (ulimit -t, LimitCPU)"
    return _found(death, Fault.CONFIG, reason, step, source="setrlimit(2), RLIMIT_CPU")


def _no_page(death: Death) -> Finding:
    """SIGBUS: a mapped page that could not be had.

    On this architecture that is a file which the disk does not give or that became shorter, a full
    tmpfs, or memory that the hardware has lost. With the device in use it can be the device's
    mapped registers too, unless the thread was reading files.
    """
    reading = traces.reads_files(death.trace)
    if death.on_device and not reading:
        return _native(death, signal.SIGBUS)
    return _found(
        death,
        Fault.READ_ERROR,
        f"the {death.who} died of {_shown(death)}: a page of a mapped file could not be had"
        f"{_at(death)}",
        "check the disk or mount that holds the model, and the space in /dev/shm; another node may "
        "read it",
        source="the signal and the crash trace" if reading else "the signal",
    )


def _no_instruction(death: Death) -> Finding:
    """SIGILL: the processor lacks an instruction that a package was compiled for."""
    what = "this node's processor cannot run an instruction of its code"
    step = "take a node with a newer processor (of a virtual machine: pass the host's through)"
    reason = f"the {death.who} died of {_shown(death)}{_at(death)}: {what}"
    return _found(death, Fault.NODE_UNFIT, reason, step)


def _sent(death: Death, number: int) -> Finding:
    """To this process alone: neither node, image nor model is at fault, so another try may pass.

    Not 143 or 130: those say that the boot itself was told to end.
    """
    return _found(
        death,
        Fault.TEMPORARY,
        f"somebody sent {signal_name(number)} to the {death.who} alone",
        "send signals to bootguard's own process; if nobody did, look in the scheduler's events",
        source="the signal that it died of",
    )


def _native(death: Death, number: int) -> Finding:
    if number == signal.SIGABRT:
        said = [line for line in death.output if any(word in line for word in _NO_MEMORY)]
        if said:
            found = blame.out_of_host_memory(one_line(said[-1], 300))
            reason = f"the {death.who} aborted: {found.reason}{_at(death)}"
            return replace(found, reason=reason, source="what it printed before it aborted")
    device = " with the device in use" if death.on_device else ""
    step = "take another node, and have this one's device and kernel log looked at"
    if not death.on_device:
        step = "report this with the boot's report: no device was in use"
    return _found(
        death,
        _node_or_ours(death),
        f"the {death.who} crashed: {_shown(death)}{_at(death)}{device}",
        step,
    )


def _left(death: Death) -> Finding:
    """Gone by itself, without the event that ends its work."""
    line = traces.last_exception(death.output)
    reason = f"the {death.who} ended without a verdict: exit {death.exit_code}"
    step = "read its last lines, in the report's `crash`"
    found = blame.of_line(line) if line else None
    if found is not None:
        return replace(found, reason=f"{reason}: {found.reason}")
    return _found(
        death, Fault.INTERNAL, f"{reason}: {line}" if line else reason, step, source="exit status"
    )


def _found(
    death: Death, fault: Fault, reason: str, next_step: str, *, actual: str = "", source: str = ""
) -> Finding:
    return Finding(
        Status.ERROR,
        reason,
        expected=f"the {death.who} says `ended`, and exits 0",
        actual=actual or _shown(death),
        next_step=next_step,
        fault=fault,
        source=source or "the signal and the crash trace",
    )


def _node_or_ours(death: Death) -> Fault:
    """A crash with the device in use is the node's until shown otherwise (exit 69), else ours."""
    return Fault.NODE_UNFIT if death.on_device else Fault.INTERNAL


def _shown(death: Death) -> str:
    number = _signal(death)
    if death.protocol or number is None:
        return f"exit {death.exit_code}" if death.exit_code is not None else "no event"
    if death.signal is None:
        return f"exit {death.exit_code}, as shells say {signal_name(number)}"
    return signal_name(number)


def _at(death: Death) -> str:
    frame = traces.innermost(death.trace)
    return f" in {one_line(frame, 300)}" if frame else ""


def _rise(death: Death, count: Callable[..., int | None]) -> int | None:
    """How many more after the end than before; None where one of the two was not read."""
    before, after = count(death.before), count(death.after)
    return None if before is None or after is None else after - before


def _told(number: int | None) -> str:
    return "not counted" if number is None else str(number)


def _near_limit(death: Death) -> bool | None:
    """Whether the group was about full at its peak, page cache included; None where not known."""
    peak, limit = death.after.peak_bytes, death.after.limit_bytes
    if limit is None:
        return None
    if max(peak or 0, death.rss_peak_bytes) >= _NEAR * limit:
        return True
    return None if peak is None else False


_OF_THE_KERNEL: dict[int, Callable[[Death], Finding]] = {
    signal.SIGKILL: _killed,
    signal.SIGBUS: _no_page,
    signal.SIGILL: _no_instruction,
    signal.SIGXCPU: _no_time,
}
