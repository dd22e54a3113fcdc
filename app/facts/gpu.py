"""Facts of the CUDA devices, read without torch, and what the driver's error numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.facts.board import BoardFacts, NvmlFacts
from app.outcome import Fault

REQUEST = (
    "start the container with a GPU (docker: --gpus device=0; Kubernetes: nvidia.com/gpu: 1; "
    "Slurm: --gres=gpu:1) on a node that has one"
)

NO_DEVICE = 100
# Number of CUDA's driver API -> (name, what to do, what kind of fault). Every other number is the
# node's: the call must succeed on a healthy one.
ERRORS: dict[int, tuple[str, str, Fault]] = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "wait for the memory, or take another GPU", Fault.TEMPORARY),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "take another node", Fault.NODE_UNFIT),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "remove CUDA's stub folder from LD_LIBRARY_PATH: that libcuda is for linking only",
        Fault.INTERNAL,
    ),
    35: ("CUDA_ERROR_INSUFFICIENT_DRIVER", "take a node with a newer driver", Fault.NODE_UNFIT),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process holds the GPU exclusively: wait, or take another one",
        Fault.TEMPORARY,
    ),
    NO_DEVICE: ("CUDA_ERROR_NO_DEVICE", REQUEST, Fault.NODE_UNFIT),
    101: ("CUDA_ERROR_INVALID_DEVICE", "take another node", Fault.NODE_UNFIT),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "drain this node: its memory is bad", Fault.NODE_UNFIT),
    304: (
        "CUDA_ERROR_OPERATING_SYSTEM",
        "the container may lack /dev/nvidia-uvm or rights on it; else take another node",
        Fault.NODE_UNFIT,
    ),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the fabric manager is not up: try again in some minutes, then drain the node",
        Fault.NODE_UNFIT,
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and libcuda differ: reboot or drain the node; an image holds no libcuda",
        Fault.NODE_UNFIT,
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "take a node with a newer driver, or take the compat folder out of LD_LIBRARY_PATH",
        Fault.NODE_UNFIT,
    ),
    999: (
        "CUDA_ERROR_UNKNOWN",
        "load nvidia-uvm (nvidia-modprobe -u) and pass /dev/nvidia-uvm in, or take another node",
        Fault.NODE_UNFIT,
    ),
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device as the driver describes it. Memory in bytes, `free_bytes` None when unread.

    `context_error` is the driver's number when no context could be made on it, 0 otherwise.
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


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library of the driver on the loader's path, after links are followed.

    `kind`: `driver`, `stub` (CUDA's, for linking only), `compat` (CUDA's forward compatibility,
    meant to be in an image), `image` (a copy of the driver's that the image has brought), `empty`
    or `broken` (no ELF file). `version` as its file name says, `fits` whether that is the kernel
    module's, None where either is unknown.
    """

    name: str
    path: str
    kind: str = "driver"
    version: str = ""
    fits: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What this container sees of GPUs.

    `device_files`: names below /dev. `libcuda`: the file that was loaded, else the one that lies
    where the loader looks, else empty. `load_error`: why it could not be loaded. `init_error`: what
    `cuInit` or the device query `call` returned (0 is success), None when it was not reached.
    `cuda_version` is `cuDriverGetVersion`'s (13000 is 13.0), `driver` the kernel module's text.
    `probe_problem`: why the probing child gave no answer (deadline in seconds, signal, garbage).
    `libraries`: the driver's libraries as they lie on the loader's path. `asked`: variables by
    which a launcher grants devices (NVIDIA_VISIBLE_DEVICES, SLURM_JOB_GPUS, ...). `architectures`
    are those of torch's wheel (`sm_90`), empty where unknown, and `architectures_source` who says
    so.
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
    visible: str | None = None  # CUDA_VISIBLE_DEVICES as inherited
    probe_problem: str = ""
    waited_s: float = 0.0  # until the driver was ready; 0 where it was at once
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    libraries: tuple[LibraryFile, ...] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    architectures_source: str = ""

    def board_of(self, device: DeviceFacts) -> BoardFacts | None:
        """The physical board of a CUDA device, by UUID or PCI id and never by index."""
        for board in self.nvml.boards:
            if board.uuid and board.uuid == device.uuid:
                return board
        return next((b for b in self.nvml.boards if b.pci and b.pci == device.pci), None)

    @property
    def driver_major(self) -> int | None:
        """Major version of the kernel module's driver, None when it was not read."""
        major = self.driver.partition(".")[0]
        return int(major) if major.isdigit() else None

    @property
    def looked(self) -> bool:
        """Whether the driver answered every call up to the devices' attributes."""
        return self.init_error == 0 and not self.probe_problem and not self.load_error
