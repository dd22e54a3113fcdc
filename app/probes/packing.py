"""Reads what stands beside packed weights: quant states, code tables, float scales.

That is little: 1/16384 of the weights' number for nested scales. Plain ones are 1/64 of it, hence
hundreds of megabytes, and only samples of them are looked at: whether all of them are finite is
asked once more when the weights are loaded. A scale table is judged by the top byte of each number
at the speed of `bytes.translate`, without numpy.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.facts.checkpoint import STATE, QuantData, TensorHeader
from app.probes.files import Source

_TABLES = (".quant_map", ".nested_quant_map")
_SCALES = (".absmax", ".nested_absmax")
_TABLE_LIMIT = 4 * 256  # bytes: the largest code table has 256 numbers
_STATE_LIMIT = 64 * 1024  # bytes; a real one has 200
_SCALES_LIMIT = 64 * 1024  # bytes: nested scales of 268 million weights, far beyond any layer
# Samples of a larger one: pages of a disk, at both ends and in between.
_SAMPLE = 4096  # bytes
_SAMPLES = 4
# Of one file. The largest real ones hold 3 MB of it in a shard of 5 GB.
_BUDGET = 64 * 1024 * 1024  # bytes
# What lies near is read at once: on a mount every read is a round trip.
_NEAR = 16 * 1024  # bytes between two
_AT_ONCE = 1024 * 1024  # bytes
_WIDTH = 4  # bytes of a float32
# Sign and upper exponent of a little-endian float32 from 0 to below 2**17: 0x00 to 0x47. Weights
# end at 65504 in float16, and a scale is the largest of 64 of them. NaN and infinity have 0x7f.
_SANE = bytes(range(0x48))
# Tables are few and repeated by every weight: each is kept once.
_KnownT = dict[bytes, tuple[float, ...]]
_PieceT = tuple[int, int]  # begin and end in the file


class ShortReadError(Exception):
    """A file gave fewer bytes than it had when its header was read."""


def read_quant_data(source: Source, tensors: Sequence[TensorHeader], found: QuantData) -> None:
    """Add what the file holds to `found`.

    Raises:
        OSError: it cannot be read.
        ShortReadError: it is being cut off.
    """
    wanted = [(header, pieces) for header in tensors if (pieces := _pieces(header))]
    total = sum(end - begin for _, pieces in wanted for begin, end in pieces)
    if total > _BUDGET:
        why = f"{total} bytes of quantisation data in one file, more than any model has"
        found.states.update((header.name, why) for header, _ in wanted if STATE in header.name)
        return
    held = _read(source, sorted(piece for _, pieces in wanted for piece in pieces))
    known: _KnownT = {}
    for header, pieces in wanted:
        raw = [held[piece] for piece in pieces]
        if STATE in header.name:
            found.states[header.name] = _state(raw[0])
        elif header.name.endswith(_SCALES):
            whole = sum(map(len, raw)) == header.n_bytes
            found.scales[header.name] = _scales(raw, whole=whole)
        else:
            found.tables[header.name] = _table(raw[0], known)
    for header in tensors:
        if STATE in header.name and header.n_bytes > _STATE_LIMIT:
            found.states[header.name] = f"a quant state of {header.n_bytes} bytes"


def _pieces(header: TensorHeader) -> list[_PieceT]:
    """Where to look, empty for what is no quantisation data or too large for it."""
    begin, end = header.begin, header.begin + header.n_bytes
    name = header.name
    if STATE in name:
        return [(begin, end)] if header.n_bytes <= _STATE_LIMIT else []
    if header.dtype != "F32":
        return []
    if name.endswith(_TABLES):
        return [(begin, end)] if header.n_bytes <= _TABLE_LIMIT else []
    if not name.endswith(_SCALES):
        return []
    if header.n_bytes <= _SCALES_LIMIT:
        return [(begin, end)]
    # `begin` is a multiple of nothing; the samples are whole numbers from there.
    last = (header.n_bytes - _SAMPLE) // _WIDTH
    starts = [begin + last * n // (_SAMPLES - 1) * _WIDTH for n in range(_SAMPLES)]
    return [(start, start + _SAMPLE) for start in starts]


def _read(source: Source, pieces: Iterable[_PieceT]) -> Mapping[_PieceT, bytes]:
    """The bytes of sorted pieces, those that lie near each other in one go."""
    held: dict[_PieceT, bytes] = {}
    for group in _groups(pieces):
        first, last = group[0][0], max(end for _, end in group)
        raw = source.read(last - first, first)
        if len(raw) != last - first:
            raise ShortReadError
        for begin, end in group:
            held[begin, end] = raw[begin - first : end - first]
    return held


def _groups(pieces: Iterable[_PieceT]) -> Iterator[list[_PieceT]]:
    group: list[_PieceT] = []
    for begin, end in pieces:
        if group and (begin - group[-1][1] > _NEAR or end - group[0][0] > _AT_ONCE):
            yield group
            group = []
        group.append((begin, end))
    if group:
        yield group


def _state(raw: bytes) -> Mapping[str, Any] | str:
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else "a quant state that is no JSON"


def _table(raw: bytes, known: _KnownT) -> tuple[float, ...]:
    if raw not in known:
        known[raw] = tuple(array("f", raw[: len(raw) // _WIDTH * _WIDTH]))
    return known[raw]


def _scales(parts: Iterable[bytes], *, whole: bool) -> str:
    """`zero` only where all of them have been seen."""
    zero = whole
    for raw in parts:
        if raw[_WIDTH - 1 :: _WIDTH].translate(None, _SANE):
            return "odd"
        zero = zero and not raw.strip(b"\0")
    return "zero" if zero else ""
