"""Asks NVML how the devices are used, again and again: one line of JSON a period.

Run as a file in a process of its own, because any call into the driver can hang or crash:
`python -I gpu_use_child.py PARENT PERIOD_S VISIBLE`. Imports nothing of the app; of the installed
packages nvidia-ml-py alone. Makes no CUDA context: NVML has none. A line is one of

    {"at": 12.5, "devices": [{"used": 5242880, "busy": 7, "errors": []}]}
    {"problem": "nvmlInit: NVMLError_LibraryNotFound"}

and the second kind is the last. `at` is the machine's monotonic clock in seconds, `used` bytes of
the whole device (the driver's own reserve included), `busy` percent of the last sampling interval,
null where NVML has none, as for `busy` of a MIG slice.

Device totals, not those of our processes: NVML numbers processes as the host does, so inside a
container without the host's PID namespace `nvmlDeviceGetComputeRunningProcesses` lists foreign
numbers or nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Say what the devices do until the parent is gone."""
    parent, period_s, visible = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        return
    try:
        import pynvml
    except ImportError as error:
        _say({"problem": f"nvidia-ml-py: {error}"})
        return
    call = "nvmlInit"
    try:
        pynvml.nvmlInit()
        call = "nvmlDeviceGetCount"
        devices = _named(pynvml, visible) or _all(pynvml)
    except pynvml.NVMLError as error:
        _say({"problem": f"{call}: {_name(error)}"})
        return
    while True:
        at = time.monotonic()  # before the calls: what they answer is not older than this
        _say({"at": at, "devices": [_read(pynvml, device) for device in devices]})
        time.sleep(period_s)


def _named(nvml: Any, visible: str) -> list[Any]:  # noqa: ANN401 - a module without types
    """The devices of CUDA_VISIBLE_DEVICES where it holds UUIDs in full; none where it does not.

    Its indices are CUDA's, which counts in another order than NVML.
    """
    uuids = visible.split(",")
    if not all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids):
        return []
    try:
        return [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
    except nvml.NVMLError:  # shortened, as CUDA allows, or of another machine
        return []


def _all(nvml: Any) -> list[Any]:  # noqa: ANN401 - a module without types
    """Every device of this container, or the error of one that gives no handle.

    NVML counts devices too that the control group keeps from us (nvml.h, nvmlDeviceGetCount_v2).
    """
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError_NoPermission:
            continue
        except nvml.NVMLError as error:
            found.append(error)
    return found


def _read(nvml: Any, device: Any) -> dict[str, Any]:  # noqa: ANN401 - a module without types
    if isinstance(device, nvml.NVMLError):
        return {"used": None, "busy": None, "errors": [f"handle: {_name(device)}"]}
    found: dict[str, Any] = {"used": None, "busy": None, "errors": []}
    try:
        found["used"] = nvml.nvmlDeviceGetMemoryInfo(device).used
    except nvml.NVMLError as error:
        found["errors"].append(f"memory: {_name(error)}")
    try:
        found["busy"] = nvml.nvmlDeviceGetUtilizationRates(device).gpu
    except nvml.NVMLError as error:
        found["errors"].append(f"busy: {_name(error)}")
    return found


def _name(error: Any) -> str:  # noqa: ANN401 - of a module without types
    """NVML's name for the error; a number that nvidia-ml-py does not know stays one."""
    name = type(error).__name__
    return name if name != "NVMLError" else f"NVML error {error.value}"


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # nobody listens any more
        os._exit(0)  # not by the interpreter's end, which would flush into the same pipe
