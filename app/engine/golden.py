"""Proves NF4 on the device: what it unpacks and multiplies, and what it unpacks from.

One layer of each kind is unpacked where it lies and compared with numpy's bits; every scale of
every layer is compared with the file. Packed weights are not: the fingerprint sums them up, and to
read a whole file again would take longer than all the rest.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from app.engine import nf4
from app.engine.file_tensors import FileTensors
from app.engine.nf4_layers import Layer, layers, tried
from app.engine.nf4_products import products
from app.facts.checkpoint import CheckpointFacts
from app.facts.golden import GoldenFacts, Product, Unpacked, UnpackerT
from app.facts.names import dtype_name
from app.plan import Plan

_SEED = 3407
# A weight of up to a million values is compared whole; of a larger one sixteen pieces, among them
# both ends. A piece is a multiple of every block size (4096 at most).
_PIECE, _PIECES = 2**16, 16
Unpack = Callable[[torch.Tensor, Any], torch.Tensor]  # bytes and quant state -> values


@torch.no_grad()
def prove(model: nn.Module, checkpoint: CheckpointFacts | None, plan: Plan) -> GoldenFacts:
    """Compare, with at most one unpacked weight at a time on the device, as in a forward pass."""
    started = time.perf_counter()
    packed = list(layers(model))
    kinds: dict[object, list[Layer]] = {}
    for layer in packed:
        kinds.setdefault(_kind(layer), []).append(layer)
    unpacked: list[Unpacked] = []
    multiplied: list[Product] = []
    for first, *others in kinds.values():
        found = [compare(first, by, unpack) for by, unpack in unpackers(first)]
        unpacked += [replace(each, n_layers=1 + len(others)) for each in found]
        if not any(each.problem for each in found):
            multiplied += products(first, plan)
    n_scales, changed = _against_file(model, packed, checkpoint)
    return GoldenFacts(
        unpacked=tuple(unpacked),
        products=tuple(multiplied),
        n_scales=n_scales,
        changed=changed,
        reason="" if packed else "no weight of the model is packed as NF4",
        seconds=time.perf_counter() - started,
    )


def _kind(layer: Layer) -> object:
    computed = getattr(layer.module, "compute_dtype", None)
    state = layer.state
    return layer.shape, state.blocksize, layer.nested, state.dtype, layer.packed.dtype, computed


def unpackers(layer: Layer) -> Iterator[tuple[UnpackerT, Unpack]]:
    """bitsandbytes', and Unsloth's where it has one: for a CUDA device, bytes and two sides.

    On a CPU Unsloth's kernels call CUDA's entries of a library that has none.
    """
    from bitsandbytes.functional import dequantize_4bit

    yield "bitsandbytes", dequantize_4bit
    utils = sys.modules.get("unsloth.kernels.utils")
    plain = layer.packed.dtype is torch.uint8 and len(layer.shape) == len(("out", "in"))
    if utils is not None and layer.packed.is_cuda and plain:
        yield "unsloth", utils.fast_dequantize


def compare(layer: Layer, by: UnpackerT, unpack: Unpack) -> Unpacked:
    """Unpack one weight on its device, and look at its bits piece by piece."""
    state = layer.state
    facts = Unpacked(
        name=layer.name,
        shape=layer.shape,
        blocksize=int(state.blocksize),
        nested_blocksize=layer.nested,
        dtype=dtype_name(state.dtype),
        by=by,
        n_layers=1,
    )
    n = math.prod(layer.shape)
    values, problem = tried(partial(unpack, layer.packed, state))
    if values is None:
        return replace(facts, problem=problem)
    if (values.numel(), values.dtype) != (n, state.dtype):
        found = f"{values.numel()} values of {dtype_name(values.dtype)} came out"
        return replace(facts, problem=found)
    for start, stop in _pieces(n, facts.blocksize):
        actual = _bits(values.reshape(-1)[start:stop])
        expected = nf4.bits(_reference(layer, start, stop), facts.dtype)
        different = nf4.differing(actual, expected, facts.dtype)
        facts = replace(
            facts,
            n_compared=facts.n_compared + stop - start,
            n_different=facts.n_different + different.size,
        )
        if different.size and not facts.first:
            place = int(different[0])
            must, is_ = (nf4.number(int(each[place]), facts.dtype) for each in (expected, actual))
            facts = replace(facts, first=f"value {start + place} must be {must!r} and is {is_!r}")
    return facts


def _pieces(n: int, blocksize: int) -> list[tuple[int, int]]:
    """Where to look among `n` values: everywhere, or both ends and seeded places between."""
    if n <= _PIECE * _PIECES:
        return [(0, n)]
    generator = torch.Generator().manual_seed(_SEED)
    drawn = 1 + torch.randperm(n // _PIECE - 2, generator=generator)[: _PIECES - 2]
    starts = [0, *(_PIECE * each for each in sorted(drawn.tolist()))]
    tail = (n - _PIECE) // blocksize * blocksize
    return [*((start, start + _PIECE) for start in starts), (tail, n)]


def _bits(values: torch.Tensor) -> nf4.Bits:
    """On the host, as unsigned integers."""
    unsigned = torch.uint32 if values.dtype is torch.float32 else torch.uint16
    found: nf4.Bits = values.cpu().view(unsigned).numpy()
    return found


def _reference(layer: Layer, start: int, stop: int) -> nf4.Floats:
    """The values from the start of a block on, by numpy, from the bytes on the device."""
    state = layer.state
    first, last = start // state.blocksize, -(-stop // state.blocksize)
    packed = layer.packed.view(torch.uint8).reshape(-1)[start // 2 : (stop + 1) // 2]
    absmax = _host(state.absmax.reshape(-1)[first:last])
    if layer.nested is not None:
        inner = state.state2
        absmax = nf4.scales(
            absmax,
            _host(inner.code),
            _host(inner.absmax),
            float(state.offset),
            blocksize=layer.nested,
            first=first,
        )
    return nf4.unpack(_host(packed), absmax, blocksize=int(state.blocksize), n=stop - start)


def _host(tensor: torch.Tensor) -> Any:
    """As numpy: bytes as they are, numbers as float32."""
    plain = tensor if tensor.dtype is torch.uint8 else tensor.float()
    return plain.cpu().numpy()


def _against_file(
    model: nn.Module, packed: list[Layer], checkpoint: CheckpointFacts | None
) -> tuple[int, tuple[str, ...]]:
    """How many scales and tables were compared with a packed checkpoint's, and which differ."""
    states = {layer.name: layer.state for layer in packed}
    n, changed = 0, []
    for name, part, stored in FileTensors(model, checkpoint).packings(states):
        held = _part(states[name], part)
        if held is None or held.is_meta:
            continue
        n += 1
        if not _same(held, stored):
            changed.append(f"{name}.quant_state.{part}")
    return n, tuple(changed)


def _part(state: Any, part: str) -> torch.Tensor | None:
    """`absmax`, or `state2.absmax`; an offset may be a plain number."""
    for field in part.split("."):
        state = getattr(state, field, None)
    return torch.tensor(state, dtype=torch.float32) if isinstance(state, float) else state


def _same(held: torch.Tensor, stored: torch.Tensor) -> bool:
    """Byte by byte, after the cast that a loader may have made."""
    mine, theirs = held.cpu().reshape(-1), stored.to(held.dtype).reshape(-1)
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
