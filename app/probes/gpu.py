"""Gathers what the container sees of GPUs; every call into the driver happens in a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from app.facts.board import BoardFacts, NvmlFacts
from app.facts.board_words import FABRIC_IN_PROGRESS
from app.facts.driver_errors import FABRIC_NOT_READY
from app.facts.gpu import DeviceFacts, GpuFacts
from app.plan import Plan
from app.probes import driver_files
from app.probes.driver_answers import CudaAnswer
from app.probes.driver_children import ask_driver
from app.probes.wheel import torch_architectures

# A cold driver without persistence mode takes some seconds for its first client; NVIDIA documents
# no bound. Ten times that is a hang.
DEADLINE_S = 30.0
# Of the stage's own deadline, after which nobody is left to name what hangs.
_SHARE = 0.85
# An NVSwitch node answers 802 until its fabric manager has trained the links: some minutes at most.
WINDOW_S, _WINDOW_SHARE = 180.0, 0.65
# With a CUDA device that answers already: one GPU needs no fabric, so it gets less of our time.
_USABLE_WINDOW_S = 30.0
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 1.0, 1.5, 5.0
_SAY_EVERY_S = 20.0
_LEAST_S = 0.1  # for a last question, where the stage's deadline leaves nothing
# A question that got less time than this and was not answered says nothing new.
_HURRIED_S = 2.0

_CUDA = driver_files.CUDA
# By which launchers grant devices, and CUDA's own.
_ASKED = (
    *("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "NVIDIA_DRIVER_CAPABILITIES"),
)


def probe_gpu(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    limit_s: float = 0.0,
    say: Callable[[str], object] = lambda _text: None,
    deadline_s: float = DEADLINE_S,
    devices: Path = Path("/dev"),
    proc: Path = Path("/proc"),
) -> GpuFacts:
    """Files first: without device files and without the library there is nothing to ask.

    `limit_s` is the stage's deadline, 0 for none: all questions end well before it. `deadline_s`
    bounds one process that asks.
    """
    if not plan.profile.needs_gpu:
        return GpuFacts()
    seen = _seen(plan, environ, devices, proc)
    if not seen.device_files and not seen.libcuda:
        return replace(seen, load_error=f"{_CUDA} is nowhere in the loader's path")

    def asking(left_s: float, with_nvml: bool) -> tuple[CudaAnswer, NvmlFacts | None]:  # noqa: FBT001 - a callback
        within_s = min(deadline_s, left_s)
        return ask_driver(environ, within_s, devices=devices, proc=proc, with_nvml=with_nvml)

    cuda, nvml, waited_s = ask_until_ready(asking, limit_s, say)
    found = _with_slices(_devices(cuda), nvml.boards)
    architectures, source = torch_architectures(plan.baked) if found else ((), "")
    return replace(
        seen,
        libcuda=cuda.libcuda or seen.libcuda,
        unopenable={**seen.unopenable, **cuda.unopenable},
        load_error=cuda.load_error,
        init_error=cuda.init_error,
        call=cuda.call,
        n_devices=cuda.n_devices,
        devices=found,
        cuda_version=cuda.cuda_version,
        probe_problem=cuda.problem,
        start_errno=cuda.start_errno,
        waited_s=waited_s,
        nvml=nvml,
        architectures=architectures,
        architectures_source=source,
    )


def _seen(plan: Plan, environ: Mapping[str, str], devices: Path, proc: Path) -> GpuFacts:
    """What files and variables tell, with no call into the driver."""
    names, unopenable = driver_files.device_files(devices)
    driver = driver_files.kernel_driver(proc)
    in_image = plan.baked is not None
    libraries = driver_files.driver_libraries(environ, driver, proc, in_image=in_image)
    return GpuFacts(
        device_files=names,
        unopenable=unopenable,
        libcuda=next((file.path for file in libraries if file.name == _CUDA), ""),
        libraries=libraries,
        driver=driver,
        asked={name: environ[name] for name in _ASKED if name in environ},
    )


Asking = Callable[[float, bool], tuple[CudaAnswer, NvmlFacts | None]]


def ask_until_ready(
    ask: Asking, limit_s: float, say: Callable[[str], object]
) -> tuple[CudaAnswer, NvmlFacts, float]:
    """Ask, and again while the driver says that it is coming up; the seconds that this took.

    `ask` gets the seconds that are left for an answer, and whether NVML is worth asking.
    """
    began = time.monotonic()
    window_s = min(WINDOW_S, limit_s * _WINDOW_SHARE) if limit_s else WINDOW_S
    cuda, nvml = CudaAnswer(), NvmlFacts()
    pause_s, asked, say_at = _FIRST_PAUSE_S, 0, began
    while True:
        left_s = limit_s * _SHARE - (time.monotonic() - began) if limit_s else DEADLINE_S
        # NVML that gave no answer once would take the time of every question.
        answer, told = ask(max(_LEAST_S, left_s), not (nvml.problem or nvml.load_error))
        hurried = asked > 0 and left_s < _HURRIED_S
        cuda = cuda if hurried and answer.problem else answer
        nvml = nvml if told is None or (hurried and told.problem) else told
        asked += 1
        why, bound_s = _not_ready(cuda, nvml, window_s)
        spent_s = time.monotonic() - began
        pause_s = min(pause_s, bound_s - spent_s)
        if not why or pause_s <= 0:
            return cuda, nvml, spent_s if why or asked > 1 else 0.0
        if began + spent_s >= say_at:
            say_at = began + spent_s + _SAY_EVERY_S
            say(f"{why}: asking again for {bound_s - spent_s:.0f} s at most")
        time.sleep(pause_s)
        pause_s = min(_PAUSE_GROWTH * pause_s, _LONGEST_PAUSE_S)


def _not_ready(cuda: CudaAnswer, nvml: NvmlFacts, window_s: float) -> tuple[str, float]:
    """Why it is worth to ask again, empty when it is not, and for how many seconds in all."""
    if cuda.problem or cuda.load_error:
        return "", 0.0
    refused = cuda.init_error or cuda.context_error
    if refused in FABRIC_NOT_READY:
        return f"the CUDA driver is not ready ({cuda.call} returned {refused})", window_s
    if any(board.fabric_state == FABRIC_IN_PROGRESS for board in _own(cuda, nvml)):
        bound_s = window_s if cuda.init_error else min(window_s, _USABLE_WINDOW_S)
        return "the NVLink fabric is coming up (by NVML)", bound_s
    return "", 0.0


def _own(cuda: CudaAnswer, nvml: NvmlFacts) -> list[BoardFacts]:
    """The boards of the CUDA devices; all where CUDA does not tell of any."""
    facts = GpuFacts(devices=cuda.devices, nvml=nvml)
    matched = [facts.board_of(device) for device in cuda.devices]
    return [board for board in matched if board] if cuda.devices else list(nvml.boards)


def _devices(cuda: CudaAnswer) -> tuple[DeviceFacts, ...]:
    """With the memory of the only one, which is told last."""
    if len(cuda.devices) != 1:
        return cuda.devices
    (only,) = cuda.devices
    return (replace(only, free_bytes=cuda.free_bytes, context_error=cuda.context_error),)


def _with_slices(
    devices: tuple[DeviceFacts, ...], boards: tuple[BoardFacts, ...]
) -> tuple[DeviceFacts, ...]:
    """A device that NVML knows as a slice is one, also where CUDA does not say so."""
    slices = {uuid for board in boards for uuid in board.mig_uuids or ()}
    found = []
    for device in devices:
        own = "MIG-" + device.uuid.partition("-")[2]
        found.append(replace(device, uuid=own, mig=True) if own in slices else device)
    return tuple(found)
