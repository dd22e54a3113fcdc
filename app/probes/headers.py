"""Reads the JSON header of a safetensors file: bytes in, tensors out, nothing opened.

The format (huggingface/safetensors, README): an object {name: {dtype, shape, data_offsets}}, the
spans of data in a row from 0 to the end of the file. What the Rust library (0.8) refuses is refused
here; a dtype that it does not know is left to the judge of dtypes. Where this is stricter, a
comment says why.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, TypeGuard

from app.facts.checkpoint import TensorHeader
from app.facts.words import one_line

_METADATA = "__metadata__"
_FIELDS = ("dtype", "shape", "data_offsets")
_OFFSETS = 2  # begin and end of a tensor's data
_NUMBERS = 1 << 64  # the first number that the format cannot hold
# A tensor takes 47 bytes at least and has three brackets. Python's lists take 20 times the bytes of
# "[],", so a header of nothing but brackets would fill the memory.
_BYTES_PER_BRACKET = 12
_FEW = 64  # brackets that are never too many
_LONGEST_NUMBER = 400  # digits; the largest float64 has 309
# Minus zero is 0 to Python, and no whole number to the library. Rare, so looked for beforehand.
_MINUS_ZERO = re.compile(rb"[\[,:]\s*-0")
_LONE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character, alone or not
# Bits of one element, from safetensors' `Dtype::bitsize`.
BITS: dict[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
# Begin, end, name, dtype, shape: sorts by place.
_SpanT = tuple[int, int, str, str, tuple[int, ...]]


class HeaderError(Exception):
    """A header breaks the format; the text is one line."""


def parse_header(raw: bytes, held: int, file: str, start: int = 0) -> list[TensorHeader]:
    """Check a header against `held`, the bytes of data behind it, which begin at `start`.

    The tensors come in file order.

    Raises:
        HeaderError: it breaks the format.
    """
    table = _table(raw)
    _check_metadata(table.pop(_METADATA, None))
    if not table:
        # The library takes it; such a file is left by a save that had gathered no weights.
        raise HeaderError("the header names no tensor")
    spans = sorted([_span(name, value) for name, value in table.items()])
    position = 0
    for begin, end, name, _, _ in spans:
        if begin != position:
            raise HeaderError(f"{one_line(name)}: data begins at {begin}, expected {position}")
        position = end
    if position != held:
        what = "cut off" if held < position else "longer than its header says"
        raise HeaderError(f"{what}: {held} bytes of tensor data, the header says {position}")
    return [
        TensorHeader(name, dtype, shape, end - begin, file, start + begin)
        for begin, end, name, dtype, shape in spans
    ]


def _table(raw: bytes) -> dict[str, Any]:
    # The library takes blanks before the brace; the format's text does not, and nobody writes them.
    if not raw.startswith(b"{"):
        raise HeaderError("the header is no JSON object")
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > _FEW + len(raw) // _BYTES_PER_BRACKET:
        raise HeaderError("the header is nested beyond reason")
    rare = b"-0" in raw and _MINUS_ZERO.search(raw) is not None
    try:
        table: dict[str, Any] = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole if rare else None,
        )
        if _LONE.search(raw):
            json.dumps(table, ensure_ascii=False).encode()
    except RecursionError:
        raise HeaderError("the header is nested beyond reason") from None
    except UnicodeEncodeError:
        raise HeaderError("a name or text in the header is not valid Unicode") from None
    except ValueError as error:
        raise HeaderError(f"the header is no valid JSON: {one_line(str(error))}") from None
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two equal names: the library takes the last one of them, other readers the first."""
    table = dict(pairs)
    if len(table) != len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise HeaderError(f"the header names something twice: {one_line(key)}")
    return table


def _no_constant(text: str) -> None:
    """NaN and the infinities, which Python's parser takes."""
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    """No number here is a fraction, but a field that the format does not know may hold one."""
    number = float(text) if len(text) <= _LONGEST_NUMBER else float("inf")
    if not abs(number) < float("inf"):
        raise ValueError("a number out of range")
    return number


def _whole(text: str) -> int:
    if text == "-0":
        raise ValueError("-0 is no whole number")
    return int(text)


def _check_metadata(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(type(one) is str for one in value.values()):
        raise HeaderError(f"its {_METADATA} is no table of texts")


def _span(name: str, value: object) -> _SpanT:
    """One tensor's begin, end, name, dtype and shape."""
    # The library takes a list of the three in order too; the format's text says object.
    if not isinstance(value, dict):
        raise HeaderError(f"{one_line(name)}: its entry is no object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if type(dtype) is not str or type(shape) is not list or not _is_span(offsets):
        raise _unfit(name)
    if len(value) != len(_FIELDS):
        _check_others(name, value)
    begin, end = offsets
    if end < begin:
        raise HeaderError(f"{one_line(name)}: its data ends before it begins")
    bits = BITS.get(dtype)
    n_elements = _elements(name, shape)
    if bits is None:
        return begin, end, name, one_line(dtype, 40), tuple(shape)
    if (end - begin) * 8 != n_elements * bits:
        raise HeaderError(
            f"{one_line(name)}: {dtype} of shape {str(shape)[:80]} is not {end - begin} bytes"
        )
    return begin, end, name, dtype, tuple(shape)


def _is_span(value: object) -> TypeGuard[list[int]]:
    if type(value) is not list or len(value) != _OFFSETS:
        return False
    begin, end = value
    return type(begin) is int and type(end) is int and 0 <= begin < _NUMBERS and 0 <= end < _NUMBERS


def _elements(name: str, shape: list[Any]) -> int:
    """Number of elements; stops where the format's arithmetic does, so that no shape costs time."""
    n = 1
    for side in shape:
        if type(side) is not int or not 0 <= side < _NUMBERS:
            raise _unfit(name)
        n *= side
        if n >= _NUMBERS:
            raise HeaderError(f"{one_line(name)}: its shape is larger than any file")
    return n


def _check_others(name: str, value: dict[str, Any]) -> None:
    """Fields that the format does not know: the library looks past them, if they are sound.

    What is nested, or beyond 64 bits, is refused here: no writer adds such a thing.
    """
    for key, other in value.items():
        sound = other is None or isinstance(other, str | float) or _is_number(other)
        if key not in _FIELDS and not sound:
            raise HeaderError(f"{one_line(name)}: its field {one_line(key, 40)} is of no format")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and abs(value) < _NUMBERS


def _unfit(name: str) -> HeaderError:
    return HeaderError(f"{one_line(name)}: dtype, shape or data_offsets are not what they must be")
