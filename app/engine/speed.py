"""Short measurements of the arithmetic: they show an emulated precision and a throttled card."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from app.facts.speed import SpeedFacts
from app.plan import Plan

_SEED = 3407
_ROUNDS = 3  # of which the best counts: what else runs on the device only makes one slower


@dataclass(frozen=True)
class _Size:
    """What is measured: `side` of the square matrices, `n_bytes` of a copy.

    `calls` follow each other between two waits, so that a launch weighs little. An idle card takes
    `warm_s` seconds of work to raise its clocks.
    """

    side: int
    n_bytes: int
    calls: int
    warm_s: float


# A product of 4096 takes 1.4 ms on a V100's and 0.2 ms on an H100's tensor cores, in float32 10 and
# 3 ms (data sheets): under 150 ms in all. The copy's two halves do not fit into 50 MB of cache.
_GPU = _Size(4096, 64 * 2**20, calls=4, warm_s=0.05)
# 1.6 ms a product on 2 cores with AVX512, where all of it took 0.07 s.
_CPU = _Size(512, 16 * 2**20, calls=1, warm_s=0.0)


def measure(plan: Plan) -> SpeedFacts:
    """The compute dtype's product and copy, and float32's product without TF32."""
    started = time.perf_counter()
    device = torch.device(plan.profile.device)
    on_gpu = device.type == "cuda"
    size = _GPU if on_gpu else _CPU
    dtype: torch.dtype = getattr(torch, plan.profile.compute_dtype)
    name = torch.cuda.get_device_name(device) if on_gpu else device.type
    with _without_tf32():
        flops = _product(size, device, dtype, size.calls)
        plain = flops if dtype is torch.float32 else _product(size, device, torch.float32, 1)
    copied = _copy(size, device, dtype)
    if on_gpu:
        torch.cuda.empty_cache()
    return SpeedFacts(
        device=name,
        dtype=plan.profile.compute_dtype,
        side=size.side,
        matmul_flops=flops,
        float32_flops=plain,
        copy_bytes=copied,
        slice="MIG" in name,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _without_tf32() -> Iterator[None]:
    """float32 as it is: rounded to TF32 it runs on the tensor cores too."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _product(size: _Size, device: torch.device, dtype: torch.dtype, calls: int) -> float:
    """Operations per second; random numbers, since a card needs less power for equal ones."""
    random = torch.Generator(device).manual_seed(_SEED)
    shape = size.side, size.side
    left, right = (
        torch.rand(shape, generator=random, device=device, dtype=dtype) for _ in range(2)
    )
    out = torch.empty_like(left)
    seconds = _best(lambda: torch.mm(left, right, out=out), device, calls, size.warm_s)
    return 2 * size.side**3 / seconds


def _copy(size: _Size, device: torch.device, dtype: torch.dtype) -> float:
    """Bytes read and written per second."""
    source = torch.ones(size.n_bytes // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device, size.calls, 0.0)


def _best(call: Callable[[], object], device: torch.device, calls: int, warm_s: float) -> float:
    """Seconds of one call, in the fastest round; the first call, which loads kernels, is none."""
    started = time.perf_counter()
    call()
    _wait(device)
    while time.perf_counter() - started < warm_s:
        call()
        _wait(device)
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        rounds.append(time.perf_counter() - started)
    return min(rounds) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
