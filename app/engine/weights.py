"""Scans what is in memory: which tensors are finite, whether one moved, and a digest of all.

The passes run at memory bandwidth: one reduction per tensor, results left on the device, one wait
per device at the end (`isfinite().all().item()` per tensor is some 25 times slower).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isfinite, isnan, nan
from typing import Any

import numpy as np
import torch
from torch import nn

from app.engine.file_tensors import FileTensors
from app.facts.checkpoint import CheckpointFacts
from app.facts.headroom import FLOAT16_MAX
from app.facts.names import dtype_name, origin_name
from app.facts.numerics import NotFinite, WeightFacts, WhereT

_DETAILS = 10  # offenders that are counted and looked up in the file; the rest are only named
_PLAIN = ("quant_type", "blocksize", "dtype", "shape", "offset")  # an offset is mostly a tensor
_WORD = 8  # bytes
# A prime, so that no length of a row is a multiple of it: exchanged rows land in other columns.
_COLUMNS = 16381


def to_host(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Values of scalar tensors, with one wait per device. float64 holds every dtype's range."""
    return _to_host([scalar.detach().to(torch.float64) for scalar in scalars])


def _to_host(scalars: Sequence[torch.Tensor]) -> list[Any]:
    values: list[Any] = [None] * len(scalars)
    for device in {scalar.device for scalar in scalars}:
        places = [i for i, scalar in enumerate(scalars) if scalar.device == device]
        stacked = torch.stack([scalars[i] for i in places])
        for place, value in zip(places, stacked.tolist(), strict=True):
            values[place] = value
    return values


