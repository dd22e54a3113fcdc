"""What an exception amounts to by its class and numbers, wherever in the boot it comes up.

Never by words alone, which drift between releases, but for the status of a library on the device,
which torch writes by its name into a bare RuntimeError. Classes of torch are known by their full
names, since neither supervisor nor preflight may import it; what they need read from the device
comes from `app.engine.device`.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace

from app.errors import BootError, causes, number_told, system_error
from app.facts import disk
from app.facts.driver_errors import TAKE_OTHER, cuda_error
from app.facts.host import size
from app.facts.process import DeviceMemory
from app.facts.words import one_line
from app.outcome import Fault, Finding, Status
from app.profiles import GIB

_SOURCE = "the class of the exception"
_OUT_OF_DEVICE_MEMORY = "torch.OutOfMemoryError"
_ACCELERATOR = "torch.AcceleratorError"
_CUDA_OUT_OF_MEMORY = 2
# Of cuBLAS, cuDNN and their like. Others (INVALID_VALUE, NOT_SUPPORTED) are a fault of the call.
_STATUS = re.compile(
    r"\bCU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_"
    r"(ALLOC_FAILED|NOT_INITIALIZED|EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR|ARCH_MISMATCH)\b"
)
_STEPS = {
    Fault.READ_ERROR: "check the disk or mount, and its free space; another node may have it right",
    Fault.CONFIG: "give this uid the right to it, or set a folder where it has that",
}

# Printed by bitsandbytes 0.50's native library before it leaves the process: the driver's text.
_NATIVE = re.compile(r"Error (.+) at line \d+ in file ")


def blamed(error: BaseException, told: str = "") -> Finding | None:
    """What the exception, or the outermost of its causes that has a meaning, amounts to.

    None where none has: then it is a bug of ours until shown otherwise. `told` is what stands in
    the finding as `actual`, else type and text of that cause.
    """
    for cause in causes(error):
        found = _alone(cause, told or short(cause))
        if found is not None:
            return found
    return None


def _alone(cause: BaseException, told: str) -> Finding | None:
    if isinstance(cause, BootError):
        return cause.finding
    ancestors = {f"{each.__module__}.{each.__qualname__}" for each in type(cause).__mro__}
    if _OUT_OF_DEVICE_MEMORY in ancestors:
        return out_of_device_memory(None, told)
    if _ACCELERATOR in ancestors:
        return accelerator(getattr(cause, "error_code", None), told)
    if isinstance(cause, MemoryError):
        return out_of_host_memory(told)
    if isinstance(cause, RuntimeError) and (status := _STATUS.search(str(cause))):
        return library(status, told)
    return of_number(system_error(cause), told, str(getattr(cause, "filename", None) or ""))


def of_line(line: str) -> Finding | None:
    """The same of an exception's last line, where nothing but the text is left of it."""
    name = line.partition(":")[0].rpartition(".")[2].strip()
    if name == _OUT_OF_DEVICE_MEMORY.rpartition(".")[2]:
        return out_of_device_memory(None, line)
    if name.endswith("MemoryError"):  # Python's and numpy's
        return out_of_host_memory(line)
    if status := _STATUS.search(line):
        return library(status, line)
    if native := _NATIVE.match(line):
        told = f"a call of CUDA failed: {one_line(native[1])}"
        return replace(accelerator(None, line), reason=told, source="what bitsandbytes printed")
    return of_number(number_told(line), line)


def of_number(number: int | None, told: str, where: str = "") -> Finding | None:
    """What a failed system call amounts to; None where its number tells no fault."""
    if number is None:
        return None
    if number == errno.ENOMEM:
        return out_of_host_memory(told)
    fault = disk.fault_of(number)
    if fault is None:
        return None
    name = errno.errorcode.get(number, str(number))
    at = f" at {one_line(where)}" if where else ""
    return Finding(
        Status.FAIL,
        f"{os.strerror(number)} ({name}){at}",
        expected="files and folders that can be read and written",
        actual=told,
        next_step=_STEPS[fault],
        fault=fault,
        source=f"errno {number} of the exception",
    )


def out_of_host_memory(told: str) -> Finding:
    """Refused by the allocator: by a limit of address space, or by the kernel's own account."""
    return Finding(
        Status.FAIL,
        "out of host memory",
        expected="memory for the model and for what loads it",
        actual=told,
        next_step="raise the memory limit of the container (and `ulimit -v`), or take a node with "
        "more memory",
        fault=Fault.HARDWARE_MISMATCH,
        source=_SOURCE,
    )


def out_of_device_memory(
    memory: DeviceMemory | None, told: str, *, least_bytes: int = 0
) -> Finding:
    """Too little memory in all, or memory that somebody else holds: only the latter passes.

    A device below `least_bytes` is too small whoever holds what.
    """
    if memory is None:
        return _no_room(
            "out of device memory; what others hold of it could not be read", told, passes=False
        )
    # A context of our own and the driver's share stay below 1 GiB on both cards.
    passes = memory.others_bytes > GIB and memory.total_bytes >= least_bytes
    return _no_room(
        f"out of device memory: more than {size(memory.peak_bytes)} are needed and "
        f"{size(memory.free_bytes)} of {size(memory.total_bytes)} are free; this process holds "
        f"{size(memory.own_bytes)}, others {size(memory.others_bytes)}",
        told,
        passes=passes,
    )


def _no_room(reason: str, told: str, *, passes: bool) -> Finding:
    step = (
        "wait for the device, or take another"
        if passes
        else "use a card with more memory, or a smaller model, a shorter sequence or load_in_4bit"
    )
    return Finding(
        Status.FAIL,
        reason,
        expected="device memory for the model, its adapter and the steps",
        actual=told,
        next_step=step,
        fault=Fault.TEMPORARY if passes else Fault.HARDWARE_MISMATCH,
        source=f"{_SOURCE}, torch.cuda.mem_get_info",
    )


def accelerator(code: int | None, told: str) -> Finding:
    """A failed CUDA call: of the node, unless its number says that no node would take it.

    It says nothing about numbers, so it is never `NUMERICS`, also in that stage.
    """
    if code == _CUDA_OUT_OF_MEMORY:
        return out_of_device_memory(None, told)
    error = None if code is None else cuda_error(code)
    return Finding(
        Status.FAIL,
        f"a call of CUDA failed: error {error.told if error else 'without a number'}",
        expected="every call of CUDA succeeds",
        actual=told,
        next_step=error.step if error else TAKE_OTHER,
        fault=error.fault if error else Fault.NODE_UNFIT,
        source="torch.AcceleratorError.error_code",
    )


def library(status: re.Match[str], told: str) -> Finding:
    """What a library on the device answered: for want of memory, or because a call failed there."""
    if status[1] == "ALLOC_FAILED":
        return out_of_device_memory(None, told)
    mismatch = status[1] == "ARCH_MISMATCH"
    return Finding(
        Status.FAIL,
        f"a library on the device failed: {status[0]}",
        expected="every call of CUDA's libraries succeeds",
        actual=told,
        next_step="use the image that was built for this hardware" if mismatch else TAKE_OTHER,
        fault=Fault.HARDWARE_MISMATCH if mismatch else Fault.NODE_UNFIT,
        source="the library's status, in torch's words",
    )


def short(error: BaseException) -> str:
    """Type and text of one exception, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
