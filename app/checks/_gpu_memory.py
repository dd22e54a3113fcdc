"""Judges of the device's memory and of who else is on it."""

from __future__ import annotations

from app.checks import Check
from app.checks._gpu_common import named, not_told, the_board, the_device
from app.facts.board_words import PROHIBITED, compute_mode_word
from app.facts.driver_errors import start_error
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.host import size
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

_CLIFF = GIB  # a context and cuBLAS's workspace alone take most of it: nothing can boot in less
_QUIET = GIB  # in use on an idle device by a context of ours and the driver
_NOBODYS = 2**50  # 1 PiB: no device has that, and a number below zero looks so


def compute_mode(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the compute mode, set by the node's administrator, lets anybody work on the GPU."""
    device, board = the_device(facts), the_board(facts)
    mode = None if isinstance(device, Finding) else device.compute_mode
    if mode is None and not isinstance(board, Finding):
        mode = board.compute_mode
        if mode is None:
            return not_told(board, "compute_mode")
    if mode is None:
        return board if isinstance(board, Finding) else skipped("nothing tells the compute mode")
    word = compute_mode_word(mode)
    expected = "default, or exclusive_process"
    if mode == PROHIBITED:
        return failed(
            "the GPU's compute mode forbids any work on it",
            expected=expected,
            actual=word,
            next_step="take another node; on this one run nvidia-smi -c DEFAULT",
        )
    return passed(f"compute mode {word}", expected=expected, actual=word)


def context(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether a context can be made on the device, with which all work begins."""
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    if device.context_error:
        error = start_error(device.context_error)
        holders = _holders(facts, device)
        by = f" after {facts.waited_s:.0f} s of asking again" if facts.waited_s else ""
        by += f"; on it: {holders}" if holders else ""
        return failed(
            f"no context on {named(device)}: {error.told}{by}",
            expected="a context on the device",
            actual=error.told,
            next_step=error.step,
            fault=error.fault,
        )
    if facts.n_devices != 1:
        return skipped("no context is made where a device may be somebody else's")
    if device.free_bytes is None:
        return skipped("the driver's library has no way to make a context and look")
    return passed(f"a context on {named(device)} could be made")


def memory(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the GPU has the profile's memory, and enough of it is free to begin with.

    What a model needs is forecast where the model is known.
    """
    device = the_device(facts)
    if isinstance(device, Finding):
        return device
    least = plan.profile.min_memory_bytes
    free = _free(facts, device)
    expected = f"at least {size(least)} in total, and next to all of it free"
    actual = f"{size(device.total_bytes)} in total, {size(free)} free"
    if device.total_bytes < least:
        return failed(
            f"{named(device)} has {size(device.total_bytes)} of memory",
            expected=expected,
            actual=actual,
            next_step="take a whole GPU of the profile's class, not a slice"
            if device.mig
            else f"take a GPU of the profile's class with {size(least)} or more",
        )
    if free is None or device.total_bytes >= _NOBODYS or free > device.total_bytes:
        none = "neither the driver nor NVML tells how much is free"
        return skipped(f"{actual}: {none if free is None else 'these figures make no sense'}")
    holders = _holders(facts, device)
    by = f", held by {holders}" if holders else ""
    if free < _CLIFF:
        return failed(
            f"{named(device)} is full: {actual}{by}",
            expected=expected,
            actual=actual,
            next_step="wait for its other user to end, or take another GPU",
            fault=Fault.TEMPORARY,
        )
    used = device.total_bytes - free
    if used > _QUIET:
        return warned(
            f"{size(used)} of {named(device)} is in use already{by}",
            expected=expected,
            actual=actual,
            next_step="look for another process on this GPU (nvidia-smi on the node shows it)",
        )
    return passed(actual, expected=expected, actual=actual)


def _free(facts: GpuFacts, device: DeviceFacts) -> int | None:
    """As CUDA tells; else as NVML does of the whole board, which is not a slice's."""
    if device.free_bytes is not None or device.mig:
        return device.free_bytes
    board = facts.board_of(device)
    return board.free_bytes if board else None


def _holders(facts: GpuFacts, device: DeviceFacts) -> str:
    return listed(
        (
            f"{one_line(each.name) or 'a process'} (the host's pid {each.pid}, "
            f"{size(each.used_bytes)})"
            for each in facts.users_of(device)
        ),
        5,
    )


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.compute_mode",
        Fault.NODE_UNFIT,
        "cuDeviceGetAttribute, NVML",
        compute_mode,
        cause="An administrator took the GPU out of use (nvidia-smi -c PROHIBITED).",
        fix="Run elsewhere; on the node, nvidia-smi -c DEFAULT gives it back.",
    ),
    Check(
        "gpu.context",
        Fault.NODE_UNFIT,
        "cuDevicePrimaryCtxRetain",
        context,
        cause="Another process holds a GPU in exclusive mode or all of its memory, or the board "
        "has an uncorrectable memory error (214) or has fallen off the bus.",
        fix="Wait for the other process or take another GPU; drain a node with a broken board.",
    ),
    Check(
        "gpu.memory",
        Fault.HARDWARE_MISMATCH,
        "the profile; cuMemGetInfo, NVML",
        memory,
        cause="The card or MIG slice is smaller than the profile's, or another process (a "
        "neighbour, or one left over from an earlier job) holds the memory.",
        fix="Take a card of the profile's class; wait for, or end, what else runs on it.",
    ),
)
