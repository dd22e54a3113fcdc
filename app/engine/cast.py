"""What going to another dtype does to the checkpoint's values, counted on the bytes of its files.

Without its sign, the bits of a float are in the order of its magnitude, and rounding keeps that
order: whatever becomes of a value, it does so in one range of bit patterns. Counting patterns needs
no cast and no second copy.

numpy on one thread: 4.2 GB/s out of the page cache, bfloat16 to float16, where reading alone gives
10. A second thread gained nothing (4.2; 2 shared cores), torch's operations gave 0.6.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from app.engine.packed import base_model, key_mapper
from app.facts.cast import CastFacts, TensorCast
from app.facts.checkpoint import CheckpointFacts, TensorHeader
from app.facts.names import dtype_name, origin_name
from app.facts.words import error_text
from app.plan import Plan

_BitsT = NDArray[Any]  # one dimension, of unsigned integers
_BUFFER = 256 << 10  # bytes; a core's own cache holds it, and 4 MiB are a third slower


@dataclass(frozen=True, slots=True)
class _Kind:
    """A float as files hold it: torch's name, its bits as a number, and those of infinity."""

    dtype: str
    bits: type[np.unsignedinteger[Any]]
    infinity: int

    @property
    def unsigned(self) -> int:
        """All bits but the sign."""
        return int(np.iinfo(self.bits).max >> 1)

    def value(self, pattern: int) -> float:
        """The number with these bits, sign off."""
        if self.bits is np.uint16:  # of a bfloat16: the upper half of a float32
            return float(np.array(pattern << 16, np.uint32).view(np.float32))
        wide = np.float32 if self.bits is np.uint32 else np.float64
        return float(np.array(pattern, self.bits).view(wide))


@dataclass(frozen=True, slots=True)
class _Ends:
    """Bit patterns without sign: where each outcome of a cast ends or begins."""

    zero: int  # the last that becomes zero
    subnormal: int  # the last that becomes subnormal
    infinite: int  # the first that becomes infinite


# By the file's own names. The small floats are left out: each is exact in 16 bits.
_KINDS = {
    "F16": _Kind("float16", np.uint16, 0x7C00),
    "BF16": _Kind("bfloat16", np.uint16, 0x7F80),
    "F32": _Kind("float32", np.uint32, 0x7F80_0000),
    "F64": _Kind("float64", np.uint64, 0x7FF0_0000_0000_0000),
}
# From the file's dtype to the target. Other pairs are harmless by their ranges alone: float16 loses
# digits in bfloat16, and neither overflows nor comes near zero. Rounding is to the nearest, ties to
# even; torch goes from float64 to 16 bits by way of float32. A test holds these against torch.
_ENDS = {
    ("bfloat16", "float16"): _Ends(0x3300, 0x387F, 0x4780),
    ("float32", "float16"): _Ends(0x3300_0000, 0x387F_DFFF, 0x477F_F000),
    ("float32", "bfloat16"): _Ends(0x8000, 0x7F_7FFF, 0x7F7F_8000),
    ("float64", "float16"): _Ends(
        0x3E60_0000_1000_0000, 0x3F0F_FBFF_EFFF_FFFF, 0x40EF_FDFF_F000_0000
    ),
    ("float64", "bfloat16"): _Ends(
        0x3790_0010_0000_0000, 0x380F_DFFF_DFFF_FFFF, 0x47EF_EFFF_F000_0000
    ),
    ("float64", "float32"): _Ends(
        0x3690_0000_0000_0000, 0x380F_FFFF_DFFF_FFFF, 0x47EF_FFFF_F000_0000
    ),
}


