"""Reads a model folder without torch and without tensor data: JSON files and safetensors headers.

The format (huggingface/safetensors, README): 8 bytes little-endian length N, N bytes of a JSON
object {name: {dtype, shape, data_offsets}}, then the data without gaps. The limits are those of
the Rust library, 0.8. Every byte here may be hostile: reads are bounded, nothing raises.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from app.facts.checkpoint import CheckpointFacts, QuantData, ShardFacts, TensorHeader
from app.facts.words import is_utf8, one_line
from app.probes.files import read_bytes
from app.probes.packing import read_quant_data
from app.probes.tokens import read_small_files
from app.probes.weights import SNIFF, choose_weights, sniff

_MAX_HEADER = 100_000_000  # bytes, safetensors' own MAX_HEADER_SIZE
_LENGTH = 8  # bytes of the length field
_OFFSETS = 2  # begin and end of a tensor's data
_NUMBERS = 1 << 64  # the first number that the format cannot hold
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
_WEIGHTS = (".safetensors",)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class _HeaderError(Exception):
    """A header breaks the format; the text is one line."""


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Everything about the folder that needs no tensor data."""
    try:
        names = tuple(sorted(path.name for path in folder.iterdir()))
    except OSError as error:
        why = error.strerror or str(error)
        errors = {"config.json": error.errno or 0}
        return CheckpointFacts(folder, config_problem=why, errnos=errors, uid=os.getuid())
    choice = choose_weights(folder)
    shards: list[ShardFacts] = []
    tensors: list[TensorHeader] = []
    errnos: dict[str, int | None] = {
        "config.json": choice.config.errno,
        "the index": choice.index_errno,
    }
    quant = QuantData({}, {}, {})
    for name in choice.files:
        shard, found, number = read_shard(folder, name, quant)
        shards.append(shard)
        tensors += found
        errnos[name] = number
    others = tuple(name for name in names if name not in choice.files)
    small = read_small_files(folder, others, choice.config.data)
    errnos.update(small.errnos)
    return CheckpointFacts(
        folder=folder,
        config=choice.config.data,
        config_problem=choice.config.problem,
        index=choice.index,
        index_problem=choice.index_problem,
        shards=tuple(shards),
        tensors=tuple(tensors),
        other_files=tuple(n for n in others if not n.endswith((*_WEIGHTS, *_PICKLES))),
        spare_weights=tuple(n for n in others if n.endswith(_WEIGHTS)),
        pickles=tuple(n for n in others if n.endswith(_PICKLES)),
        unused_index=choice.unused_index,
        broken_files=small.broken,
        errnos={name: number for name, number in errnos.items() if number},
        quant=quant,
        tokens=small.tokens,
        uid=os.getuid(),
    )


def read_headers(folder: Path) -> CheckpointFacts:
    """Configuration and tensors alone: what the engine asks of a folder that has been judged."""
    choice = choose_weights(folder)
    read = [read_shard(folder, name) for name in choice.files]
    return CheckpointFacts(
        folder=folder,
        config=choice.config.data,
        index=choice.index,
        shards=tuple(shard for shard, _, _ in read),
        tensors=tuple(header for _, tensors, _ in read for header in tensors),
    )


def read_shard(
    folder: Path, name: str, quant: QuantData | None = None
) -> tuple[ShardFacts, list[TensorHeader], int | None]:
    """One weight file: facts, tensors, and the system's number when it could not be read.

    What it holds of quantisation goes into `quant`.
    """
    size = 0
    try:
        head, size = read_bytes(folder / name, SNIFF)
        raw = _raw_header(folder / name, head, size)
        tensors = parse_header(raw, size, name)
        if quant is not None:
            read_quant_data(folder / name, tensors, quant)
    except FileNotFoundError:
        return ShardFacts(name, 0, "missing"), [], None
    except _HeaderError as error:
        return ShardFacts(name, size, str(error)), [], None
    except OSError as error:
        return ShardFacts(name, size, error.strerror or str(error)), [], error.errno
    except ValueError as error:  # a name that no file can have
        return ShardFacts(name, size, str(error)), [], None
    return ShardFacts(name, size), tensors, None


