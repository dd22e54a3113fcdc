"""From what a pickle would build to the tensors in it: names, dtypes, shapes, and their room."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from app.facts.checkpoint import TensorHeader
from app.facts.words import is_utf8, one_line
from app.probes.opcodes import Call, Name, PickleError, Stored

# Storage classes of torch with safetensors' name of the element and its bytes.
_STORAGES = {
    "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2),
    "DoubleStorage": ("F64", 8), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}  # fmt: skip
# Newer dtypes have no storage class: they come as raw bytes and a dtype.
_DTYPES = {
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "uint16": ("U16", 2),
    "uint32": ("U32", 4), "uint64": ("U64", 8), "float32": ("F32", 4), "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
}  # fmt: skip
_V2, _V3 = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
_PARAMETER = "torch._utils._rebuild_parameter"
_TABLES = frozenset(("collections.OrderedDict",))
_REBUILDING = frozenset(
    (
        *(_V2, _V3, _PARAMETER, "torch._utils._rebuild_tensor", "torch.Size", "torch.device"),
        *("torch.storage.UntypedStorage", "torch.storage.TypedStorage", "torch.UntypedStorage"),
        *(f"torch.{name}" for name in (*_STORAGES, *_DTYPES)),
        *("torch.float64", "torch.int64", "torch.int32", "torch.int16", "torch.int8"),
        *("torch.uint8", "torch.bool"),
        *_TABLES,
    )
)
_LARGEST = 1 << 62
_KEY = re.compile(r"[\w.-]{1,200}")
_RECORD = 5  # parts of a persistent id: its kind, class, key, place and number of elements


@dataclass(slots=True)
class Storages:
    """What the tensors lie in, by key.

    `size_of` gives a record's bytes, None where there is no record; it is None itself where only
    the storages' sum can be compared.
    """

    size_of: Callable[[str], int | None] | None = None
    n_bytes: dict[str, int] = field(default_factory=dict)


def code_in(names: Iterable[str]) -> tuple[str, ...]:
    """The functions and classes that a table of tensors has no use for."""
    return tuple(one_line(name, 80) for name in names if name not in _REBUILDING)


def tensors_of(value: object, held: Storages, file: str) -> list[TensorHeader]:
    """The tensors of a plain table; what they lie in is noted in `held`.

    Raises:
        PickleError: it is none, or a tensor has no room where it says it lies.
    """
    table = value.items if isinstance(value, Call) and str(value.function) in _TABLES else value
    if not isinstance(table, dict) or not table:
        raise PickleError("it holds no table of tensors")
    return list(_headers(table, held, file))


def _headers(table: dict[str, Any], held: Storages, file: str) -> Iterator[TensorHeader]:
    for name, value in table.items():
        shown = one_line(name, 80)
        if not is_utf8(name):
            raise PickleError("a tensor's name is not valid Unicode")
        entry = _unwrapped(value)
        if not isinstance(entry, Call) or str(entry.function) not in (_V2, _V3):
            raise PickleError(f"{shown} is no tensor: the weights may lie one level deeper")
        yield _header(name, shown, entry, held, file)


def _unwrapped(value: object) -> object:
    """The tensor that a parameter holds."""
    if not isinstance(value, Call) or str(value.function) != _PARAMETER:
        return value
    arguments = value.arguments
    return arguments[0] if isinstance(arguments, tuple) and arguments else None


def _header(name: str, shown: str, call: Call, held: Storages, file: str) -> TensorHeader:
    arguments = call.arguments
    if not isinstance(arguments, tuple) or len(arguments) < 4 or not _sizes(arguments[2]):  # noqa: PLR2004
        raise PickleError(f"{shown} is a tensor without a storage, an offset and a shape")
    stored, offset, shape, stride = arguments[:4]
    dtype = arguments[6] if len(arguments) > 6 else None  # noqa: PLR2004 - _rebuild_tensor_v3's
    letters, width, n_elements = _storage(shown, stored, dtype, held)
    if not _sizes(stride) or len(stride) != len(shape) or not _sizes((offset,)):
        raise PickleError(f"{shown} is a tensor without a storage, an offset and a shape")
    count = math.prod(shape)
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if count >= _LARGEST or (count and last >= n_elements):
        raise PickleError(f"{shown} reaches beyond its storage of {n_elements} elements")
    return TensorHeader(name, letters, tuple(shape), count * width, file)


def _storage(shown: str, stored: object, dtype: object, held: Storages) -> tuple[str, int, int]:
    """Letters and bytes of an element, and how many the storage has."""
    record = stored.value if isinstance(stored, Stored) else None
    if not isinstance(record, tuple) or len(record) < _RECORD or record[0] != "storage":
        raise PickleError(f"{shown} lies in no storage of this file")
    kind, key, n_elements = record[1], record[2], record[4]
    name = kind.name if isinstance(kind, Name) else ""
    raw = isinstance(dtype, Name) and name == "UntypedStorage"
    known = _DTYPES.get(dtype.name) if raw and isinstance(dtype, Name) else _STORAGES.get(name)
    if known is None or not isinstance(key, str) or not _KEY.fullmatch(key):
        raise PickleError(f"{shown} lies in a storage of an unknown kind")
    if not _sizes((n_elements,)):
        raise PickleError(f"{shown} lies in a storage without a size")
    letters, width = known
    n_bytes = n_elements * (1 if raw else width)
    if held.size_of is not None and (found := held.size_of(key)) != n_bytes:
        said = "no record" if found is None else f"{found} bytes"
        raise PickleError(f"{shown}: its storage has {said} in the archive, and needs {n_bytes}")
    held.n_bytes[key] = n_bytes
    return letters, width, n_bytes // width


def _sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int and 0 <= n < _LARGEST for n in value)
