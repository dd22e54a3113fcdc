"""Judges of what was granted: one device, the one that the launcher gave, whole or a slice."""

from __future__ import annotations

from app.checks import Check
from app.checks._gpu_absent import MAKE_AN_INSTANCE, empty_mig, why_no_device
from app.checks._gpu_common import named, numbered, the_board, the_device
from app.checks._gpu_launcher import TOOLKIT, Grant, Known, Verdict, asked, compare, grants
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.host import size
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_ONE = (
    "request one GPU (docker: --gpus device=<UUID of a free one>; Kubernetes: nvidia.com/gpu: 1; "
    "Slurm: --gres=gpu:1)"
)
# What the toolkit takes for no device, but for `void`: our images say it until a request replaces
# it, and it stays beside devices that come by CDI.
_NOTHING = frozenset({"", "none"})


def count(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether exactly one device is visible: any other may be somebody else's."""
    if not facts.looked or facts.n_devices is None:
        return skipped("the CUDA driver did not answer")
    n = facts.n_devices
    if n == 1:
        return passed("one device is visible", expected="1", actual="1")
    if n < 1:
        return _none(facts)
    names = listed((f"{device.index}: {device.name}" for device in facts.devices), 8) or "none"
    said = asked(facts)
    return failed(
        f"{n} devices are visible, and this boot is for one",
        expected="1",
        actual=f"{n} ({names}); {said or 'no variable of a launcher says which'}",
        next_step=f"{_ONE}, or set CUDA_VISIBLE_DEVICES to the UUID that this job was granted",
    )


def _none(facts: GpuFacts) -> Finding:
    why, step, fault = why_no_device(facts)
    return failed(
        f"the driver sees no device{f': {why}' if why else ''}",
        expected="1",
        actual="0",
        next_step=step,
        fault=fault,
    )


def granted(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether what is visible is what the launcher granted, by its own variables."""
    text = facts.asked.get(TOOLKIT)
    shown = asked(facts)
    if text is not None and text.strip() in _NOTHING and not numbered(facts) and not facts.devices:
        return failed(
            f"the launcher granted no GPU: {TOOLKIT}={one_line(text)}",
            expected="one granted GPU",
            actual=shown,
            next_step=_ONE,
        )
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    said = grants(facts.asked)
    if not said:
        none = f"{shown} does not say which devices this job was granted"
        return skipped(none if shown else "no variable of a launcher tells of granted devices")
    n = facts.n_devices or len(facts.devices)
    verdicts = []
    for grant in said:
        if n > grant.n:
            return _too_many(n, grant, shown)
        verdict = compare(facts, grant)
        if verdict.device is not None:
            return _another(verdict.device, verdict.why, grant, shown)
        verdicts.append(verdict)
    return _weighed(list(zip(said, verdicts, strict=True)), shown)


def _too_many(n: int, grant: Grant, shown: str) -> Finding:
    return failed(
        f"{n} devices are visible, and {grant.variable} grants {grant.n}",
        expected=f"no other device than {grant.variable} grants",
        actual=shown,
        next_step="let the launcher pass in the granted devices alone, or set "
        "CUDA_VISIBLE_DEVICES to the UUID of the granted one",
    )


def _another(device: DeviceFacts, why: str, grant: Grant, shown: str) -> Finding:
    return failed(
        f"{named(device)} {one_line(device.uuid)} is visible, and {grant.variable} grants "
        f"another device{why}",
        expected=f"no other device than {grant.variable} grants",
        actual=f"{one_line(device.uuid)}; {shown}",
        next_step="start the container with the devices that the scheduler granted, and "
        "neither set nor keep NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES by hand",
    )


def _weighed(found: list[tuple[Grant, Verdict]], shown: str) -> Finding:
    """The surest of the verdicts, none of which speaks against the devices."""
    sure = [grant.variable for grant, verdict in found if verdict.known is Known.OURS]
    if sure:
        return passed(f"what is visible was granted ({', '.join(sure)})", actual=shown)
    untold = [verdict.why for _, verdict in found if verdict.known is Known.UNTOLD]
    if untold:
        return skipped(f"whether what is visible was granted cannot be told: {'; '.join(untold)}")
    why = "; ".join(verdict.why for _, verdict in found)
    return passed(f"by count alone, no other device is here: {why}", actual=shown)


def mig(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the device is a whole GPU, or a MIG slice with all of its memory."""
    expected = "a whole GPU, or a slice with the memory of one"
    if empty_mig(facts):
        return failed(
            "the board is in MIG mode and has no instance, so that CUDA sees no device",
            expected=expected,
            actual="MIG enabled, no instance",
            next_step=MAKE_AN_INSTANCE,
        )
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    if not device.mig:
        board = the_board(facts)
        told = not isinstance(board, Finding) and board.mig_enabled is not None
        if not device.uuid and not told:
            return skipped("neither the device's UUID nor NVML tells whether it is a slice")
        return passed(f"{named(device)} is a whole GPU", expected=expected, actual="no MIG slice")
    least = plan.profile.min_memory_bytes
    actual = f"a MIG slice of {size(device.total_bytes)}, {one_line(device.uuid)}"
    if device.total_bytes < least:
        return failed(
            f"{named(device)} is a MIG slice of {size(device.total_bytes)}",
            expected=f"{expected} ({size(least)})",
            actual=actual,
            next_step="request a whole GPU, or the slice that has all of its memory",
            fault=Fault.HARDWARE_MISMATCH,
        )
    return passed(f"{named(device)} is a MIG slice that is large enough", actual=actual)


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.count",
        Fault.CONFIG,
        "one device per boot",
        count,
        cause="The container was started with all GPUs of the node (--gpus all, "
        "NVIDIA_VISIBLE_DEVICES=all, a Slurm node without ConstrainDevices), or "
        "CUDA_VISIBLE_DEVICES hides every one.",
        fix="Request one GPU, or set CUDA_VISIBLE_DEVICES to the UUID of the granted one.",
    ),
    Check(
        "gpu.granted",
        Fault.CONFIG,
        "NVIDIA_VISIBLE_DEVICES, SLURM_STEP_GPUS, SLURM_JOB_GPUS; NVML",
        granted,
        cause="A privileged container, a mounted /dev or a variable set by hand shows devices that "
        "the scheduler gave to other jobs, or a number in CUDA_VISIBLE_DEVICES is that of another "
        "board. Or the launcher granted none (NVIDIA_VISIBLE_DEVICES=none).",
        fix="Let the scheduler pass in the granted devices alone; do not set "
        "NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES by hand.",
    ),
    Check(
        "gpu.mig",
        Fault.NODE_UNFIT,
        "the device's UUID, cuDeviceTotalMem, NVML",
        mig,
        cause="The scheduler gave a MIG slice, which has a part of the board's memory, or the "
        "board is in MIG mode and nobody has made an instance.",
        fix="Request a whole GPU; on the node make an instance or turn MIG mode off.",
    ),
)
