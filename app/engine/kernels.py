"""Runs one real kernel of each library on the device, with inputs whose result is exactly known.

All results are small integers, or NF4's numbers times powers of two, so that neither the order of
a sum nor a fused multiply-add can change a bit: what differs is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from app.engine import kernel_errors
from app.engine.nf4 import VALUES
from app.engine.stack import architectures
from app.errors import BootError
from app.facts.architectures import Kernels, kernels_for, machine_code
from app.facts.kernels import KernelFacts, KernelRun
from app.outcome import Fault
from app.plan import Plan
from app.profiles import PROFILES, Profile

# Sums of at most 256 numbers of -1, 0 and 1: bfloat16 holds every integer up to 256.
_SIDE = 256
_BLOCKSIZE, _BLOCKS = 64, 64  # elements that share a scale, and how many of such
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A call on inputs that are there, and what says how its result is wrong, if it is."""

    call: Callable[[], Any]
    wrong: Callable[[Any], str]


def run(plan: Plan) -> KernelFacts:
    """Run them, each library by itself: one that fails hides none of the others."""
    on_gpu = plan.profile.needs_gpu
    return KernelFacts(
        device=torch.cuda.get_device_name() if on_gpu else plan.profile.device,
        runs=(
            _tried("torch", f"matmul {plan.profile.compute_dtype}", _matmul, plan.profile),
            *_packing(plan),
            _launched(plan.profile) if on_gpu else _compiled(plan.profile),
        ),
    )


def _packing(plan: Plan) -> tuple[KernelRun, ...]:
    kernels = {"quantize_4bit nf4": _quantise, "dequantize_4bit nf4": _dequantise}
    if not plan.request.load_in_4bit:
        return (KernelRun("bitsandbytes", "nf4", skipped="4-bit loading is off"),)
    return tuple(_tried("bitsandbytes", name, make, plan.profile) for name, make in kernels.items())


def _tried(
    library: str, name: str, make: Callable[[Profile], _Kernel], profile: Profile
) -> KernelRun:
    """Make the kernel for this profile and call it twice; whatever that throws is a fact."""
    tried = KernelRun(library, name)
    try:
        return _timed(tried, make, profile)
    except BootError as error:
        return replace(tried, failure=error.finding)


def _timed(tried: KernelRun, make: Callable[[Profile], _Kernel], profile: Profile) -> KernelRun:
    """Both times, and what was wrong first.

    Raises:
        BootError: for whatever a kernel, or what it needs, throws.
    """
    seconds, wrong = [], ""
    try:
        kernel = make(profile)
        for _ in range(2):
            _synchronise(profile)
            began = time.perf_counter()
            result = kernel.call()
            _synchronise(profile)
            seconds.append(time.perf_counter() - began)
            wrong = wrong or kernel.wrong(result)
    except Exception as error:
        raise kernel_errors.failure(tried.library, error, profile) from error
    return replace(tried, first_s=seconds[0], again_s=seconds[1], wrong=wrong)


def _synchronise(profile: Profile) -> None:
    if profile.needs_gpu:
        torch.cuda.synchronize()


def _matmul(profile: Profile) -> _Kernel:
    """A product of two matrices of -1, 0 and 1 in the compute dtype, against one of integers."""
    generator = torch.Generator().manual_seed(0)  # its own: the global one is not touched
    shape = (2, _SIDE, _SIDE)
    left, right = torch.randint(-1, 2, shape, generator=generator, dtype=torch.int32)
    dtype = getattr(torch, profile.compute_dtype)
    a, b = (each.to(profile.device, dtype) for each in (left, right))
    return _Kernel(lambda: a @ b, _unlike((left @ right).to(dtype)))


def _quantise(profile: Profile) -> _Kernel:
    """Values that NF4 has, so that the bytes are known; every block holds its largest, +-1."""
    from bitsandbytes import functional

    packed, _, values = _nf4(profile)
    there = values.to(profile.device)

    def call() -> torch.Tensor:
        found: torch.Tensor = functional.quantize_4bit(
            there, blocksize=_BLOCKSIZE, quant_type="nf4"
        )[0]
        return found.flatten()

    return _Kernel(call, _unlike(packed))


