"""Multiplies with packed weights on the device, and compares with float64 on the host."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from app.engine.nf4_layers import Layer, tried
from app.facts.golden import Product
from app.facts.names import dtype_name
from app.plan import Plan

_SEED = 3407
# One row is what a token takes when generating; 64 are many for every kernel. Fixed, because the
# number of rows decides which kernel runs and in which order it adds.
_ROWS = (1, 64)
_OUTPUTS = 128  # of a layer, evenly spread: float64 on a host is slow
Multiply = Callable[[torch.Tensor, Layer], torch.Tensor]
Differentiate = Callable[[torch.Tensor, Layer, torch.Tensor], torch.Tensor]


def tolerance(dtype: torch.dtype, rows: int, k: int) -> float:
    """The largest relative error, root mean square, of a product over `k` values.

    One rounding to a dtype is an error of 0.4 u in the root mean square of many, u its unit
    roundoff (float16 2^-11, bfloat16 2^-8, float32 2^-24).

    Many rows: the reference's weight (a kernel may keep float32), the output, and the parts of a
    sum that is split are rounded: four times, together 0.8 u. Allowed are 2 u.

    One row, on a GPU: code, scale, their product and the product with the input are rounded to 16
    bits and summed in float32 (`gemm_4bit_simt` in the machine code of bitsandbytes 0.50.2): with
    the output and the reference's weight six times, together 1.0 u. Allowed are 4 u.

    A sum of k products in float32 adds at most sqrt(k) of its roundoff.
    """
    unit = torch.finfo(dtype).eps / 2
    return (4 if rows == 1 else 2) * unit + math.sqrt(k) * 2.0**-24


def multiplied(inputs: torch.Tensor, layer: Layer) -> torch.Tensor:
    """By the function that `Linear4bit.forward` calls."""
    from bitsandbytes import matmul_4bit

    on_device = inputs.to(layer.packed.device)
    found: torch.Tensor = matmul_4bit(on_device, layer.packed, layer.state)
    return found


@torch.enable_grad()
def gradient(inputs: torch.Tensor, layer: Layer, of_output: torch.Tensor) -> torch.Tensor:
    """What comes back to the input, by the backward pass of the same function."""
    from bitsandbytes import matmul_4bit

    leaf = inputs.to(layer.packed.device).detach().requires_grad_()
    output = matmul_4bit(leaf, layer.packed, layer.state)
    found: torch.Tensor = torch.autograd.grad(output, leaf, of_output.to(output))[0]
    return found


def products(
    layer: Layer,
    plan: Plan,
    multiply: Multiply = multiplied,
    differentiate: Differentiate = gradient,
) -> Iterator[Product]:
    """Of a Linear in its compute dtype, forward and back. Experts have code of their own."""
    from bitsandbytes.nn import Linear4bit

    if not isinstance(layer.module, Linear4bit):
        return
    dtype = layer.module.compute_dtype or getattr(torch, plan.profile.compute_dtype)
    n, k = layer.shape
    generator = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn(max(_ROWS), k, generator=generator).to(dtype)
    some = torch.arange(0, n, max(1, n // _OUTPUTS))[:_OUTPUTS]
    weight = _unpacked(layer, dtype, some)
    for rows in _ROWS:
        truth = inputs[:rows].double() @ weight.T
        found, problem = tried(partial(multiply, inputs[:rows], layer))
        error = math.inf if found is None else _relative(found.cpu()[:, some], truth)
        allowed = tolerance(dtype, rows, k)
        yield Product(layer.name, rows, dtype_name(dtype), error, allowed, problem)
    # Zero where no output was looked at, so that the same rows of the weight are the whole truth.
    rows = max(_ROWS)
    back = torch.randn(rows, len(some), generator=generator).to(dtype)
    truth = back.double() @ _unpacked(layer, layer.state.dtype, some)
    whole = torch.zeros(rows, n, dtype=dtype).index_copy(1, some, back)
    found, problem = tried(partial(differentiate, inputs, layer, whole))
    error = math.inf if found is None else _relative(found.cpu(), truth)
    allowed = tolerance(dtype, rows, n)
    yield Product(layer.name, rows, dtype_name(dtype), error, allowed, problem, "input gradient")


def _unpacked(layer: Layer, dtype: torch.dtype, rows: torch.Tensor) -> torch.Tensor:
    """Some rows of the weight, rounded to the dtype as a kernel may round it, then float64.

    The forward pass unpacks to the input's dtype, the backward pass to the quant state's.
    """
    from bitsandbytes.functional import dequantize_4bit

    state = copy.copy(layer.state)  # of the same tensors
    state.dtype = dtype
    values: torch.Tensor = dequantize_4bit(layer.packed, state)
    return values[rows.to(values.device)].cpu().double()


def _relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Error, root mean square, relative to the truth; absolute where that is all zeros."""
    size = float(truth.square().mean().sqrt())
    return float((found.double() - truth).square().mean().sqrt()) / (size or 1.0)
