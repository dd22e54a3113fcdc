"""Judges of the class of hardware: is it the profile's, and has torch kernels for it."""

from __future__ import annotations

import re

from app.checks import Check
from app.checks._gpu_common import named, the_device
from app.facts.architectures import Kernels, kernels_for, machine_code
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import PROFILES

# Boards of each capability, from NVIDIA's table of CUDA GPUs.
_BOARDS: dict[tuple[int, int], str] = {
    (6, 0): "P100, Pascal",
    (6, 1): "P4 or P40, Pascal",
    (7, 0): "V100, Volta",
    (7, 2): "Xavier, Volta",
    (7, 5): "T4 or RTX 20, Turing",
    (8, 0): "A100 or A30, Ampere",
    (8, 6): "A10, A40 or RTX 30, Ampere",
    (8, 7): "Orin, Ampere",
    (8, 9): "L4, L40S or RTX 40, Ada",
    (9, 0): "H100, H200 or GH200, Hopper",
    (10, 0): "B200, Blackwell",
    (10, 3): "B300, Blackwell",
    (12, 0): "RTX 50 or RTX PRO, Blackwell",
}
# A superchip's CPU is an Arm one, and both images are for x86-64.
_GRACE = re.compile(r"\bGH200\b", re.IGNORECASE)


def capability(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the GPU is of the class that was asked for, which decides the precision."""
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    wanted = plan.profile.compute_capability
    expected = f"compute capability {_dotted(wanted)} ({plan.profile.title})"
    others = [found for found in facts.devices if found.capability != wanted]
    if others:
        other = others[0]
        kind = _BOARDS.get(other.capability, "")
        fitting = [p.name for p in PROFILES.values() if p.compute_capability == other.capability]
        return failed(
            f"this GPU is not of profile {plan.profile.name}: {_dotted(other.capability)} "
            f"({named(other)}{f'; {kind}' if kind else ''})",
            expected=expected,
            actual=f"{_dotted(other.capability)} ({named(other)})",
            next_step="take a node of the profile's class"
            + (f", or the image of profile {fitting[0]} for this one" if fitting else ""),
        )
    if _GRACE.search(device.name):
        return failed(
            f"{named(device)} is a Grace superchip, whose CPU is aarch64",
            expected=f"{expected} in an x86-64 machine",
            actual=named(device),
            next_step="take an x86-64 node of the profile's class: the image runs on no other",
        )
    return passed(
        f"{named(device)} has {_dotted(device.capability)}",
        expected=expected,
        actual=f"{_dotted(device.capability)} ({named(device)})",
    )


def architectures(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether torch's wheel has kernels for this device, known before torch is imported."""
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    if not facts.architectures:
        return skipped("nothing says what torch's wheel was built for; the stack stage asks torch")
    name = machine_code(device.capability)
    built = listed(facts.architectures, 30, between=" ").strip() or "no name"
    source = f" ({one_line(facts.architectures_source)})" if facts.architectures_source else ""
    found = kernels_for(facts.architectures, device.capability)
    if found is Kernels.BINARY:
        return passed(f"torch has kernels for {name}{source}", expected=name, actual=built)
    if found is Kernels.PTX:
        return warned(
            f"torch has no kernels for {name}, only PTX that the driver compiles at first use",
            expected=name,
            actual=f"{built}{source}",
            next_step=f"expect slow first steps, or {_right_one(device, plan)}",
        )
    return failed(
        f"torch has no kernels for {named(device)}",
        expected=f"{name}, or PTX for it",
        actual=f"{built}{source}",
        next_step=_with_kernels(device, plan),
    )


def _with_kernels(device: DeviceFacts, plan: Plan) -> str:
    this = "this image" if plan.baked else "this environment"
    return f"run {this} on hardware from that list, or {_right_one(device, plan)}"


def _right_one(device: DeviceFacts, plan: Plan) -> str:
    """Where torch for this device is: in an image, or in an environment of its lock file."""
    if plan.baked:
        return "use the image of this hardware"
    locks = [
        f"docker/requirements.{profile.name}.txt"
        for profile in PROFILES.values()
        if profile.compute_capability == device.capability
    ]
    if not locks:
        return "install a torch that was built for this hardware"
    return f"install the environment of this hardware ({locks[0]})"


def _dotted(capability: tuple[int, int] | None) -> str:
    return "none" if capability is None else f"{capability[0]}.{capability[1]}"


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.capability",
        Fault.HARDWARE_MISMATCH,
        "the profile; cuDeviceGetAttribute",
        capability,
        cause="The scheduler placed the job on another class of GPU than the image is for: an A100 "
        "or L40S for an H100, a T4 for a V100. An H200 is of the class of an H100.",
        fix="Name the GPU type in the request (node selector, --gres=gpu:h100:1), or run the image "
        "of the class that the node has.",
    ),
    Check(
        "gpu.architectures",
        Fault.HARDWARE_MISMATCH,
        "CUDA's rules of binary and PTX compatibility; the image's or the wheel's own list",
        architectures,
        cause="The torch in this environment was built without kernels for this GPU, for example "
        "one for CUDA 13 on a V100.",
        fix="Use the image of this hardware; outside an image install its lock file.",
    ),
)
