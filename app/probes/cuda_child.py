"""Asks the CUDA driver about the devices, in a process of its own (`driver_child`).

It tells what `app.probes.driver_answers.CudaAnswer` holds, `device` for each device. `done` comes
early where the rest is of less worth. Before it makes a context it waits for the end of its
standard input: the context's memory and process would be found by whoever asks NVML at the same
time. The context ends with the process. Numbers are those of CUDA's driver API (cuda.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# CU_DEVICE_ATTRIBUTE_...
_MULTIPROCESSORS, _COMPUTE_MODE, _MAJOR, _MINOR = 16, 20, 75, 76
_NOT_READY = (802, 919)  # CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_FABRIC_NOT_READY
_FILES = ("nvidiactl", "nvidia-uvm", "nvidia[0-9]*")


class _CallError(Exception):
    """A driver call did not return CUDA_SUCCESS."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Cuda:
    """libcuda; a call raises `_CallError`, or AttributeError where the library has no such one."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._tell = tell

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes
        function = getattr(self._lib, name)
        self._tell(call=name)
        code = int(function(*arguments))
        if code:
            raise _CallError(code)

    def may(self, name: str, *arguments: Any) -> bool:  # noqa: ANN401 - ctypes
        """A call that nothing depends on; whether it succeeded."""
        try:
            self.call(name, *arguments)
        except (_CallError, AttributeError):
            return False
        return True


def _device(cuda: _Cuda, index: int) -> dict[str, Any]:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    name, pci = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    cuda.call("cuDeviceGet", ctypes.byref(device), index)
    cuda.call("cuDeviceGetName", name, len(name) - 1, device)
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    found: dict[str, Any] = {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "capability": [_attribute(cuda, device, each) for each in (_MAJOR, _MINOR)],
        "total_bytes": total.value,
    }
    for field, attribute in (
        ("n_multiprocessors", _MULTIPROCESSORS),
        ("compute_mode", _COMPUTE_MODE),
    ):
        with contextlib.suppress(_CallError, AttributeError):
            found[field] = _attribute(cuda, device, attribute)
    if cuda.may("cuDeviceGetPCIBusId", pci, len(pci) - 1, device):
        domain, _, rest = pci.value.decode(errors="replace").lower().partition(":")
        found["pci"] = f"{domain:0>8}:{rest}"
    return found | _identity(cuda, device, found["name"])


def _attribute(cuda: _Cuda, device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    cuda.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    return value.value


def _identity(cuda: _Cuda, device: ctypes.c_int, name: str) -> dict[str, Any]:
    """UUIDs: of a slice the second form tells its own, and the first one its board's."""
    board, own = (ctypes.create_string_buffer(16) for _ in range(2))
    has_board = cuda.may("cuDeviceGetUuid", board, device)
    has_own = cuda.may("cuDeviceGetUuid_v2", own, device)
    mig = " MIG " in name or (has_board and has_own and own.raw != board.raw)
    one = own if has_own else board
    known = has_own or has_board
    return {
        "mig": mig,
        "uuid": f"{'MIG' if mig and has_own else 'GPU'}-{_dashed(one)}" if known else "",
        "board_uuid": ""
        if not has_board or (mig and own.raw == board.raw)
        else f"GPU-{_dashed(board)}",
    }


def _dashed(uuid: ctypes.Array[ctypes.c_char]) -> str:
    digits = uuid.raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _memory(cuda: _Cuda) -> dict[str, Any]:
    """Free memory, which the driver tells only inside a context; else the error's number."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        cuda.call("cuDeviceGet", ctypes.byref(device), 0)
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        cuda.call("cuCtxSetCurrent", context)
        cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except _CallError as error:
        return {"context_error": error.code}
    except AttributeError:  # a library without the entry point: nothing known, nothing wrong
        return {}
    return {"free_bytes": free.value}


def _loaded_from() -> str:
    """The file behind libcuda.so.1 in this process."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if "libcuda.so" in line and "/" in line:
            return line[line.index("/") :]
    return ""


def _unopenable(devices: Path) -> dict[str, int]:
    """Device files that cannot be opened, with the errno; only so is a control group's no seen."""
    found = {}
    for path in (path for pattern in _FILES for path in sorted(devices.glob(pattern))):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            found[path.name] = error.errno or 0
    return found


def ask(tell: Callable[..., None], devices: str) -> None:
    """Everything that the driver answers, up to the first call that fails.

    `devices` is the folder of the device files.
    """
    tell(call="dlopen")
    try:
        cuda = _Cuda(tell)
    except OSError as error:
        tell(load_error=str(error))
        return
    tell(libcuda=_loaded_from())
    count, version = ctypes.c_int(), ctypes.c_int()
    try:
        if cuda.may("cuDriverGetVersion", ctypes.byref(version)):
            tell(cuda_version=version.value)
        cuda.call("cuInit", 0)
        cuda.call("cuDeviceGetCount", ctypes.byref(count))
        tell(n_devices=count.value)
        for index in range(count.value):
            tell(device=_device(cuda, index))
    except _CallError as error:
        tell(init_error=error.code, done=True)  # a first open can hang as well
        if error.code not in _NOT_READY:
            tell(unopenable=_unopenable(Path(devices)))
        return
    except AttributeError as error:
        tell(load_error=f"not a CUDA driver library: {error}")
        return
    tell(init_error=0)
    if count.value == 1:  # a context disturbs whoever is on the device: not on somebody else's
        os.read(0, 1)
        tell(**_memory(cuda))
