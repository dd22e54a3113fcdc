"""The report's `gpus`: everything that was read, by name, and nothing where it was not."""

from __future__ import annotations

from dataclasses import fields, replace

from app.facts.board import BoardFacts, GpuProcess, NvmlFacts
from app.facts.gpu import GpuFacts
from app.gpu_section import gpu_sections
from app.profiles import GIB
from tests.gpus import (
    FACTS,
    H100_BOARD,
    OTHER_UUID,
    PCI,
    UUID,
    V100_FACTS,
    changed,
    refused,
    with_board,
    with_device,
)

SLICE = UUID.replace("GPU", "MIG")


def test_what_is_read_stands_in_the_report() -> None:
    (gpu,) = gpu_sections(FACTS)
    shown = gpu.model_dump()
    none = {name for name, value in shown.items() if value is None}
    assert none == {"waited_s", "retired_pages", "retirement_pending", "board_error"}
    assert (gpu.uuid, gpu.pci, gpu.compute_capability) == (UUID, PCI, "9.0")
    assert (gpu.driver, gpu.cuda_version, gpu.multiprocessors) == ("580.95.05", "13.0", 132)
    assert (gpu.fabric_state, gpu.fabric_status) == ("completed", "0 NVML_SUCCESS")
    assert gpu.compute_mode == "default"
    assert gpu.unread["retired_pages"] == "3 NVML_ERROR_NOT_SUPPORTED"


def test_every_fact_of_a_board_has_a_field() -> None:
    """A new one that the report forgets is found here; some have another name there."""
    renamed = {"free_bytes", "handle_error", "mig_uuids", "throttle"}
    renamed |= {"total_bytes", "used_bytes", "reserved_bytes"}
    shown = set(gpu_sections(FACTS)[0].model_dump())
    assert {field.name for field in fields(BoardFacts)} - renamed <= shown


def test_reasons_of_throttling_are_told_by_name_and_unknown_bits_by_number() -> None:
    (gpu,) = gpu_sections(with_board(throttle=0x4 | 0x40 | 0x1000))
    assert gpu.throttle_reasons == ["sw_power_cap", "hw_thermal_slowdown", "0x1000"]
    assert gpu_sections(with_board(throttle=None))[0].throttle_reasons is None


def test_processes_are_counted_and_named_where_a_name_is_known() -> None:
    users = (GpuProcess(7, GIB, "python"), GpuProcess(8))
    (gpu,) = gpu_sections(with_board(processes=users))
    assert gpu.processes is not None
    assert [(user.pid, user.name, user.memory_bytes) for user in gpu.processes] == [
        (7, "python", GIB),
        (8, None, None),
    ]


def test_memory_in_use_on_the_board_is_not_told_as_a_slices() -> None:
    (gpu,) = gpu_sections(with_device(uuid=SLICE, mig=True))
    assert (gpu.mig, gpu.uuid, gpu.board_uuid) == (True, SLICE, UUID)
    assert gpu.memory_used_bytes is None


def test_without_a_device_the_boards_are_named_for_whoever_drains_the_node() -> None:
    foreign = BoardFacts(index=1, handle_error=4)
    lost = BoardFacts(index=2, handle_error=15)
    nvml = replace(FACTS.nvml, boards=(H100_BOARD, foreign, lost), n_devices=3)
    first, second = gpu_sections(refused(999, nvml=nvml))
    assert (first.visible, first.uuid, first.compute_capability) == (False, UUID, None)
    assert (second.index, second.board_error) == (2, "15 NVML_ERROR_GPU_IS_LOST")


def test_a_neighbours_board_is_not_told_as_the_devices() -> None:
    board = replace(H100_BOARD, uuid=OTHER_UUID, pci="00000000:18:00.0")
    (gpu,) = gpu_sections(changed(nvml=replace(FACTS.nvml, boards=(board,))))
    assert (gpu.uuid, gpu.power_limit_w, gpu.unread) == (UUID, None, {})


def test_nothing_is_told_where_nothing_was_seen() -> None:
    assert gpu_sections(GpuFacts()) == []
    (gpu,) = gpu_sections(changed(V100_FACTS, nvml=NvmlFacts()))
    assert (gpu.ecc_enabled, gpu.processes, gpu.driver) == (None, None, "580.95.05")
