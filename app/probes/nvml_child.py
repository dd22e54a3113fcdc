"""Asks NVML about every board, in a process of its own (`driver_child`), through nvidia-ml-py.

It tells what `app.facts.board.NvmlFacts` holds, `board` for each board. Numbers are nvml.h's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_INITIAL_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_LIBRARY, _CLOCKS = "libnvidia-ml.so.1", "nvmlDeviceGetCurrentClocks"
_FUNCTION_NOT_FOUND, _VERSION_MISMATCH, _UNKNOWN = 13, 25, 999
# After these an older form of the call is tried: the driver is older than nvidia-ml-py.
_OLDER = (_FUNCTION_NOT_FOUND, _VERSION_MISMATCH)
_MAX_PROCESSES = 64  # told of one board
_MAX_SLICES = 7  # instances of a board in MIG mode

Handle = Any  # what nvidia-ml-py makes of a device


class _Nvml:
    """nvidia-ml-py; a call raises one of `errors`, of which `_number` gives NVML's number."""

    def __init__(self, module: Any, tell: Callable[..., None]) -> None:  # noqa: ANN401 - without types
        self.module = module  # it decodes texts strictly, and an older one lacks names
        self.errors = (module.NVMLError, UnicodeDecodeError, AttributeError)
        self._tell = tell

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - ctypes
        self._tell(call=name)
        function = getattr(self.module, name, None)
        if function is None:  # an nvidia-ml-py that does not know it
            raise self.module.NVMLError(_FUNCTION_NOT_FOUND)
        return function(*arguments)

    def newest(self, *calls: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the calls return
        """The first of several forms of one call that this driver has."""
        for each in calls[:-1]:
            try:
                return each()
            except self.errors as error:
                if _number(error) not in _OLDER:
                    raise
        return calls[-1]()


def _memory(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    """The second form counts the driver's own reserve apart, the first one as used."""
    found = nvml.newest(
        lambda: nvml.call("nvmlDeviceGetMemoryInfo", board, nvml.module.nvmlMemory_v2),
        lambda: nvml.call("nvmlDeviceGetMemoryInfo", board),
    )
    return {
        "total_bytes": found.total,
        "used_bytes": found.used,
        "free_bytes": found.free,
        "reserved_bytes": getattr(found, "reserved", None),
    }


def _processes(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    found = {
        process.pid: process.usedGpuMemory
        for process in nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", board)
    }
    for other in ("Graphics", "MPSCompute"):  # not every board has such
        with contextlib.suppress(*nvml.errors):
            more = nvml.call(f"nvmlDeviceGet{other}RunningProcesses_v3", board)
            found |= {each.pid: each.usedGpuMemory for each in more if each.pid not in found}
    first = [*found.items()][:_MAX_PROCESSES]
    return {"processes": [{"pid": pid, "used_bytes": used} for pid, used in first]}


def _fabric(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    second, first = nvml.module.c_nvmlGpuFabricInfo_v2_t(), nvml.module.c_nvmlGpuFabricInfo_t()

    def asked(name: str, info: Any) -> Any:  # noqa: ANN401 - a structure
        nvml.call(name, board, ctypes.byref(info))
        return info

    found = nvml.newest(
        lambda: asked("nvmlDeviceGetGpuFabricInfoV", second),
        lambda: asked("nvmlDeviceGetGpuFabricInfo", first),
    )
    # An unsigned char in nvml.h, with bytes of no meaning behind it.
    return {"fabric_state": found.state & 0xFF, "fabric_status": found.status}


def _mig(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    current, _pending = nvml.call("nvmlDeviceGetMigMode", board)
    if not current:
        return {"mig_enabled": False}
    found = []
    for index in range(_MAX_SLICES):
        with contextlib.suppress(*nvml.errors):  # a free place, or one that is not this container's
            part = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", board, index)
            found.append(nvml.call("nvmlDeviceGetUUID", part))
    return {"mig_enabled": True, "mig_uuids": found}


def _retired(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    """Pages that are out of use for single-bit (0) and double-bit (1) errors."""
    pages = [nvml.call("nvmlDeviceGetRetiredPages", board, cause) for cause in (0, 1)]
    return {"retired_pages": sum(map(len, pages))}


def _remapped(nvml: _Nvml, board: Handle) -> dict[str, Any]:
    _correctable, uncorrectable, pending, failed = nvml.call("nvmlDeviceGetRemappedRows", board)
    return {
        "remap_pending": bool(pending),
        "remap_failed": bool(failed),
        "remapped_uncorrectable": uncorrectable,
    }


# The fields that a read fills, which are `unread` when it is refused. Memory and processes first:
# whoever starts meanwhile shall not be found.
_READS: Mapping[tuple[str, ...], Callable[[_Nvml, Handle], dict[str, Any]]] = {
    ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes"): _memory,
    ("processes",): _processes,
    ("remap_pending", "remap_failed", "remapped_uncorrectable"): _remapped,
    ("retired_pages",): _retired,
    ("mig_enabled", "mig_uuids"): _mig,
    ("fabric_state", "fabric_status"): _fabric,
}
# Field, call (and its name in an older driver), arguments behind the board, what is made of it.
_PLAIN: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("uuid", "nvmlDeviceGetUUID", (), str),
    ("pci", "nvmlDeviceGetPciInfo", (), lambda info: str(info.busId).lower()),
    ("name", "nvmlDeviceGetName", (), str),
    ("ecc_enabled", "nvmlDeviceGetEccMode", (), lambda current_pending: bool(current_pending[0])),
    # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
    ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), int),
    ("retirement_pending", "nvmlDeviceGetRetiredPagesPendingStatus", (), bool),
    ("compute_mode", "nvmlDeviceGetComputeMode", (), int),
    ("power_limit_w", "nvmlDeviceGetPowerManagementLimit", (), lambda mw: mw / 1000),
    ("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), lambda mw: mw / 1000),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), int),
    ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), int),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), int),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), int),
    ("persistence", "nvmlDeviceGetPersistenceMode", (), bool),
    # NVML_TEMPERATURE_GPU
    ("temperature_c", "nvmlDeviceGetTemperatureV nvmlDeviceGetTemperature", (0,), int),
    ("throttle", f"{_CLOCKS}EventReasons {_CLOCKS}ThrottleReasons", (), int),
)


