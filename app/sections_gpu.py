"""The report's account of a GPU. Bytes are bytes; None is what could not be read."""

from __future__ import annotations

from pydantic import Field

from app.sections import Section


class GpuUser(Section):
    """A process that holds memory of a GPU, by the host's number; in a container without name."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


class Gpu(Section):
    """One visible device; where CUDA shows none, a board that NVML knows (`visible` is false then).

    From `ecc_enabled` on it is the board's, as NVML tells it: of a MIG slice, the whole board's.
    `unread` has the facts that NVML refused, each with its error.
    """

    index: int  # CUDA's; NVML's where CUDA shows no device
    name: str
    visible: bool = True
    uuid: str | None = None
    board_uuid: str | None = None  # differs from `uuid` for a MIG slice
    pci: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None  # before this boot made a context
    memory_reserved_bytes: int | None = None  # by the driver
    driver: str | None = None
    cuda_version: str | None = None  # the newest that the driver runs
    mig: bool | None = None  # whether the device is a slice
    compute_mode: str | None = None
    waited_s: float | None = None  # for a driver that was not ready
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_uncorrectable: int | None = None
    retired_pages: int | None = None
    retirement_pending: bool | None = None
    mig_enabled: bool | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    throttle_reasons: list[str] | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    persistence: bool | None = None
    processes: list[GpuUser] | None = None  # found before this boot made a context
    board_error: str | None = None  # of a board that NVML cannot open
    unread: dict[str, str] = Field(default_factory=dict)
