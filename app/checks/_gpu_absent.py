"""Why CUDA shows no device: hidden by a variable, lost, without a slice, or not there at all."""

from __future__ import annotations

from collections.abc import Sequence

from app.checks._gpu_common import numbered
from app.facts.board import BoardFacts
from app.facts.driver_errors import DRAIN_IT, GONE, NO_DEVICE, REQUEST, nvml_error
from app.facts.gpu import GpuFacts
from app.facts.words import one_line
from app.outcome import Fault

MAKE_AN_INSTANCE = (
    "take another node; make an instance on this one (nvidia-smi mig -cgi ... -C), or turn MIG off "
    "(nvidia-smi -mig 0)"
)
UNSET_IT = "unset CUDA_VISIBLE_DEVICES, or request a GPU from the scheduler that set it"
_HIDDEN = frozenset({"", "NoDevFiles"})  # the last one is what Slurm sets without a request


def why_no_device(facts: GpuFacts) -> tuple[str, str, Fault]:
    """Why CUDA shows no device: in words, empty where nothing tells; the way out; whose fault."""
    if hidden := hidden_by(facts):
        return hidden, UNSET_IT, Fault.CONFIG
    if lost_board(facts):
        return "a board is lost", DRAIN_IT, Fault.NODE_UNFIT
    if empty_mig(facts):
        why = "the board is in MIG mode without an instance"
        return why, MAKE_AN_INSTANCE, Fault.NODE_UNFIT
    if facts.nvml.init_error:
        error = nvml_error(facts.nvml.init_error)
        return f"NVML's start returned {error.told}", error.step, Fault.NODE_UNFIT
    kept = bool(facts.nvml.boards) and not facts.nvml.own_boards
    if not kept and (facts.nvml.boards or set(numbered(facts)) - set(facts.unopenable)):
        return "NVML or /dev shows one all the same", DRAIN_IT, Fault.NODE_UNFIT
    return "every board of this node is kept from us" if kept else "", REQUEST, Fault.NODE_UNFIT


def lost_board(facts: GpuFacts) -> bool:
    """Whether NVML tells of a board that is there and broken."""
    return any(board.handle_error in GONE for board in facts.nvml.boards)


def empty_mig(facts: GpuFacts) -> bool:
    """Whether every board that we may use is in MIG mode and has no slice for CUDA to show."""
    if facts.devices:
        return False
    boards = facts.nvml.own_boards
    none_shown = facts.n_devices == 0 or facts.init_error == NO_DEVICE
    return bool(boards) and all(
        board.mig_enabled and (board.mig_uuids == () or (board.mig_uuids is None and none_shown))
        for board in boards
    )


def hidden_by(facts: GpuFacts) -> str:
    """How CUDA_VISIBLE_DEVICES leaves no device; empty where it does not, or nobody can tell.

    CUDA takes the devices before the first name that it cannot find, so the first one decides.
    """
    if facts.visible is None:
        return ""
    shown = f"CUDA_VISIBLE_DEVICES={one_line(facts.visible)!r}"
    first = facts.visible.partition(",")[0].strip()
    if first in _HIDDEN:
        return f"{shown} hides every device"
    names = [name.strip() for name in facts.visible.split(",")]
    if names.count(first) > 1:  # CUDA takes such a list for an error, and shows none
        return f"{shown} names a device twice"
    return f"{shown} names no device of this container" if _is_none(first, facts) else ""


def _is_none(name: str, facts: GpuFacts) -> bool:
    """Whether no device has this number or name, as far as NVML and /dev tell."""
    boards = facts.nvml.own_boards
    if name.isascii() and name.isdigit():
        n = len(boards) if facts.nvml.boards else len(numbered(facts))
        return bool(n) and int(name[:9]) >= n
    if name.startswith("GPU-"):
        uuids = [board.uuid for board in boards]
        return bool(uuids) and all(uuids) and not any(uuid.startswith(name) for uuid in uuids)
    return _no_slice(name, boards) if name.startswith("MIG-") else True


def _no_slice(name: str, boards: Sequence[BoardFacts]) -> bool:
    """Whether no board has the slice of this name, as far as NVML tells of slices.

    The older names, of drivers before 470, hold their board's: MIG-GPU-<uuid>/<number>/<number>.
    """
    if not boards or any(board.handle_error or board.mig_enabled is None for board in boards):
        return False
    older = name.removeprefix("MIG-").partition("/")[0]
    if older.startswith("GPU-"):
        return not any(board.mig_enabled and board.uuid == older for board in boards)
    return not any(name in (board.mig_uuids or ()) for board in boards)
