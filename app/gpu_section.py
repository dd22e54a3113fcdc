"""The report's `gpus`, from what the gpu stage found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from app.facts.board import BoardFacts, GpuProcess
from app.facts.board_words import compute_mode_word, fabric_word, throttle_reasons
from app.facts.driver_errors import nvml_error
from app.facts.gpu import DeviceFacts, GpuFacts, cuda_release
from app.sections_gpu import Gpu, GpuUser

FactT = TypeVar("FactT")
MadeT = TypeVar("MadeT")
# Of a board's facts, those that stand in the report by the same name.
_SAME = (
    *("ecc_enabled", "ecc_uncorrected", "remap_pending", "remap_failed", "remapped_uncorrectable"),
    *("retired_pages", "retirement_pending", "mig_enabled", "temperature_c", "persistence"),
    *("power_limit_w", "power_limit_default_w"),
    *("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"),
)


def gpu_sections(facts: GpuFacts) -> list[Gpu]:
    """One part for each visible device.

    Where CUDA shows none, the boards that NVML knows: whoever drains the node needs their UUIDs.
    Boards that the control group keeps from us are other jobs' and left out.
    """
    if facts.devices:
        return [_visible(facts, device) for device in facts.devices]
    return [
        Gpu(
            index=board.index,
            visible=False,
            name=board.name,
            uuid=board.uuid or None,
            board_uuid=board.uuid or None,
            pci=board.pci or None,
            memory_total_bytes=board.total_bytes,
            memory_free_bytes=board.free_bytes,
            **_node(facts),
            **_board(board),
        )
        for board in facts.nvml.own_boards
    ]


def _visible(facts: GpuFacts, device: DeviceFacts) -> Gpu:
    board = facts.board_of(device)
    told: dict[str, Any] = _board(board) if board else {}
    if device.compute_mode is not None:
        told["compute_mode"] = compute_mode_word(device.compute_mode)
    if device.mig:  # figures of the whole board say nothing of a slice
        told |= {"memory_used_bytes": None, "memory_reserved_bytes": None}
    return Gpu(
        index=device.index,
        name=device.name,
        uuid=device.uuid or None,
        board_uuid=device.board_uuid or (board.uuid if board else "") or None,
        pci=device.pci or (board.pci if board else "") or None,
        compute_capability=".".join(str(part) for part in device.capability),
        multiprocessors=device.n_multiprocessors,
        memory_total_bytes=device.total_bytes,
        memory_free_bytes=device.free_bytes,
        mig=device.mig,
        **_node(facts),
        **told,
    )


def _node(facts: GpuFacts) -> dict[str, Any]:
    """What all GPUs of the node share."""
    return {
        "driver": facts.driver or facts.nvml.driver or None,
        "cuda_version": cuda_release(facts.cuda_version) if facts.cuda_version else None,
        "waited_s": facts.waited_s or None,
    }


def _board(board: BoardFacts) -> dict[str, Any]:
    """What NVML tells of a board."""
    same = {name: getattr(board, name) for name in _SAME}
    return same | {
        "memory_used_bytes": board.used_bytes,
        "memory_reserved_bytes": board.reserved_bytes,
        "compute_mode": _if_read(board.compute_mode, compute_mode_word),
        "fabric_state": _if_read(board.fabric_state, fabric_word),
        "fabric_status": _if_read(board.fabric_status, _status),
        "throttle_reasons": _if_read(board.throttle, lambda mask: list(throttle_reasons(mask))),
        "processes": _if_read(board.processes, lambda users: [_user(user) for user in users]),
        "board_error": nvml_error(board.handle_error).told if board.handle_error else None,
        "unread": {name: nvml_error(number).told for name, number in board.unread.items()},
    }


def _if_read(fact: FactT | None, made: Callable[[FactT], MadeT]) -> MadeT | None:
    return None if fact is None else made(fact)


def _status(number: int) -> str:
    return nvml_error(number).told if number else "0 NVML_SUCCESS"


def _user(user: GpuProcess) -> GpuUser:
    return GpuUser(pid=user.pid, name=user.name or None, memory_bytes=user.used_bytes)
