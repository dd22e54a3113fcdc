"""What the driver's error numbers mean: one place for CUDA's, NVML's, and those that nobody knows.

Every number leads to a name, a kind of fault and a next step. What a number without a row means
cannot be known: a call that every healthy node answers with success has failed, so the node is at
fault, and the number is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.facts._cuda_errors import (
    BUG,
    CUDA,
    DRAIN,
    FULL,
    MISMATCH,
    NODE,
    OLD,
    RIGHTS,
    UTILITY,
    Meaning,
)
from app.outcome import Fault

TAKE_OTHER, DRAIN_IT, REBOOT_IT = NODE.step, DRAIN.step, MISMATCH.step

# CUDA's numbers that are asked for by name.
NO_DEVICE, INVALID_DEVICE, COMPAT_REFUSED, UNKNOWN = 100, 101, 804, 999
FABRIC_NOT_READY = frozenset({802, 919})
# Kernel module and library differ: whoever brought the library is at fault.
CUDA_MISMATCHES = frozenset({302, 303, 803})
REQUEST = CUDA[NO_DEVICE][1].step

# NVML's.
NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 12, 13
GPU_IS_LOST, RESET_REQUIRED, NVML_MISMATCH = 15, 16, 18
# Of a handle: the device is there and broken, not merely kept from us.
GONE = frozenset({8, 11, 14, GPU_IS_LOST, RESET_REQUIRED, 28})

# nvml.h, NVML_ERROR_*.
NVML: dict[int, tuple[str, Meaning]] = {
    1: ("NVML_ERROR_UNINITIALIZED", NODE),
    2: ("NVML_ERROR_INVALID_ARGUMENT", NODE),
    NOT_SUPPORTED: ("NVML_ERROR_NOT_SUPPORTED", NODE),
    NO_PERMISSION: ("NVML_ERROR_NO_PERMISSION", Meaning(Fault.NODE_UNFIT, RIGHTS)),
    5: ("NVML_ERROR_ALREADY_INITIALIZED", NODE),
    6: ("NVML_ERROR_NOT_FOUND", NODE),
    7: ("NVML_ERROR_INSUFFICIENT_SIZE", NODE),
    8: ("NVML_ERROR_INSUFFICIENT_POWER", DRAIN),
    9: (
        "NVML_ERROR_DRIVER_NOT_LOADED",
        Meaning(Fault.NODE_UNFIT, "take another node; load this one's driver (modprobe nvidia)"),
    ),
    10: ("NVML_ERROR_TIMEOUT", NODE),
    11: ("NVML_ERROR_IRQ_ISSUE", DRAIN),
    LIBRARY_NOT_FOUND: ("NVML_ERROR_LIBRARY_NOT_FOUND", Meaning(Fault.NODE_UNFIT, UTILITY)),
    FUNCTION_NOT_FOUND: ("NVML_ERROR_FUNCTION_NOT_FOUND", OLD),
    14: ("NVML_ERROR_CORRUPTED_INFOROM", DRAIN),
    GPU_IS_LOST: ("NVML_ERROR_GPU_IS_LOST", DRAIN),
    RESET_REQUIRED: ("NVML_ERROR_RESET_REQUIRED", DRAIN),
    17: ("NVML_ERROR_OPERATING_SYSTEM", NODE),
    NVML_MISMATCH: ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", MISMATCH),
    19: (
        "NVML_ERROR_IN_USE",
        Meaning(Fault.TEMPORARY, "wait for the GPU's other user to end, or take another one"),
    ),
    20: ("NVML_ERROR_MEMORY", FULL),
    21: ("NVML_ERROR_NO_DATA", NODE),
    22: ("NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", NODE),
    23: ("NVML_ERROR_INSUFFICIENT_RESOURCES", FULL),
    24: ("NVML_ERROR_FREQ_NOT_SUPPORTED", NODE),
    25: ("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", OLD),
    26: ("NVML_ERROR_DEPRECATED", NODE),
    27: ("NVML_ERROR_NOT_READY", NODE),
    28: ("NVML_ERROR_GPU_NOT_FOUND", DRAIN),
    29: ("NVML_ERROR_INVALID_STATE", NODE),
    30: ("NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", NODE),
    999: ("NVML_ERROR_UNKNOWN", NODE),
}


@dataclass(frozen=True, slots=True)
class DriverError:
    """One number with its meaning; `name` says whose number it is where the headers have none."""

    number: int
    name: str
    meaning: Meaning

    @property
    def fault(self) -> Fault:
        """Who has to act."""
        return self.meaning.fault

    @property
    def step(self) -> str:
        """What the person with the job can do."""
        return self.meaning.step

    @property
    def told(self) -> str:
        """`46 CUDA_ERROR_DEVICE_UNAVAILABLE`; `12345 (an unknown error of CUDA)`."""
        return f"{self.number} {self.name}"


def cuda_error(number: int) -> DriverError:
    """What a call of CUDA, the driver's or the runtime's, says with this number."""
    return DriverError(number, *CUDA.get(number, ("(an unknown error of CUDA)", NODE)))


def start_error(number: int) -> DriverError:
    """The same of a call that the boot itself makes to look at the device.

    Those calls are the same everywhere and right: a number that speaks of a wrong call is then the
    node's doing.
    """
    error = cuda_error(number)
    return replace(error, meaning=NODE) if error.meaning is BUG else error


def nvml_error(number: int) -> DriverError:
    """What a call of NVML says with this number."""
    return DriverError(number, *NVML.get(number, ("(an unknown error of NVML)", NODE)))