def _board(nvml: _Nvml, index: int, *, names: bool) -> dict[str, Any]:
    """One board; a lost one has its number alone."""
    try:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
    except nvml.errors as error:
        return {"index": index, "handle_error": _number(error)}
    unread: dict[str, int] = {}
    found: dict[str, Any] = {"index": index, "unread": unread}
    for fields, read in _READS.items():
        try:
            found |= read(nvml, handle)
        except nvml.errors as error:
            unread |= dict.fromkeys(fields, _number(error))
    for field, names_of, arguments, made in _PLAIN:
        forms = (partial(nvml.call, name, handle, *arguments) for name in names_of.split())
        try:
            found[field] = made(nvml.newest(*forms))
        except nvml.errors as error:
            unread[field] = _number(error)
    for process in found.get("processes", ()) if names else ():
        with contextlib.suppress(*nvml.errors):
            process["name"] = str(nvml.call("nvmlSystemGetProcessName", process["pid"]))
    return found


def _number(error: Exception) -> int:
    return int(getattr(error, "value", 13 if isinstance(error, AttributeError) else _UNKNOWN))


def ask(tell: Callable[..., None], proc: str, modules: str) -> None:
    """Everything that NVML answers.

    `proc` is the folder of the kernel's files, `modules` that of nvidia-ml-py, empty for none.
    """
    if modules:  # an empty one would be the current folder
        sys.path.append(modules)
    try:
        import pynvml
    except ImportError as error:
        tell(load_error=f"nvidia-ml-py: {error}")
        return
    tell(call="dlopen")
    try:
        ctypes.CDLL(_LIBRARY)  # for the loader's words, which nvidia-ml-py keeps to itself
    except OSError as error:
        tell(load_error=f"{_LIBRARY} cannot be loaded: {error}")
        return
    nvml = _Nvml(pynvml, tell)
    try:
        nvml.call("nvmlInit")
        with contextlib.suppress(*nvml.errors):
            tell(driver=str(nvml.call("nvmlSystemGetDriverVersion")))
        n_devices = int(nvml.call("nvmlDeviceGetCount"))
    except nvml.errors as error:
        tell(init_error=_number(error))
        return
    tell(init_error=0, n_devices=n_devices)
    names = False
    with contextlib.suppress(OSError):
        # A name is looked up by the host's number among the processes that this one sees.
        names = os.readlink(f"{proc}/self/ns/pid") == _INITIAL_PIDS  # noqa: PTH115 - no path
    for index in range(n_devices):
        tell(board=_board(nvml, index, names=names))
