"""Facts of a board as NVML, the driver's management library, tells them.

Everything that NVML may refuse is None then, and `unread` says with which of its error numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.facts.driver_errors import NO_PERMISSION


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of the device.

    `pid` is the host's number. `name` is empty in a container: a name would be looked up by that
    number among the container's own processes, and be another one's.
    """

    pid: int
    used_bytes: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """One physical device.

    `pci` is domain:bus:device.function in lower case with eight digits of domain, as in
    `00000000:17:00.0`. `handle_error` is NVML's number when the device could not be opened (15: it
    is lost; 4: it is there and the control group keeps it from this container, which is how other
    jobs' devices look on a shared node), and then nothing else is known. Memory in bytes, power in
    watts. `used_bytes` is without `reserved_bytes` of the driver where `reserved_bytes` is known.
    Both are from before this boot made any context. `mig_uuids`: the slices of a board in MIG mode,
    empty when it has none, None when it is in no such mode. `unread` is keyed by these fields.

    `ecc_uncorrected` counts since the driver was loaded. `remap_pending` and `remap_failed` are of
    row remapping (Ampere and later), `retired_pages` and `retirement_pending` of page retirement
    (Volta). `compute_mode`: 0 default, 2 prohibited, 3 exclusive process. `fabric_state`: 0 not
    supported, 1 not started, 2 in progress, 3 completed; `fabric_status` is NVML's number of its
    end. `throttle` is the bit mask of nvmlClocksEventReason*. `pcie_width` in lanes.
    """

    index: int
    uuid: str = ""
    pci: str = ""
    name: str = ""
    handle_error: int = 0
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_uncorrectable: int | None = None
    retired_pages: int | None = None
    retirement_pending: bool | None = None
    mig_enabled: bool | None = None
    mig_uuids: tuple[str, ...] | None = None
    compute_mode: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    throttle: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    persistence: bool | None = None
    unread: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """What NVML answered. `init_error` is the number that `call` returned before any board.

    It is 0 for success and None when no such call returned. `call`: the last one of nvmlInit,
    nvmlDeviceGetCount and so on; with a `problem` the one that it hangs or died in. `load_error`:
    why the library could not be loaded. `problem`: why there is no whole answer (deadline in
    seconds, signal); boards that were told before it are kept. `start_errno` as in
    `app.facts.gpu.GpuFacts`. `n_devices` counts what NVML sees, which CUDA_VISIBLE_DEVICES does not
    change. All empty, with `init_error` None: NVML was not asked, because there is neither device
    file nor driver library.
    """

    load_error: str = ""
    problem: str = ""
    init_error: int | None = None
    call: str = ""
    driver: str = ""
    n_devices: int | None = None
    boards: tuple[BoardFacts, ...] = ()
    start_errno: int = 0

    @property
    def own_boards(self) -> tuple[BoardFacts, ...]:
        """Those that are not kept from this container, as other jobs' are on a shared node."""
        return tuple(board for board in self.boards if board.handle_error != NO_PERMISSION)
