"""Facts of the CUDA devices, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.facts.board import BoardFacts, GpuProcess, NvmlFacts

# As `LibraryFile` explains them.
LibraryKind = Literal["driver", "stub", "compat", "image", "empty", "broken"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device as the driver describes it. Memory in bytes, `free_bytes` None when unread.

    `context_error` is the driver's number when no context could be made on it, 0 otherwise; no
    context is tried where several devices are visible. `board_uuid` is the physical device's, which
    `uuid` is too unless the device is a slice. `compute_mode` as in `app.facts.board.BoardFacts`.
    """

    index: int
    name: str
    uuid: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int | None = None
    context_error: int = 0
    pci: str = ""  # as in `app.facts.board.BoardFacts`
    n_multiprocessors: int | None = None
    mig: bool = False  # the device is a slice (its UUID begins with MIG-)
    board_uuid: str = ""
    compute_mode: int | None = None


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library of the driver on the loader's path, after links are followed.

    `kind`: `driver`, `stub` (CUDA's, for linking only), `compat` (CUDA's forward compatibility,
    meant to be in an image, by its folder: one that a toolkit mounted elsewhere is `driver`),
    `image` (a copy of the driver's that the image has brought: no mount, and not of the kernel
    module's version), `empty` or `broken` (a folder, a link to nothing, no whole ELF file of this
    machine). `version` as its file name says, `fits` whether that is the kernel module's, None
    where either is unknown. `of_node`: a mount, or on a machine that is no container: no image has
    brought it.
    """

    name: str
    path: str
    kind: LibraryKind = "driver"
    version: str = ""
    fits: bool | None = None
    of_node: bool = False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What this container sees of GPUs.

    `device_files`: names below /dev. `unopenable`: those of them that this process may not open,
    with the errno (13: the file's mode; 1: the control group). The numbered ones are opened only
    where the driver fails, and one that is allowed is enough. `libcuda`: the file that was loaded,
    else the one that lies where the loader looks, else empty. `load_error`: why it could not be
    loaded. `init_error`: what `cuInit` or the device query `call` returned (0 is success), None
    when it was not reached. `cuda_version` is `cuDriverGetVersion`'s (13000 is 13.0), `driver` the
    kernel module's text. `probe_problem`: why the probing child gave no whole answer (deadline in
    seconds, signal, garbage); `call` is then the one that it hangs or died in. `start_errno`: the
    number of why that child could not start at all, 0 where it did. `libraries`: the driver's
    libraries as they lie on the loader's path, one of each name, none of a name that is missing.
    `asked`: variables by which devices are granted (NVIDIA_VISIBLE_DEVICES, SLURM_JOB_GPUS,
    CUDA_VISIBLE_DEVICES, ...), those that are set. `architectures` are those of torch's wheel
    (`sm_90`), empty where unknown or where no device was found, and `architectures_source` who
    says so. `waited_s`: for a driver that was not ready (802), 0 where it was at once.
    """

    device_files: tuple[str, ...] = ()
    libcuda: str = ""
    load_error: str = ""
    init_error: int | None = None
    call: str = ""
    n_devices: int | None = None
    devices: tuple[DeviceFacts, ...] = ()
    cuda_version: int | None = None
    driver: str = ""
    probe_problem: str = ""
    waited_s: float = 0.0
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    libraries: tuple[LibraryFile, ...] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    architectures_source: str = ""
    unopenable: Mapping[str, int] = field(default_factory=dict)
    start_errno: int = 0

    def board_of(self, device: DeviceFacts) -> BoardFacts | None:
        """The physical board of a CUDA device, by UUID or PCI id and never by index."""
        for board in self.nvml.boards:
            if board.uuid and board.uuid in (device.uuid, device.board_uuid):
                return board
        return next((b for b in self.nvml.boards if b.pci and b.pci == device.pci), None)

    def users_of(self, device: DeviceFacts) -> tuple[GpuProcess, ...]:
        """Other processes on a device, the largest first; in a container often none is seen.

        None of a slice: its board's may be another slice's.
        """
        board = None if device.mig else self.board_of(device)
        found = (board.processes if board else None) or ()
        return tuple(sorted(found, key=lambda each: each.used_bytes or 0, reverse=True))

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES as inherited, None where it is not set."""
        return self.asked.get("CUDA_VISIBLE_DEVICES")

    @property
    def looked(self) -> bool:
        """Whether the driver answered every call up to the devices' attributes."""
        return self.init_error == 0 and not self.probe_problem and not self.load_error


def cuda_release(version: int) -> str:
    """`13.0` for 13000, as cuDriverGetVersion counts."""
    return f"{version // 1000}.{version % 1000 // 10}"
