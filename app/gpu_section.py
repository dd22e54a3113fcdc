"""The report's `gpus`, from what the gpu stage found."""

from __future__ import annotations

import math
from typing import Any

from app.facts.board import BoardFacts
from app.facts.board_words import compute_mode_word, fabric_word, throttle_reasons
from app.facts.driver_errors import NO_PERMISSION, nvml_error
from app.facts.gpu import DeviceFacts, GpuFacts
from app.sections_gpu import Gpu, GpuUser

# Of a board's facts, those that stand in the report by the same name.
_SAME = (
    *("ecc_enabled", "ecc_uncorrected", "remap_pending", "remap_failed", "remapped_uncorrectable"),
    *("retired_pages", "retirement_pending", "mig_enabled", "temperature_c", "persistence"),
    *("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"),
)


def gpu_sections(facts: GpuFacts) -> list[Gpu]:
    """One part for each visible device.

    Where CUDA shows none, the boards that NVML knows: whoever drains the node needs their UUIDs.
    Boards that the control group keeps from us are other jobs' and left out.
    """
    if facts.devices:
        return [_visible(facts, device) for device in facts.devices]
    boards = [board for board in facts.nvml.boards if board.handle_error != NO_PERMISSION]
    return [
        Gpu(
            index=board.index,
            visible=False,
            memory_total_bytes=board.total_bytes,
            memory_free_bytes=board.free_bytes,
            **_node(facts),
            **_board(board),
            **_called(board),
        )
        for board in boards
    ]


def _visible(facts: GpuFacts, device: DeviceFacts) -> Gpu:
    board = facts.board_of(device)
    told: dict[str, Any] = _board(board) if board else {}
    mode = device.compute_mode
    if mode is not None:
        told["compute_mode"] = compute_mode_word(mode)
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
    cuda = facts.cuda_version
    return {
        "driver": facts.driver or facts.nvml.driver or None,
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "waited_s": facts.waited_s if math.isfinite(facts.waited_s) and facts.waited_s else None,
    }


def _called(board: BoardFacts) -> dict[str, Any]:
    """Which board it is, where no device says so."""
    uuid = board.uuid or None
    return {"name": board.name, "uuid": uuid, "board_uuid": uuid, "pci": board.pci or None}


def _board(board: BoardFacts) -> dict[str, Any]:
    """What NVML tells of a board."""
    told: dict[str, Any] = {name: getattr(board, name) for name in _SAME}
    error, mode = board.handle_error, board.compute_mode
    users = board.processes
    return told | {
        "memory_used_bytes": board.used_bytes,
        "memory_reserved_bytes": board.reserved_bytes,
        "compute_mode": None if mode is None else compute_mode_word(mode),
        "fabric_state": None if board.fabric_state is None else fabric_word(board.fabric_state),
        "fabric_status": _status(board.fabric_status),
        "throttle_reasons": None
        if board.throttle is None
        else list(throttle_reasons(board.throttle)),
        "power_limit_w": _finite(board.power_limit_w),
        "power_limit_default_w": _finite(board.power_limit_default_w),
        "processes": None
        if users is None
        else [
            GpuUser(pid=user.pid, name=user.name or None, memory_bytes=user.used_bytes)
            for user in users
        ],
        "board_error": nvml_error(error).told if error else None,
        "unread": {name: nvml_error(number).told for name, number in board.unread.items()},
    }


def _finite(number: float | None) -> float | None:
    """JSON has no NaN."""
    return number if number is not None and math.isfinite(number) else None


def _status(number: int | None) -> str | None:
    if number is None:
        return None
    return nvml_error(number).told if number else "0 NVML_SUCCESS"
