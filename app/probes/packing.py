"""Reads what stands beside packed weights: quant states, code tables, float scales.

That is little: 1/64 of the weights' number for plain scales, 1/16384 for nested ones. A scale
table is judged by the top byte of each number at the speed of `bytes.translate`, without numpy.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

from app.facts.checkpoint import STATE, QuantData, TensorHeader
from app.probes.files import opened

_TABLES = (".quant_map", ".nested_quant_map")
_SCALES = (".absmax", ".nested_absmax")
_TABLE_LIMIT = 4 * 256  # bytes: the largest code table has 256 numbers
_STATE_LIMIT = 64 * 1024  # bytes; a real one has 200
_CHUNK = 4 * 1024 * 1024  # bytes, a multiple of the width
_WIDTH = 4  # bytes of a float32
# Sign and upper exponent of a little-endian float32 from 0 to below 2**17: 0x00 to 0x47. Weights
# end at 65504 in float16, and a scale is the largest of 64 of them. NaN and infinity have 0x7f.
_SANE = bytes(range(0x48))


def read_quant_data(path: Path, tensors: Iterable[TensorHeader], found: QuantData) -> None:
    """Add what the file holds to `found`.

    Raises:
        OSError: it cannot be read.
    """
    wanted = [header for header in tensors if _reader(header) is not None]
    if not wanted:
        return
    with opened(path) as file:
        for header in wanted:
            if reader := _reader(header):
                file.seek(header.begin)
                reader(file, header, found)


def _reader(header: TensorHeader) -> Callable[[BinaryIO, TensorHeader, QuantData], None] | None:
    if STATE in header.name:
        return _state
    if header.dtype == "F32" and header.name.endswith(_SCALES):
        return _scales
    small = header.n_bytes <= _TABLE_LIMIT
    return _table if header.dtype == "F32" and small and header.name.endswith(_TABLES) else None


def _state(file: BinaryIO, header: TensorHeader, found: QuantData) -> None:
    states = cast("dict[str, Any]", found.states)
    if header.n_bytes > _STATE_LIMIT:
        states[header.name] = f"a quant state of {header.n_bytes} bytes"
        return
    try:
        value = json.loads(file.read(header.n_bytes).decode())
    except (ValueError, RecursionError):
        value = None
    states[header.name] = value if isinstance(value, dict) else "a quant state that is no JSON"


def _table(file: BinaryIO, header: TensorHeader, found: QuantData) -> None:
    raw = file.read(header.n_bytes)
    numbers = array("f", raw[: len(raw) // _WIDTH * _WIDTH])
    cast("dict[str, tuple[float, ...]]", found.tables)[header.name] = tuple(numbers)


def _scales(file: BinaryIO, header: TensorHeader, found: QuantData) -> None:
    left, zero = header.n_bytes, True
    word = ""
    while left > 0 and not word:
        raw = file.read(min(left, _CHUNK))
        left -= len(raw) or left  # a file that shrinks meanwhile ends the loop
        word = "odd" if raw[_WIDTH - 1 :: _WIDTH].translate(None, _SANE) else ""
        zero = zero and not raw.strip(b"\0")
    cast("dict[str, str]", found.scales)[header.name] = word or ("zero" if zero else "")