def measure(model: nn.Module, checkpoint: CheckpointFacts | None, plan: Plan) -> CastFacts:
    """Counts what `plan.profile.cast_dtypes` make of every floating tensor of the files.

    What stands beside packed weights (scales, code tables) stays as it is, and is no part of it.
    """
    started = time.perf_counter()
    if checkpoint is None or not checkpoint.shards:
        return CastFacts(reason="no safetensors: of other files the cast is not looked at")
    floating = _floating(checkpoint)
    lossy = [header for header in floating if _targets(header, plan)]
    held = _held(model)
    renamed = key_mapper(base_model(model), held)
    buffer = memoryview(bytearray(_BUFFER))
    found: list[TensorCast] = []
    unread: list[str] = []
    n_bytes = 0
    for file, headers in groupby(lossy, key=lambda header: header.file):  # in the files' order
        try:
            with _opened(checkpoint.folder / file) as handle:
                for header in headers:
                    magnitudes = _magnitudes(handle, header, buffer)
                    dtype = held.get(renamed(header.name), "")
                    found += _casts(header, magnitudes, dtype, _targets(header, plan))
                    n_bytes += header.n_bytes
        except OSError as error:  # what follows in this file is left: each try may take minutes
            unread.append(f"{file}: {error_text(error)}")
    return CastFacts(
        tensors=tuple(found),
        n_exact=len(floating) - len(lossy),
        n_bytes=n_bytes,
        unread=tuple(unread),
        seconds=time.perf_counter() - started,
    )


def _floating(checkpoint: CheckpointFacts) -> list[TensorHeader]:
    """Tensors of the files that are numbers by themselves."""
    packed = frozenset(checkpoint.packed)
    return [
        header
        for header in checkpoint.tensors
        if header.dtype in _KINDS and header.name.rpartition(".")[0] not in packed
    ]


def _targets(header: TensorHeader, plan: Plan) -> dict[str, _Ends]:
    """The profile's targets that can do harm to this tensor."""
    dtype = _KINDS[header.dtype].dtype
    return {each: _ENDS[dtype, each] for each in plan.profile.cast_dtypes if (dtype, each) in _ENDS}


def _held(model: nn.Module) -> dict[str, str]:
    """The dtype of every tensor of the model, by its name before PEFT.

    transformers 5.17 casts a weight to the compute dtype before it is packed, and bitsandbytes
    keeps the dtype that it was packed from.
    """
    named = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    found = {}
    for name, tensor in named:
        state: Any = getattr(tensor, "quant_state", None)
        found[origin_name(name)] = dtype_name(tensor.dtype if state is None else state.dtype)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _magnitudes(handle: int, header: TensorHeader, buffer: memoryview) -> Iterator[_BitsT]:
    """The bits of the tensor's values without their signs, piece by piece in the one buffer."""
    kind = _KINDS[header.dtype]
    for done in range(0, header.n_bytes, len(buffer)):
        view = buffer[: header.n_bytes - done]
        _fill(handle, view, header.begin + done)
        magnitudes = np.frombuffer(view, kind.bits)
        magnitudes &= kind.unsigned
        yield magnitudes


def _fill(handle: int, view: memoryview, offset: int) -> None:
    """Reads as many bytes as fit; a read may give fewer than it was asked for."""
    while view:
        n = os.preadv(handle, [view], offset)
        if n == 0:
            raise OSError("cut off while it was read")
        view, offset = view[n:], offset + n


def _casts(
    header: TensorHeader, magnitudes: Iterable[_BitsT], held: str, targets: dict[str, _Ends]
) -> Iterator[TensorCast]:
    """Reads the tensor once for all its targets."""
    kind = _KINDS[header.dtype]
    n_not_finite = largest = 0
    counts = {target: np.zeros(3, np.int64) for target in targets}
    for piece in magnitudes:
        top = int(piece.max())
        broken = 0
        if top >= kind.infinity:
            broken = int(np.count_nonzero(piece >= kind.infinity))
            top = int(piece.max(where=piece < kind.infinity, initial=0))
        n_not_finite += broken
        largest = max(largest, top)
        n_zeros = piece.size - np.count_nonzero(piece)
        for target, ends in targets.items():
            gone = np.count_nonzero(piece <= ends.zero)
            small = np.count_nonzero(piece <= ends.subnormal)
            over = np.count_nonzero(piece >= ends.infinite) - broken if top >= ends.infinite else 0
            counts[target] += np.array((over, gone - n_zeros, small - gone))
    for target, (n_overflow, n_zero, n_subnormal) in counts.items():
        yield TensorCast(
            name=header.name,
            dtype=kind.dtype,
            target=target,
            held=held,
            n=header.n_bytes // np.dtype(kind.bits).itemsize,
            n_overflow=int(n_overflow),
            n_zero=int(n_zero),
            n_subnormal=int(n_subnormal),
            n_not_finite=n_not_finite,
            largest=kind.value(largest),
        )
