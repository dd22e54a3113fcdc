"""Judges of the node: machine, kernel, clock, account and memory."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from app.checks import Check
from app.checks._reach import fetches
from app.facts.host import HostFacts, size
from app.facts.node import LEVELS
from app.facts.words import one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

# The locks hold wheels of this machine only (docker/requirements.*.txt).
_MACHINE = "x86_64"
# Tried on processors that QEMU emulates (2026-11). Where one flag of x86-64-v2 is lacking, numpy
# 2.4 raises on import or dies of SIGILL, as torch 2.14 does. Without AVX bitsandbytes' library for
# the CPU dies; where there is a GPU it is not loaded. Without AVX2 everything worked.
_FLAGS = LEVELS[0]
_FLAGS_OF_REHEARSAL = LEVELS[0] | {"avx"}
# accelerate 1.15 (`utils.other.check_os_kernel`) warns below it: processes were seen to hang.
_KERNEL = (5, 5)
_LIFE_S = 10 * 365.25 * 86400  # no image of this software is used for longer
# With the locked set on a CPU a rehearsal was killed at a limit of 600 MiB and passed at 800,
# where its control group had peaked at 671: below the first number nothing boots.
_LEAST_MEMORY = GIB // 2
_LITTLE_MEMORY = GIB


def machine(facts: HostFacts, plan: Plan) -> Finding:
    """A GH200 is an aarch64 machine with a Hopper board: right device, wrong wheels."""
    found = facts.machine.machine
    expected = f"a machine of the kind {_MACHINE}"
    if not found:
        return skipped("the kernel does not say what machine this is")
    if found == _MACHINE:
        return passed(f"machine {found}, glibc {facts.machine.glibc or 'unknown'}")
    if not plan.profile.needs_gpu:
        return warned(
            f"this machine is {found}: the locked packages are built for {_MACHINE}",
            expected=expected,
            actual=found,
            next_step=f"take what this rehearsal says for {found} alone",
        )
    return failed(
        f"this machine is {found}, and images and locks are built for {_MACHINE}",
        expected=expected,
        actual=f"{found}, kernel {facts.machine.kernel}",
        next_step=f"schedule the job on {_MACHINE} nodes (Kubernetes: the label "
        "kubernetes.io/arch=amd64)",
    )


def processor(facts: HostFacts, plan: Plan) -> Finding:
    """Wheels are compiled for instructions that an old or an emulated processor lacks."""
    found = facts.machine
    if found.machine != _MACHINE or found.flags is None:
        return skipped("what instructions this processor has was not read")
    name = one_line(found.processor) or "a processor without a name"
    wanted = _FLAGS if plan.profile.needs_gpu else _FLAGS_OF_REHEARSAL
    expected = f"a processor with {', '.join(sorted(wanted))}"
    lacking = sorted(wanted - found.flags)
    if not lacking:
        return passed(f"{name}: x86-64-v{found.x86_64_level}", expected=expected, actual=name)
    return failed(
        f"this processor cannot run the packages' code: {name} has no {', '.join(lacking)}",
        expected=expected,
        actual=f"{name}, x86-64-v{found.x86_64_level}",
        next_step="take a node with a newer processor; of a virtual machine have the host's "
        "processor passed through (QEMU: -cpu host)",
    )


def kernel(facts: HostFacts, _plan: Plan) -> Finding:
    """Only warns: most jobs run on old kernels too."""
    found = re.match(r"(\d+)\.(\d+)", facts.machine.kernel)
    if not found:
        return skipped(f"the kernel's version cannot be read: {facts.machine.kernel!r}")
    expected = f"Linux {_KERNEL[0]}.{_KERNEL[1]} or newer"
    if (int(found[1]), int(found[2])) >= _KERNEL:
        return passed(f"Linux {one_line(facts.machine.kernel)}", expected=expected)
    return warned(
        f"Linux {one_line(facts.machine.kernel)} is old: training processes were seen to hang",
        expected=expected,
        actual=one_line(facts.machine.kernel),
        next_step="take a node with a newer kernel, or watch the job for a standstill",
    )


def clock(facts: HostFacts, plan: Plan) -> Finding:
    """TLS refuses every certificate that is "not yet valid", and the message names no clock."""
    found = facts.clock
    now, built = _moment(found.now), _moment(found.built)
    expected = f"a time after {built}, when the software was installed"
    step = "set the node's clock (NTP, or the virtual machine's host), or take another node"
    if found.now > found.built + _LIFE_S:
        reason = f"the clock is ahead: it says {now}, ten years after the software was installed"
        return warned(reason, expected=expected, actual=now, next_step=step)
    if found.now >= found.built:
        return passed(f"the clock says {now}", expected=expected)
    reason = f"the clock is behind: it says {now}, and {one_line(found.built_from)} is newer"
    judged = failed if fetches(plan, facts) else warned
    return judged(reason, expected=expected, actual=now, next_step=step)


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def memory(facts: HostFacts, _plan: Plan) -> Finding:
    """Fails only where nothing at all can boot: the model's need is forecast when it is known."""
    found = facts.memory
    if found.total_bytes is None and found.limit_bytes is None:
        return skipped("neither /proc/meminfo nor a control group says how much memory there is")
    bounds = [each for each in (found.total_bytes, found.limit_bytes) if each is not None]
    limit = (
        f"limit {size(found.limit_bytes)} ({found.limited_by})"
        if found.limit_bytes is not None
        else "no limit"
    )
    expected = f"{size(_LITTLE_MEMORY)} or more, beside what the model needs"
    actual = (
        f"total {found.total_bytes}, limit {found.limit_bytes}, available {found.available_bytes}, "
        f"free swap {found.swap_bytes} bytes"
    )
    step = "raise the memory limit (Kubernetes: resources.limits.memory; Slurm: --mem)"
    if min(bounds) < _LEAST_MEMORY:
        return failed(
            f"too little memory to import the stack: {limit}, {size(found.total_bytes)} in all",
            expected=expected,
            actual=actual,
            next_step=step,
        )
    if found.available_bytes is not None and found.available_bytes < _LITTLE_MEMORY:
        return warned(
            f"only {size(found.available_bytes)} available of {size(found.total_bytes)}, {limit}",
            expected=expected,
            actual=actual,
            next_step=f"{step}, or end what else uses memory there",
        )
    return passed(
        f"{size(found.available_bytes)} available of {size(found.total_bytes)}, {limit}",
        expected=expected,
        actual=actual,
    )


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.machine",
        Fault.HARDWARE_MISMATCH,
        "uname -m; the locks hold wheels for x86_64 only",
        machine,
        cause="The job was scheduled on an ARM node, such as one with a GH200 or GB200.",
        fix="Schedule it on x86_64 nodes, or build an image for the other machine.",
    ),
    Check(
        "host.processor",
        Fault.HARDWARE_MISMATCH,
        "/proc/cpuinfo; numpy 2.4 and torch 2.14 need x86-64-v2, bitsandbytes for the CPU AVX",
        processor,
        cause="A virtual machine shows its guests a plain processor (QEMU's default, qemu64), or "
        "the node is older than 2010. Imports then die of SIGILL.",
        fix="Have the host's processor passed through to the virtual machine, or take other nodes.",
    ),
    Check(
        "host.kernel",
        Fault.NODE_UNFIT,
        "uname -r; accelerate 1.15 warns below Linux 5.5",
        kernel,
        Severity.WARNING,
        cause="The node runs an old distribution (RHEL 7 and 8 have Linux 3.10 and 4.18).",
        fix="Take a node with a newer kernel, or watch the job for a standstill.",
    ),
    Check(
        "host.clock",
        Fault.NODE_UNFIT,
        "the times of installed files",
        clock,
        cause="The node has no time service, or a virtual machine was restored from a snapshot. "
        "Certificates are then not yet valid, and every download fails.",
        fix="Set the node's clock, or take another node. Where nothing is to be fetched (a model "
        "in a folder or whole in the cache, BOOT_DOWNLOAD=never) it only warns.",
    ),
    Check(
        "host.memory",
        Fault.HARDWARE_MISMATCH,
        "/proc/meminfo and control groups; importing the stack peaks at 0.7 GiB",
        memory,
        cause="The container's or the job's memory limit was set for another kind of work, or "
        "other processes of the same limit use it up.",
        fix="Raise the limit: resources.limits.memory in Kubernetes, --mem in Slurm, --memory in "
        "Docker.",
    ),
)
