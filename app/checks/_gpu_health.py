"""Judges of the board's memory cells: a board with bad ones may pass every other check."""

from __future__ import annotations

from app.checks import Check
from app.checks._gpu_common import board_name, not_told, the_board
from app.facts.driver_errors import DRAIN_IT
from app.facts.gpu import GpuFacts
from app.outcome import Fault, Finding, Severity, failed, passed, warned
from app.plan import Plan

# NVIDIA's guide to page retirement has a board replaced at 60; the driver can retire 64.
_MANY_PAGES = 60


def row_remap(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether a bad row of memory still waits to be replaced by a spare one (Ampere and later)."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    if board.remap_pending is None and board.remap_failed is None:
        return not_told(board, "remap_pending", "remap_failed")
    expected = "no remapping of rows pending or failed"
    if board.remap_failed or board.remap_pending:
        what = "has failed" if board.remap_failed else "is pending"
        return failed(
            f"remapping of a bad row of {board_name(board)} {what}",
            expected=expected,
            actual=f"pending: {board.remap_pending}, failed: {board.remap_failed}",
            next_step=DRAIN_IT,
        )
    n = board.remapped_uncorrectable
    rows = f"{n} rows remapped" if n else "no row remapped" if n == 0 else "none pending"
    return passed(rows, expected=expected, actual=rows)


def retired_pages(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether a bad page of memory still waits to be taken out of use (Volta)."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    if board.retirement_pending is None and board.retired_pages is None:
        return not_told(board, "retirement_pending", "retired_pages")
    n = "unknown" if board.retired_pages is None else str(board.retired_pages)
    expected, actual = "no page to be retired", f"{n} pages retired"
    if board.retirement_pending:
        return failed(
            f"a bad page of {board_name(board)} waits for a reset to be retired",
            expected=expected,
            actual=f"{actual}, one or more pending",
            next_step=DRAIN_IT,
        )
    if board.retired_pages is not None and board.retired_pages >= _MANY_PAGES:
        return warned(
            f"{board_name(board)} has {n} retired pages, and the driver can retire no more than 64",
            expected=f"fewer than {_MANY_PAGES} retired pages",
            actual=actual,
            next_step="have the board replaced",
        )
    if board.retirement_pending is None:
        return not_told(board, "retirement_pending")
    return passed(actual, expected=expected, actual=actual)


def ecc(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether there were uncorrectable memory errors; alone they warn."""
    board = the_board(facts)
    if isinstance(board, Finding):
        return board
    n = board.ecc_uncorrected
    if n:
        return warned(
            f"{board_name(board)} has had {n} uncorrectable memory errors since its driver loaded",
            expected="0",
            actual=str(n),
            next_step="look at the node's kernel log (dmesg) for Xid 48, 63, 64 or 94",
        )
    if board.ecc_enabled is False:
        return passed("error correction is switched off", actual="off")
    if n is None:
        return not_told(board, "ecc_uncorrected", "ecc_enabled")
    return passed("no uncorrectable memory error", expected="0", actual="0")


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.row_remap",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetRemappedRows)",
        row_remap,
        cause="The board has found a bad row of memory. It is replaced by a spare one at the next "
        "reset; after a failed replacement it stays in use.",
        fix="Run elsewhere; drain the node and reset the GPU, or have the board replaced where "
        "remapping failed.",
    ),
    Check(
        "gpu.retired_pages",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetRetiredPages, nvmlDeviceGetRetiredPagesPendingStatus)",
        retired_pages,
        cause="A V100 has found a bad page of memory, which is taken out of use at the next reset.",
        fix="Run elsewhere; drain the node and reset the GPU. Have a board with 60 or more retired "
        "pages replaced.",
    ),
    Check(
        "gpu.ecc",
        Fault.NODE_UNFIT,
        "NVML (nvmlDeviceGetTotalEccErrors)",
        ecc,
        Severity.WARNING,
        cause="Memory errors that could not be corrected have happened since the driver was "
        "loaded. What they hit was ended then; the cells are remapped or retired.",
        fix="Nothing for this job. The site should watch the board, and drain it if the count "
        "grows.",
    ),
)