def _dequantise(profile: Profile) -> _Kernel:
    """The same bytes back."""
    from bitsandbytes import functional

    packed, absmax, values = _nf4(profile)
    state = functional.QuantState(
        absmax.to(profile.device),
        shape=values.shape,
        dtype=values.dtype,
        blocksize=_BLOCKSIZE,
        quant_type="nf4",
    )
    data = packed.unsqueeze(1).to(profile.device)
    return _Kernel(lambda: functional.dequantize_4bit(data, state), _unlike(values))


def _nf4(profile: Profile) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All 256 bytes eight times over, a scale for each block, and the values; on the host.

    The scales are powers of two: a product with them is exact. The high nibble comes first.
    """
    data = torch.arange(_BLOCKS * _BLOCKSIZE // 2) % 256
    absmax = 2.0 ** (torch.arange(_BLOCKS) % 8 - 4)
    codes = torch.from_numpy(VALUES)[torch.stack((data // 16, data % 16), dim=1)]
    values = codes.reshape(_BLOCKS, _BLOCKSIZE) * absmax.unsqueeze(1)
    return data.to(torch.uint8), absmax, values.to(getattr(torch, profile.compute_dtype))


def _launched(profile: Profile) -> KernelRun:
    return _tried("triton", f"axpb {profile.compute_dtype}", _axpb, profile)


def _axpb(profile: Profile) -> _Kernel:
    """2x + 1 of integers below 127; the last block is not full."""
    from app.engine import triton_kernel

    n = 10 * triton_kernel.BLOCK - 1
    source = (torch.arange(n) % 127).to(getattr(torch, profile.compute_dtype))
    there = source.to(profile.device)

    def call() -> torch.Tensor:
        target = torch.zeros_like(there)
        triton_kernel.launch(there, target)
        return target

    return _Kernel(call, _unlike(source * 2 + 1))


def _compiled(profile: Profile) -> KernelRun:
    """Without a device the compiler can still be proven, its assembler and its cache.

    For the first card of ours that torch's wheel is built for: 0.5 s cold and 0.35 s warm, nearly
    all of it Triton's own digest of its files (3.8, 2 cores).
    """
    listed = architectures()
    for card in PROFILES.values():
        capability = card.compute_capability
        if capability is not None and kernels_for(listed, capability) is Kernels.BINARY:
            name = f"axpb {card.compute_dtype}, compiled for {machine_code(capability)}"
            make = partial(_compilation, capability, card.compute_dtype)
            return _tried("triton", name, make, profile)
    return KernelRun("triton", "axpb", skipped="torch is built for none of the cards")


def _compilation(capability: tuple[int, int], dtype: str, _profile: Profile) -> _Kernel:
    from app.engine import triton_kernel

    target = machine_code(capability)

    def call() -> None:
        made = triton_kernel.compiled(capability, dtype)
        # Triton writes `sm_90a` for 9.0.
        if not made["cubin"].startswith(_ELF) or f".target {target}" not in made["ptx"]:
            raise BootError(
                f"Triton's compiler, or its cache, gives no code for {target}",
                fault=Fault.INTERNAL,
                expected=f"PTX for {target}, and an ELF file of it by ptxas",
                actual=f"{made['cubin'][:4]!r}, {made['ptx'][:100]!r}",
                source="what triton.compile returned",
                next_step="empty TRITON_CACHE_DIR and unset TRITON_PTXAS_PATH",
            )

    return _Kernel(call, lambda _: "")


def _unlike(expected: torch.Tensor) -> Callable[[torch.Tensor], str]:
    """Says how a result differs; compared on the host, so that the device does not judge itself."""

    def wrong(result: torch.Tensor) -> str:
        found = result.detach().cpu()
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{found.dtype} {tuple(found.shape)}"
        differ = (found != expected).flatten()  # NaN differs from everything
        n_differ = int(differ.sum())
        if not n_differ:
            return ""
        first = int(differ.nonzero()[0])
        got, must = (float(each.flatten()[first]) for each in (found, expected))
        return f"{n_differ} of {differ.numel()} elements; at {first} {got:g} and not {must:g}"

    return wrong