def _raw_header(path: Path, head: bytes, size: int) -> bytes:
    """The bytes of the JSON header."""
    if size == 0:
        raise _HeaderError("empty")
    other = sniff(head)
    if other:
        raise _HeaderError(other)
    if size < _LENGTH:
        raise _HeaderError(f"only {size} bytes, less than the length field")
    (length,) = struct.unpack("<Q", head[:_LENGTH])
    if length > _MAX_HEADER:
        raise _HeaderError(f"not a safetensors file: it claims a header of {length} bytes")
    if length > size - _LENGTH:
        raise _HeaderError(f"cut off inside the header: {size} bytes, header of {length}")
    raw, _ = read_bytes(path, length, offset=_LENGTH)
    if len(raw) != length:
        raise _HeaderError("cut off inside the header while it was read")
    return raw


def parse_header(raw: bytes, size: int, file: str) -> list[TensorHeader]:
    """Check a header against the file's size, in bytes, and return its tensors in file order.

    Raises:
        _HeaderError: it breaks the format.
    """
    if not raw.startswith(b"{"):
        raise _HeaderError("the header is no JSON object")
    try:
        table = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise _HeaderError("the header is nested beyond reason") from None
    except ValueError as error:
        raise _HeaderError(f"the header is no valid JSON: {str(error)[:160]}") from None
    table.pop("__metadata__", None)
    spans = sorted(
        (_entry(name, value, file) for name, value in table.items()), key=lambda e: e[:2]
    )
    position = 0
    for begin, end, header in spans:
        if begin != position:
            raise _HeaderError(
                f"{one_line(header.name)}: data begins at {begin}, expected {position}"
            )
        position = end
    held = size - _LENGTH - len(raw)
    if position != held:
        what = "cut off" if held < position else "longer than its header says"
        raise _HeaderError(f"{what}: {held} bytes of tensor data, the header says {position}")
    start = _LENGTH + len(raw)
    return [replace(header, begin=start + begin) for begin, _, header in spans]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python's parser keeps the last of two equal names; a loader may keep the first."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise _HeaderError("the header names something twice")
    return table


def _entry(name: str, value: object, file: str) -> tuple[int, int, TensorHeader]:
    """One tensor's begin, end and header."""
    if not is_utf8(name):  # a lone surrogate: legal in JSON, in no tensor's name
        raise _HeaderError("a tensor's name is not valid Unicode")
    shown = one_line(name)
    if not isinstance(value, dict):
        raise _HeaderError(f"{shown}: its entry is no object")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if (
        not isinstance(dtype, str)
        or not _numbers(shape)
        or not _numbers(offsets)
        or (len(offsets) != _OFFSETS)
    ):
        raise _HeaderError(f"{shown}: dtype, shape or data_offsets are not what they must be")
    begin, end = offsets
    if end < begin:
        raise _HeaderError(f"{shown}: its data ends before it begins")
    bits = BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != _elements(shape, shown) * bits:
        raise _HeaderError(
            f"{shown}: {dtype} of shape {str(shape)[:80]} is not {end - begin} bytes"
        )
    return (
        begin,
        end,
        TensorHeader(name, one_line(dtype, 40), tuple(shape), end - begin, file, begin),
    )


def _elements(shape: list[int], shown: str) -> int:
    """Number of elements; stops where the format's arithmetic does, so that no shape costs time."""
    n = 1
    for side in shape:
        n *= side
        if n >= _NUMBERS:
            raise _HeaderError(f"{shown}: its shape is larger than any file")
    return n


def _numbers(value: object) -> TypeGuard[list[int]]:
    """Whether this is a list of numbers that fit the format's unsigned 64 bits."""
    return isinstance(value, list) and all(
        type(number) is int and 0 <= number < _NUMBERS for number in value
    )