def _scales(name: str, parameter: nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating parts of a packed weight's state: scales, offset and the tables of the codes.

    A nested absmax is bytes; it decodes to `code[byte] * state2.absmax + offset`, so that it is
    finite when those are (`bitsandbytes.functional.dequantize_4bit`).
    """
    state: Any = getattr(parameter, "quant_state", None)
    if state is None:
        return
    nested = getattr(state, "state2", None)
    for label, holder in (("quant_state", state), ("quant_state.state2", nested)):
        for part in ("absmax", "offset", "code"):
            tensor = getattr(holder, part, None)
            if isinstance(tensor, torch.Tensor):
                yield f"{name}.{label}.{part}", tensor


def tensors(model: nn.Module) -> Iterator[tuple[str, WhereT, torch.Tensor]]:
    """Parameters with their scales, then persistent buffers. Tied tensors come once."""
    for name, parameter in model.named_parameters():
        origin = origin_name(name)
        yield origin, "parameter", parameter.detach()
        for scale, tensor in _scales(origin, parameter):
            yield scale, "absmax", tensor
    for name, buffer, persistent in _buffers(model):
        if persistent:
            yield name, "buffer", buffer


def _buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    seen = set()
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in seen:
                seen.add(id(buffer))
                full = origin_name(f"{prefix}.{name}" if prefix else name)
                yield full, buffer, name not in module._non_persistent_buffers_set


def _magnitudes(filled: Sequence[torch.Tensor]) -> list[float]:
    """The largest magnitude of each; NaN when one is in it (`torch.aminmax` hands NaN on)."""
    bounds: list[torch.Tensor] = []
    for tensor in filled:
        # float8 has no reduction of its own.
        bounds += torch.aminmax(tensor.to(torch.float16) if tensor.itemsize == 1 else tensor)
    values = to_host(bounds)
    return [
        nan if isnan(low) or isnan(high) else max(abs(low), abs(high))
        for low, high in zip(values[::2], values[1::2], strict=True)
    ]


def scan(model: nn.Module, checkpoint: CheckpointFacts | None = None) -> WeightFacts:
    """The finite scan, in the design's meaning of finite. `checkpoint` explains what is found."""
    started = time.perf_counter()
    judged: list[tuple[str, WhereT, torch.Tensor]] = []
    on_meta = []
    for name, where, tensor in tensors(model):
        if tensor.is_meta:
            on_meta.append(name)
        elif tensor.is_floating_point() and tensor.numel():
            judged.append((name, where, tensor))
    loose = [
        (name, buffer)
        for name, buffer, persistent in _buffers(model)
        if not persistent and buffer.is_floating_point() and buffer.numel() and not buffer.is_meta
    ]
    magnitudes = _magnitudes([*(each for *_, each in judged), *(each for _, each in loose)])
    sizes, loose_sizes = magnitudes[: len(judged)], magnitudes[len(judged) :]
    bad = [entry for entry, size in zip(judged, sizes, strict=True) if not isfinite(size)]
    good = [
        (size, name) for (name, _, _), size in zip(judged, sizes, strict=True) if isfinite(size)
    ]
    largest, largest_name = max(good, default=(None, ""))
    odd = [each for each in good if each[0] > FLOAT16_MAX or (each[0] == 0 and _carries(each[1]))]
    matrices = {name for name, _, tensor in judged if tensor.ndim > 1}
    files = FileTensors(model, checkpoint)
    return WeightFacts(
        n_scanned=len(judged),
        not_finite=_explain(bad, files),
        not_judged=tuple(
            name for (name, _), size in zip(loose, loose_sizes, strict=True) if not isfinite(size)
        ),
        on_meta=tuple(on_meta),
        largest_magnitude=largest,
        largest_name=largest_name,
        all_zero=tuple(name for size, name in odd if size == 0),
        zero_matrices=tuple(name for size, name in odd if size == 0 and name in matrices),
        unlike_file=tuple(name for size, name in odd[:_DETAILS] if files.differs(name, size)),
        seconds=time.perf_counter() - started,
    )


def _carries(name: str) -> bool:
    """Whether a model without this tensor's values computes nothing: no bias, no fresh LoRA B."""
    return name.endswith(".weight") and ".lora_" not in name


def _explain(
    bad: list[tuple[str, WhereT, torch.Tensor]], files: FileTensors
) -> tuple[NotFinite, ...]:
    """Counts NaN and infinity of the first offenders and looks them up in the checkpoint."""
    found = []
    for index, (name, where, tensor) in enumerate(bad):
        entry = NotFinite(name, where, dtype_name(tensor.dtype), n_nan=0, n_inf=0)
        if index < _DETAILS:
            entry = replace(
                entry,
                n_nan=int(torch.isnan(tensor).sum()),
                n_inf=int(torch.isinf(tensor).sum()),
                file=files.tensor(name),
            )
        found.append(entry)
    return tuple(found)


def checksums(model: nn.Module, skip: frozenset[int]) -> dict[str, int]:
    """A sum of the bytes of every parameter but those whose `id` is in `skip`, scales included.

    Version counters would be free, but a write through `.data` passes them by, and Gemma 3n's own
    training forward writes that way (it clamps AltUp's coefficients in place). Buffers are no part
    of it: batch norms of a frozen tower move their statistics in training mode, as in any trainer.
    """
    named: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in skip:
            origin = origin_name(name)
            named |= {origin: parameter, **dict(_scales(origin, parameter))}
    return byte_sums(named)


def digest(model: nn.Module) -> tuple[str, int, int]:
    """SHA-256 of the base model in memory, and how many tensors and bytes went into it.

    Over name, dtype, shape and `byte_sum` of each of `tensors`, and the plain numbers of each
    quant state, sorted by name. Names are as before PEFT and what it added is left out, so that
    an adapter does not matter; nor do thread count and device, because the sums are of integers.
    It is no defence against somebody who looks for another model of the same digest.
    """
    named = {name: each for name, _, each in tensors(model) if not _of_adapter(name)}
    sums = byte_sums(named)
    lines: list[tuple[object, ...]] = [
        (name, dtype_name(each.dtype), tuple(each.shape), sums.get(name))
        for name, each in named.items()
    ]
    for name, parameter in model.named_parameters():
        lines += _packing(origin_name(name), parameter)
    lines.sort(key=lambda line: str(line[0]))
    n_bytes = sum(named[name].nbytes for name in sums)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest(), len(named), n_bytes


def _of_adapter(name: str) -> bool:
    """Whether PEFT put the tensor beside the base's: a LoRA matrix, or the copy that it trains."""
    return any(part.startswith("lora_") or part == "modules_to_save" for part in name.split("."))


def _packing(name: str, parameter: nn.Parameter) -> Iterator[tuple[object, ...]]:
    """How a packed weight is to be read: what its quant state holds beside tensors."""
    state: Any = getattr(parameter, "quant_state", None)
    for label, holder in (("", state), (".state2", getattr(state, "state2", None))):
        if holder is not None:
            values = (getattr(holder, part, None) for part in _PLAIN)
            plain = (None if isinstance(each, torch.Tensor) else str(each) for each in values)
            yield f"{name}.quant_state{label}", *plain


@cache
def _odd(device: torch.device) -> torch.Tensor:
    """Seeded odd numbers of 64 bits, one for each column; they stay on the device (128 KiB).

    numpy promises this bit stream for ever, so that digests can be compared across versions.
    """
    drawn = np.random.PCG64(0).random_raw(_COLUMNS) | np.uint64(1)
    return torch.from_numpy(drawn.view(np.int64)).to(device)


def byte_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The raw bytes as words of 64 bits in a table, its columns summed and weighted, modulo 2^64.

    Any flipped bit shows: an odd weight hides none. Exchanged words show unless they are a multiple
    of `_COLUMNS` apart, or of two columns and unlike in their highest bits alone. Integer sums come
    out the same in any order.

    A plain sum sees no exchange and is little faster (torch 2.14.1, 200 MB: 12.3 GB/s against 8.4
    on one thread, 23 against 19 on two). int64 because torch sums nothing else as fast on a CPU:
    0.4 GB/s for int32 into int64.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % _WORD:
        flat = flat.clone()
    end = flat.numel() // _WORD * _WORD
    words = flat[:end].view(torch.int64)
    n_table = words.numel() // _COLUMNS * _COLUMNS
    last = words[n_table:]
    if end < flat.numel():
        rest = nn.functional.pad(flat[end:], (0, end + _WORD - flat.numel()))
        last = torch.cat([last, rest.view(torch.int64)])
    odd = _odd(flat.device)
    total = (last * odd[: last.numel()]).sum()
    if n_table:
        total += (words[:n_table].view(-1, _COLUMNS).sum(0) * odd).sum()
    return total


def byte_sums(named: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """`byte_sum` of each tensor that holds data, with one wait per device."""
    filled = {name: each for name, each in named.items() if each.numel() and not each.is_meta}
    return dict(zip(filled, _to_host([*map(byte_sum, filled.values())]), strict=True))
