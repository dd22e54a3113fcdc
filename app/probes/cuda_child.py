"""Asks the CUDA driver about the devices and prints one line of JSON.

Run as a file in a process of its own, because any of these calls can hang or crash:
`python -I -S cuda_child.py PARENT`. Standard library only, no import of the app. It dies with its
parent. The context it makes to read free memory ends with the process. Numbers are those of CUDA's
driver API (cuda.h).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class _CallError(Exception):
    """A driver call did not return CUDA_SUCCESS."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call)
        self.call, self.code = call, code


def _call(lib: ctypes.CDLL, name: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes
    code = int(getattr(lib, name)(*arguments))
    if code:
        raise _CallError(name, code)


def _free_bytes(lib: ctypes.CDLL, device: ctypes.c_int) -> tuple[int | None, int]:
    """Free memory, which the driver tells only inside a context; else the error's number."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    try:
        _call(lib, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call(lib, "cuCtxSetCurrent", context)
        _call(lib, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except _CallError as error:
        return None, error.code
    except AttributeError:  # a library without the entry point: nothing known, nothing wrong
        return None, 0
    return free.value, 0


def _device(lib: ctypes.CDLL, index: int, *, alone: bool) -> dict[str, Any]:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = (ctypes.create_string_buffer(size) for size in (256, 16))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(lib, "cuDeviceGet", ctypes.byref(device), index)
    _call(lib, "cuDeviceGetName", name, len(name), device)
    _call(lib, "cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
    _call(lib, "cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, device)
    _call(lib, "cuDeviceTotalMem_v2", ctypes.byref(total), device)
    if hasattr(lib, "cuDeviceGetUuid"):  # recorded where it can be had, and never judged
        _call(lib, "cuDeviceGetUuid", uuid, device)
    # A context disturbs whoever is on the device: never on one that may be somebody else's.
    free, context_error = _free_bytes(lib, device) if alone else (None, 0)
    digits = uuid.raw.hex()
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "uuid": f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
        "capability": [major.value, minor.value],
        "total_bytes": total.value,
        "free_bytes": free,
        "context_error": context_error,
    }


def _loaded_from() -> str:
    """The file behind libcuda.so.1 in this process."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if "libcuda.so" in line and "/" in line:
            return line[line.index("/") :]
    return ""


def ask() -> dict[str, Any]:
    """Everything the driver answers, up to the first call that fails."""
    found: dict[str, Any] = {}
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"load_error": str(error)}
    try:
        found["libcuda"] = _loaded_from()
        version = ctypes.c_int()
        if hasattr(lib, "cuDriverGetVersion") and not lib.cuDriverGetVersion(ctypes.byref(version)):
            found["cuda_version"] = version.value
        count = ctypes.c_int()
        found["call"] = "cuInit"
        _call(lib, "cuInit", 0)
        _call(lib, "cuDeviceGetCount", ctypes.byref(count))
        found["n_devices"] = count.value
        found["devices"] = [
            _device(lib, index, alone=count.value == 1) for index in range(count.value)
        ]
    except _CallError as error:
        return found | {"init_error": error.code, "call": error.call}
    except AttributeError as error:
        return found | {"load_error": f"not a CUDA driver library: {error}"}
    return found | {"init_error": 0}


def _die_with(parent: int) -> bool:
    """The kernel kills this process when its parent ends; False when that has happened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


if __name__ == "__main__" and _die_with(int(sys.argv[1])):
    sys.stdout.write(json.dumps(ask()) + "\n")
