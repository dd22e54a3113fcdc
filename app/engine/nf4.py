"""NF4 unpacked with numpy: the reference for what a device unpacks. It asks no library of it.

The arithmetic is that of bitsandbytes 0.50, found by comparing bits: a scale that is packed itself
is `code * outer` rounded to float32, then `+ offset` rounded again; a value is `VALUES[4 bits] *
scale` rounded to float32, and once more to the weight's dtype, to nearest, ties to even. A fused
multiply-add would change hundreds of scales of a layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.facts.nf4 import NF4

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Bits = NDArray[np.unsignedinteger[Any]]

VALUES: Floats = np.array(NF4, np.float32)
# Dtype -> its bits without the sign of infinity, and of float32's smallest normal number.
_PATTERNS = {
    "float32": (0x7F800000, 0x00800000),
    "bfloat16": (0x7F80, 0x0080),
    "float16": (0x7C00, 0),  # what is that small is zero in it
}


def scales(
    codes: Bytes, table: Floats, outer: Floats, offset: float, *, blocksize: int, first: int
) -> Floats:
    """Scales from their codes. `first` is the place of the first one in its weight.

    `outer` holds one number for each `blocksize` codes of the whole weight.
    """
    blocks = (first + np.arange(codes.size)) // blocksize
    with np.errstate(invalid="ignore"):  # a scale that is no number is judged as a difference
        found: Floats = table[codes] * outer[blocks] + np.float32(offset)
    return found


def unpack(packed: Bytes, absmax: Floats, *, blocksize: int, n: int) -> Floats:
    """`n` values from the first of a block on; the high half of a byte comes first."""
    codes = np.empty((packed.size, 2), np.uint8)
    codes[:, 0], codes[:, 1] = packed >> 4, packed & 15
    with np.errstate(invalid="ignore"):
        found: Floats = VALUES[codes.reshape(-1)[:n]] * np.repeat(absmax, blocksize)[:n]
    return found


def bits(values: Floats, dtype: str) -> Bits:
    """The values rounded to a dtype, as its bits. Integers round to bfloat16, which numpy lacks."""
    wide = values.view(np.uint32)
    if dtype == "float32":
        return wide
    if dtype == "float16":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).view(np.uint16)
    rounded = wide + np.uint32(0x7FFF) + ((wide >> 16) & 1)
    found = (rounded >> 16).astype(np.uint16)
    found[np.isnan(values)] = 0x7FC0  # whose last bits may all be set, and would carry over
    return found


def number(pattern: int, dtype: str) -> float:
    """The number that a dtype's bits stand for."""
    if dtype == "float16":
        return float(np.uint16(pattern).view(np.float16))
    wide = pattern << 16 if dtype == "bfloat16" else pattern
    return float(np.uint32(wide).view(np.float32))


def differing(actual: Bits, expected: Bits, dtype: str) -> NDArray[np.intp]:
    """Where the bits differ.

    Any two NaN are equal; and so is zero to what is subnormal in float32: bitsandbytes' kernels for
    CUDA (FMUL.FTZ in their machine code) and for a CPU with bfloat16 instructions flush it.
    """
    places = np.flatnonzero(actual != expected)
    infinity, smallest = _PATTERNS[dtype]
    sign = np.asarray(~actual.dtype.type(0) >> 1, actual.dtype)
    got, wanted = actual[places] & sign, expected[places] & sign
    equal = (got > infinity) & (wanted > infinity) | (got == 0) & (wanted <= smallest)
    found: NDArray[np.intp] = places[~equal]
    return found
