"""Judges of the board and its surroundings as NVML tells them: bus, fabric, clocks, link."""

from __future__ import annotations

from app.checks import Check
from app.checks._gpu_common import board_name, counted, not_told, numbered, nvml_silent, the_board
from app.facts.board import BoardFacts
from app.facts.board_words import (
    FABRIC_COMPLETED,
    FABRIC_NOT_SUPPORTED,
    HARDWARE_SLOWDOWNS,
    fabric_word,
    throttle_reasons,
)
from app.facts.driver_errors import (
    DRAIN_IT,
    GPU_IS_LOST,
    NO_PERMISSION,
    RESET_REQUIRED,
    nvml_error,
)
from app.facts.gpu import GpuFacts
from app.facts.words import listed
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan


def lost(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether every board that the driver counts can be talked to, none fallen off the bus."""
    silent = nvml_silent(facts.nvml)
    if silent and not facts.nvml.boards:
        return skipped(silent)
    gone = [board for board in facts.nvml.boards if _error_of(board)]
    told = listed(f"{board_name(board)}: {nvml_error(_error_of(board)).told}" for board in gone)
    known = facts.nvml.n_devices
    missing = 0 if known is None else max(len(numbered(facts)) - known, 0)
    if missing and not told:
        told = f"/dev has {len(numbered(facts))} devices, and NVML sees {known}"
    expected = "every board answers"
    if not told:
        n = len(facts.nvml.boards) if known is None else known
        return passed("every board answers", expected=expected, actual=counted(n))
    if _ours_is_well(facts, gone):
        return warned(
            f"another board of this node is lost: {told}",
            expected=expected,
            actual=told,
            next_step="have this node looked at: its kernel log (dmesg) shows Xid messages",
        )
    return failed(f"a board is lost: {told}", expected=expected, actual=told, next_step=DRAIN_IT)


def _error_of(board: BoardFacts) -> int:
    """The number that says the board is broken, 0 for none; a foreign job's board is none."""
    if board.handle_error and board.handle_error != NO_PERMISSION:
        return board.handle_error
    ended = [number for number in board.unread.values() if number in (GPU_IS_LOST, RESET_REQUIRED)]
    return ended[0] if ended else 0


def _ours_is_well(facts: GpuFacts, gone: list[BoardFacts]) -> bool:
    if not facts.looked or len(facts.devices) != 1 or facts.devices[0].context_error:
        return False
    board = facts.board_of(facts.devices[0])
    return board is not None and board not in gone


def fabric(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the NVLink fabric is up, which NVSwitch machines (HGX, SXM) need to start CUDA."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    state, status = board.fabric_state, board.fabric_status
    if state is None:
        return not_told(board, "fabric_state")
    word, expected = fabric_word(state), "completed without an error, or no fabric"
    if state == FABRIC_NOT_SUPPORTED:
        return passed("the board is on no fabric", expected=expected, actual=word)
    if state == FABRIC_COMPLETED:
        return _completed(status or 0, expected)
    step = "take another node; see whether nvidia-fabricmanager runs on this one"
    reason = f"the fabric is not up: {word}"
    if facts.looked:
        return warned(
            f"{reason}, though CUDA answers", expected=expected, actual=word, next_step=step
        )
    return failed(reason, expected=expected, actual=word, next_step=step)


def _completed(status: int, expected: str) -> Finding:
    if not status:
        return passed("the fabric is up", expected=expected, actual="completed")
    told = nvml_error(status).told
    return failed(
        f"the fabric's start ended with {told}",
        expected=expected,
        actual=f"completed: {told}",
        next_step="take another node; drain this one and look at its fabric manager's log",
    )


def throttle(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the board lowers its clocks to save itself; limits by software are a choice."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    if board.throttle is None:
        return not_told(board, "throttle")
    reasons = throttle_reasons(board.throttle)
    actual = ", ".join(reasons) or "none"
    expected = "no slowdown by the hardware"
    slowed = HARDWARE_SLOWDOWNS & set(reasons)
    if slowed:
        return warned(
            f"the board slows itself down: {', '.join(sorted(slowed))}",
            expected=expected,
            actual=actual,
            next_step="expect slow steps; have cooling and power supply of this node looked at",
        )
    return passed(f"clocks are held by: {actual}", expected=expected, actual=actual)


def link(facts: GpuFacts, _plan: Plan) -> Finding:
    """How wide and fast the PCIe link is: recorded, since an idle board lowers its own."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    if board.pcie_width is None and board.pcie_generation is None:
        return not_told(board, "pcie_width", "pcie_generation")
    most = f" of at most {board.pcie_width_max}" if board.pcie_width_max is not None else ""
    actual = f"PCIe generation {board.pcie_generation}, {board.pcie_width} lanes{most}"
    return passed(actual, actual=actual)


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.lost",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetHandleByIndex), /dev",
        lost,
        cause="A board fell off the bus (Xid 79) or must be reset (Xid 95), and every call to it "
        "fails. A warning where the board is not this job's.",
        fix="Run elsewhere; drain the node, and reset or replace the board.",
    ),
    Check(
        "gpu.fabric",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetGpuFabricInfo)",
        fabric,
        cause="On a machine with NVSwitch the fabric manager has not started, has not finished, or "
        "failed, or is of another version than the driver.",
        fix="Run elsewhere; on the node start nvidia-fabricmanager, of the driver's version.",
    ),
    Check(
        "gpu.throttle",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetCurrentClocksEventReasons)",
        throttle,
        Severity.WARNING,
        cause="The board is too hot or its power supply fails, and it lowers its clocks by itself. "
        "A power cap set by the site is no such thing, and only recorded.",
        fix="The job runs, slowly. Have the cooling and power supply of the node looked at.",
    ),
    Check(
        "gpu.link",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetCurrPcieLinkWidth)",
        link,
        Severity.WARNING,
        cause="Never fails: width and generation of the PCIe link are recorded, for comparisons "
        "between nodes.",
        fix="Nothing to do; an idle board lowers its own link.",
    ),
)
