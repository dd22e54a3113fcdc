"""Judges of what was granted: one device, the one that the launcher gave, whole or a slice."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.checks import Check
from app.checks._gpu_absent import MAKE_AN_INSTANCE, empty_mig, why_no_device
from app.checks._gpu_common import CAPABILITIES, named, numbered, the_board, the_device
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.host import size
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_ONE = (
    "request one GPU (docker: --gpus device=0; Kubernetes: nvidia.com/gpu: 1; Slurm: --gres=gpu:1)"
)
# The narrowest first: a step's share of a Slurm job's GPUs is what counts.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_TOOLKIT = "NVIDIA_VISIBLE_DEVICES"
_NOTHING = frozenset({"", "void", "none"})  # what the toolkit takes for no device
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")
_INDEX = re.compile(r"\d{1,4}(:\d{1,2})?")  # with the number of a slice


@dataclass(frozen=True, slots=True)
class _Grant:
    """What one variable grants: so many devices, and which, where it names them."""

    variable: str
    n: int
    uuids: tuple[str, ...] = ()


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
    asked = _asked(facts)
    return failed(
        f"{n} devices are visible, and this boot is for one",
        expected="1",
        actual=f"{n} ({names}); {asked or 'no variable of a launcher says which'}",
        next_step=f"{_ONE}, or set CUDA_VISIBLE_DEVICES to the UUID of the one that this job was "
        f"granted{_example(facts)}",
    )


def _example(facts: GpuFacts) -> str:
    uuid = one_line(facts.devices[0].uuid) if facts.devices else ""
    return f" (the first one is {uuid})" if uuid else ""


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
    text = facts.asked.get(_TOOLKIT)
    shown = _asked(facts)
    # `void` beside visible devices is no grant of nothing: devices that come by CDI have it.
    if text is not None and text.strip() in _NOTHING and not numbered(facts) and not facts.devices:
        return failed(
            f"the launcher granted no GPU: {_TOOLKIT}={one_line(text)}",
            expected="one granted GPU",
            actual=shown,
            next_step=_ONE,
        )
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    grants = _grants(facts)
    if not grants:
        return skipped("no variable of a launcher says which devices are granted")
    n = facts.n_devices or len(facts.devices)
    for grant in grants:
        expected = f"no other device than {grant.variable} grants"
        if n > grant.n:
            return failed(
                f"{n} devices are visible, and {grant.variable} grants {grant.n}",
                expected=expected,
                actual=shown,
                next_step="let the launcher pass in the granted devices alone, or set "
                "CUDA_VISIBLE_DEVICES to the UUID of the granted one",
            )
        strange = [each for each in facts.devices if not _among(each, grant, facts)]
        if strange:
            return failed(
                f"{named(strange[0])} {one_line(strange[0].uuid)} is visible, and "
                f"{grant.variable} grants another device",
                expected=expected,
                actual=f"{one_line(strange[0].uuid)}; {shown}",
                next_step="start the container with the devices that the scheduler granted, and "
                "neither set nor keep that variable by hand",
            )
    names = ", ".join(grant.variable for grant in grants)
    return passed(f"what is visible was granted ({names})", actual=shown)


def _asked(facts: GpuFacts) -> str:
    """The launcher's variables about devices, as they stand."""
    about = {name: value for name, value in facts.asked.items() if name != CAPABILITIES}
    return listed(f"{name}={value}" for name, value in sorted(about.items()))


def _grants(facts: GpuFacts) -> list[_Grant]:
    """Every variable that says something exact; `all`, names and typing errors say nothing."""
    slurm = next((name for name in _SLURM if facts.asked.get(name)), "")
    said = (_grant(name, facts.asked[name]) for name in (_TOOLKIT, slurm) if name in facts.asked)
    return [grant for grant in said if grant is not None]


def _grant(variable: str, text: str) -> _Grant | None:
    tokens = [token.strip() for token in text.split(",") if token.strip()]
    uuids, n = [], 0
    for token in tokens:
        if token.startswith(("GPU-", "MIG-")):
            uuids.append(token.lower())
            n += 1
        elif found := _RANGE.fullmatch(token):
            n += max(int(found[2]) - int(found[1]) + 1, 0)
        elif _INDEX.fullmatch(token):
            n += 1
        else:
            return None
    return _Grant(variable, n, tuple(uuids) if len(uuids) == n else ()) if n else None


def _among(device: DeviceFacts, grant: _Grant, facts: GpuFacts) -> bool:
    """Whether a device is named: by its own UUID or its board's, which may be cut short."""
    board = facts.board_of(device)
    own = (device.uuid, device.board_uuid, board.uuid if board else "")
    known = [uuid.lower() for uuid in own if uuid]
    if not grant.uuids or not known:
        return True
    # A slice's older name holds its board's: MIG-GPU-<uuid>/<instance>/<instance>.
    return any(
        uuid.startswith(token) or token.removeprefix("mig-").startswith(uuid)
        for token in grant.uuids
        for uuid in known
    )


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
        "NVIDIA_VISIBLE_DEVICES, SLURM_STEP_GPUS, SLURM_JOB_GPUS",
        granted,
        cause="A privileged container, a mounted /dev or a variable set by hand shows devices that "
        "the scheduler gave to other jobs, or the launcher granted none "
        "(NVIDIA_VISIBLE_DEVICES=void).",
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
