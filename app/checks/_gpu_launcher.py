"""What the launcher's variables grant, and whether the visible devices are those."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from app.checks._gpu_common import CAPABILITIES, counted, named, nvml_silent
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.words import listed

TOOLKIT = "NVIDIA_VISIBLE_DEVICES"
# The narrowest first: a step's share of a Slurm job's GPUs is what counts.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")
_INDEX = re.compile(r"(\d{1,4})(:\d{1,2})?")  # with the number of a slice


@dataclass(frozen=True, slots=True)
class Grant:
    """What one variable grants: so many devices, and which, by UUID or by the boards' numbers."""

    variable: str
    n: int
    uuids: tuple[str, ...] = ()
    numbers: frozenset[int] = frozenset()


class Known(Enum):
    """What can be said of the visible devices against one grant."""

    OURS = "granted"
    COUNTED = "no more than granted"
    UNTOLD = "nobody can tell"
    OTHERS = "granted to somebody else"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known, and in words why; `device` is the one that another job may hold."""

    known: Known
    why: str = ""
    device: DeviceFacts | None = None


def asked(facts: GpuFacts) -> str:
    """The launcher's variables about devices, as they stand."""
    about = {name: value for name, value in facts.asked.items() if name != CAPABILITIES}
    return listed(f"{name}={value}" for name, value in sorted(about.items()))


def grants(said: Mapping[str, str]) -> list[Grant]:
    """Every variable that says something exact; `all`, names and typing errors say nothing."""
    slurm = next((name for name in _SLURM if said.get(name)), "")
    found = (_grant(name, said[name]) for name in (TOOLKIT, slurm) if name in said)
    return [grant for grant in found if grant is not None]


def _grant(variable: str, text: str) -> Grant | None:
    tokens = [token.strip() for token in text.split(",") if token.strip()]
    uuids: list[str] = []
    numbers: set[int] = set()
    n = 0
    for token in tokens:
        if token.startswith(("GPU-", "MIG-")):
            uuids.append(token.lower())
            n += 1
        elif found := _RANGE.fullmatch(token):
            span = range(int(found[1]), int(found[2]) + 1)
            numbers.update(span)
            n += len(span)
        elif found := _INDEX.fullmatch(token):
            numbers.add(int(found[1]))
            n += 1
        else:
            return None
    if not n or (uuids and numbers):  # of two kinds, only the count is certain
        return Grant(variable, n) if n else None
    return Grant(variable, n, tuple(uuids), frozenset(numbers))


def compare(facts: GpuFacts, grant: Grant) -> Verdict:
    """Whether the visible devices are the granted ones: by name, by number, or by count alone."""
    if grant.uuids:
        return _by_name(facts, grant)
    silent = nvml_silent(facts.nvml)
    if silent:
        return Verdict(Known.UNTOLD, f"the granted devices have numbers, and {silent}")
    reached = len(facts.nvml.own_boards)
    if reached <= grant.n:
        why = f"{counted(reached)} can be reached, and {grant.variable} grants {grant.n}"
        return Verdict(Known.COUNTED, why)
    return _by_number(facts, grant, reached)


def _by_name(facts: GpuFacts, grant: Grant) -> Verdict:
    for device in facts.devices:
        among = _among(device, grant, facts)
        if among is None:
            why = f"{grant.variable} names UUIDs, and nothing tells that of {named(device)}"
            return Verdict(Known.UNTOLD, why)
        if not among:
            return Verdict(Known.OTHERS, "", device)
    return Verdict(Known.OURS)


def _among(device: DeviceFacts, grant: Grant, facts: GpuFacts) -> bool | None:
    """Whether a device is named: by its own UUID or its board's, which may be cut short."""
    board = facts.board_of(device)
    own = (device.uuid, device.board_uuid, board.uuid if board else "")
    known = [uuid.lower() for uuid in own if uuid]
    if not known:
        return None
    # A slice's older name holds its board's: MIG-GPU-<uuid>/<instance>/<instance>.
    return any(
        uuid.startswith(token) or token.removeprefix("mig-").startswith(uuid)
        for token in grant.uuids
        for uuid in known
    )


def _by_number(facts: GpuFacts, grant: Grant, reached: int) -> Verdict:
    """The same where more boards can be reached than were granted, so that nobody shut them out.

    A number is then the node's own, and NVML counts the node's boards in the order of their bus.
    """
    more = f"{counted(reached)} can be reached, and {grant.variable} grants {grant.n} by number"
    doubt = _doubt(facts, grant, reached)
    if doubt:
        return Verdict(Known.UNTOLD, f"{more}: {doubt}")
    by_variable = _numbers_of_cuda(facts)
    for device in facts.devices:
        board = facts.board_of(device)
        if board is None:
            why = f"{more}: NVML does not tell which of them {named(device)} is"
            return Verdict(Known.UNTOLD, why)
        if board.index in grant.numbers:
            continue
        if by_variable and by_variable <= grant.numbers:
            why = f"CUDA_VISIBLE_DEVICES has that number, and NVML counts it as {board.index}"
            return Verdict(Known.UNTOLD, f"{more}: {why}")
        return Verdict(Known.OTHERS, f"; NVML counts it as {board.index}", device)
    return Verdict(Known.OURS)


def _doubt(facts: GpuFacts, grant: Grant, reached: int) -> str:
    """Why a number need not be NVML's; empty where it is."""
    if not grant.numbers:
        return "it names devices in two ways"
    if grant.variable in _SLURM and any(board.mig_enabled for board in facts.nvml.own_boards):
        return "on a node with slices Slurm counts these too"
    said = (_grant(name, facts.asked.get(name, "")) for name in (TOOLKIT, *_SLURM))
    wider = [each for each in said if each and each.n >= reached]
    here = {board.index for board in facts.nvml.own_boards}
    # A job's share of a node may be counted from 0 again, for all of its steps.
    if wider and not any(each.numbers == here for each in wider):
        return f"they are what {wider[0].variable} grants, and may be counted anew"
    return ""


def _numbers_of_cuda(facts: GpuFacts) -> frozenset[int]:
    """The numbers in CUDA_VISIBLE_DEVICES; none where it holds anything else."""
    tokens = [token.strip() for token in (facts.visible or "").split(",")]
    found = [_INDEX.fullmatch(token) for token in tokens]
    return frozenset(int(each[1]) for each in found if each) if all(found) else frozenset()
