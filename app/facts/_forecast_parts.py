"""The parts of a forecast: weights, what is there before them, loading, and a training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest

from app.facts._forecast_shape import Shape
from app.facts._forecast_training import training
from app.facts._forecast_weights import Weight
from app.facts.adapter import counted
from app.facts.memory_part import MemoryPart
from app.plan import Plan

_MIB = 1024**2
# A context with the kernels that a training step needs. The least: 274 MiB were seen with lazy
# loading of modules (pytorch#86509), 426 MiB with torch 2.10 for CUDA 13 (unsloth-zoo#1053); half
# of the smaller one is surely there. The most: 636 MiB without lazy loading (pytorch#86509), with
# room for Triton's kernels and cuDNN's.
_CONTEXT = (128 * _MIB, 1024 * _MIB)
# cuBLAS's workspace for one handle: 8.125 MiB by default, 32 MiB on Hopper (torch
# CUDABlas.cpp, getChosenWorkspaceSize); a second one for cuBLASLt at the most.
_WORKSPACE = {(7, 0): (8 * _MIB, 64 * _MIB), (9, 0): (32 * _MIB, 96 * _MIB)}
# Imports of the whole stack in the worker. Measured on the H100 set (torch 2.14.1, unsloth
# 2026.10.9, Python 3.11): 539 MiB that no kernel can take back, 894 MiB with the libraries' pages.
# The least leaves room for other versions; on a GPU CUDA's libraries and a context come on top, and
# the most is a round number above both.
_IMPORTS = (384 * _MIB, 2048 * _MIB)
_IMPORTS_ON_CPU = (384 * _MIB, 1280 * _MIB)
# transformers 5.17 reads up to four tensors at once (core_model_loading.GLOBAL_WORKERS).
_READERS = 4
# A cast to float16 after the load, one tensor at a time, large ones piece by piece
# (unsloth_zoo 2026.10.9, patching_utils.py: _FORCED_FLOAT32_STAGE_BYTES).
_STAGE = 1024 * _MIB
# Blocks of the caching allocator that a step has freed and that do not fit what comes next: an
# assumption, as a share of what a step takes. On a CPU glibc keeps what is freed: up to as much
# again was measured (bench/forecast.py, 12 layers of 1024, 64 to 1024 tokens).
_SLACK, _SLACK_ON_CPU = 0.1, 1.0


class Need:
    """The parts for any length: only those of training depend on it."""

    def __init__(self, held: Sequence[Weight], shape: Shape, plan: Plan, free: int | None) -> None:
        self._held, self._shape, self._plan = held, shape, plan
        weights = _weight_parts(held)
        self._fixed = (*weights, *_base_parts(plan), *_load_parts(held, plan))
        taken = sum(part.low_bytes for part in weights)
        self._room = None if free is None else max(0, free - taken)

    def parts(self, tokens: int) -> tuple[tuple[MemoryPart, ...], str]:
        """All of them for sequences of so many tokens, and why training is not among them."""
        steps = training(self._held, self._shape, self._plan, tokens, self._room)
        if isinstance(steps, str):
            return self._fixed, steps
        return (*self._fixed, *steps, _slack(steps, self._plan)), ""


def _weight_parts(held: Iterable[Weight]) -> list[MemoryPart]:
    sums: dict[str, list[int]] = {}
    for weight in held:
        found = sums.setdefault(weight.category, [0, 0, 0, 0])
        found[0] += weight.low
        found[1] += weight.high
        found[2] += weight.low if weight.mapped else 0
        found[3] += 1
    return [
        MemoryPart(name, low, high, f"{counted(n, 'tensor')} of the headers", mapped_bytes=mapped)
        for name, (low, high, mapped, n) in sums.items()
    ]


def _base_parts(plan: Plan) -> list[MemoryPart]:
    """What is there before any weight."""
    if not plan.profile.needs_gpu:
        return [MemoryPart("libraries", *_IMPORTS_ON_CPU, "the imports, measured")]
    workspace = _WORKSPACE.get(plan.profile.compute_capability or (0, 0), (8 * _MIB, 96 * _MIB))
    return [
        MemoryPart("CUDA context", *_CONTEXT, "as reported for torch with lazy loading"),
        MemoryPart("cuBLAS workspace", *workspace, "torch's default"),
        MemoryPart("libraries", *_IMPORTS, "the imports, measured without CUDA", "host"),
    ]


def _load_parts(held: Sequence[Weight], plan: Plan) -> list[MemoryPart]:
    """What loading takes beyond the weights: the largest tensors on their way.

    Weight files are mapped, so their pages can be given back at any time and count for nothing.
    torch converts on the CPU what it then copies to a device (ATen's native/cuda/Copy.cu).
    """

    def largest(sizes: Iterable[int]) -> int:
        return sum(nlargest(_READERS, sizes))

    why = f"the {_READERS} largest tensors that are"
    packed = largest(weight.transit for weight in held if weight.on_the_device)
    recast = 0
    if plan.profile.compute_dtype == "float16":
        recast = min(_STAGE, max((weight.high for weight in held), default=0))
    parts = [MemoryPart("loading", 0, packed + recast, f"{why} packed or cast", phase="load")]
    if plan.profile.needs_gpu:
        host = largest(weight.transit for weight in held if not weight.on_the_device)
        parts.append(MemoryPart("loading", 0, host, f"{why} converted", "host", "load"))
    return parts


def _slack(parts: Iterable[MemoryPart], plan: Plan) -> MemoryPart:
    most = sum(each.high_bytes for each in parts if each.place == "device")
    share, why = (_SLACK, "a tenth of a step, an assumption")
    if not plan.profile.needs_gpu:
        share, why = _SLACK_ON_CPU, "as much as a step, measured"
    return MemoryPart("fragmentation", 0, int(share * most), why, phase="training")
