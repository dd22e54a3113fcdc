"""Whether packed weights and what stands beside them agree: sizes, tables, scales.

Kernels check none of it: a short table of scales is read past its end. The rules are those of
bitsandbytes 0.50 (`functional.py`: quantize_4bit, QuantState.as_dict, create_normal_map).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from app.facts.checkpoint import STATE, CheckpointFacts, TensorHeader
from app.facts.nf4 import NF4
from app.facts.words import one_line

# What a packed weight needs beside it, and besides where its scales are packed too.
_ITEMS = (".absmax", ".quant_map", f"{STATE}nf4")
_NESTED = (".nested_absmax", ".nested_quant_map")
_ROUNDING = 1e-6  # float32 near 1, and the digits above
_NESTED_CODES = 256  # one byte
_BLOCKS = frozenset(2**power for power in range(5, 13))  # 32 to 4096
_DTYPES = ("float16", "bfloat16", "float32")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # a number of a layer or an expert, and not the 1 of fc1
_LARGEST = 2.0**17  # no scale of a weight: float16 ends at 65504


def incomplete_packing(facts: CheckpointFacts, *, nested: bool) -> list[str]:
    """Packed weights with what each lacks; bytes under a weight's name count as packed."""
    by_name = {header.name: header for header in facts.tensors}
    states: Counter[str] = Counter()
    for name in by_name:
        base, mark, _ = name.partition(STATE)
        states[base] += bool(mark)
    packed = {name for name, n in states.items() if n}
    packed |= {n for n, h in by_name.items() if h.dtype == "U8" and n.endswith(".weight")}
    offenders: list[str] = []
    for base in sorted(packed):
        needs = (*_ITEMS, *(_NESTED if nested or f"{base}.nested_absmax" in by_name else ()))
        lacks = [item.strip(".") for item in needs if base + item not in by_name]
        lacks += ["the weight itself"] if base not in by_name else []
        if states[base] > 1:
            lacks.append(f"one state only (it has {states[base]})")
        if lacks:
            offenders.append(f"{one_line(base)} lacks {', '.join(lacks)}")
    return offenders


def state_offenders(facts: CheckpointFacts) -> list[str]:
    """Packed weights whose quantisation does not fit, with why, each once."""
    by_name = {header.name: header for header in facts.tensors}
    found = []
    for name in facts.packed:
        why = next(_wrong(facts, by_name, name), "")
        if why:
            found.append(f"{one_line(name)}: {why}")
    return found or [f"{one_line(name)}: {why}" for name, why in _odd_shapes(facts)]


def _wrong(facts: CheckpointFacts, by_name: Mapping[str, TensorHeader], name: str) -> Iterator[str]:
    """Everything that is wrong with one weight; what comes later relies on what came before."""
    state = facts.quant.states.get(f"{name}{STATE}nf4", "no quant state that could be read")
    if isinstance(state, str):
        yield state
        return
    words = list(_bad_words(state))
    if words:
        yield from words
        return
    nested = f"{name}.nested_absmax" in by_name
    n_elements, block = math.prod(state["shape"]), state["blocksize"]
    n_scales = -(-n_elements // block)
    yield from _sizes(by_name[name], state["shape"], n_elements)
    yield from _entries(by_name, f"{name}.absmax", "U8" if nested else "F32", n_scales)
    yield from _entries(by_name, f"{name}.quant_map", "F32", len(NF4))
    table = facts.quant.tables.get(f"{name}.quant_map", ())
    if not _is_nf4(table):
        yield "its quant_map is not NF4's"
    if nested:
        yield from _nested(facts, by_name, name, n_scales)
    elif facts.quant.scales.get(f"{name}.absmax") == "odd":
        yield "its absmax holds numbers that are no scale (not finite, negative or huge)"


@lru_cache(maxsize=64)
def _is_nf4(table: tuple[float, ...]) -> bool:
    """Tables are few and repeated by every weight. A NaN is near nothing."""
    return all(abs(a - b) <= _ROUNDING for a, b in zip(table, NF4, strict=False))


@lru_cache(maxsize=64)
def _is_code_table(table: tuple[float, ...]) -> bool:
    """Numbers from -1 to 1, up to one end of it."""
    return all(-1 <= n <= 1 for n in table) and max(map(abs, table)) > 1 - _ROUNDING


def _bad_words(state: Mapping[str, Any]) -> Iterator[str]:
    """Entries of a state that its reader would fail on, or take for something else."""
    shape = state.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 2**40 for n in shape):
        yield f"its quant state has the shape {str(shape)[:60]}"
    if state.get("quant_type") != "nf4":
        yield f"its quant state says {str(state.get('quant_type'))[:20]}, its name nf4"
    if not _is_block(state.get("blocksize")):
        yield f"its quant state has the blocksize {str(state.get('blocksize'))[:20]}"
    if state.get("dtype") not in _DTYPES:
        yield f"its quant state has the dtype {str(state.get('dtype'))[:20]}"


def _is_block(value: object) -> bool:
    return type(value) is int and value in _BLOCKS


def _sizes(header: TensorHeader, shape: list[int], n_elements: int) -> Iterator[str]:
    if header.n_bytes != (n_elements + 1) // 2:
        yield f"{header.n_bytes} bytes are not the shape {shape} of its quant state, packed"


def _entries(
    by_name: Mapping[str, TensorHeader], name: str, dtype: str, wanted: int
) -> Iterator[str]:
    """The number of entries and their type; a missing one is another judge's."""
    header = by_name.get(name)
    if header is None:
        return
    item = name.rpartition(".")[2]
    if math.prod(header.shape) != wanted:
        yield f"its {item} has {math.prod(header.shape)} entries, and needs {wanted}"
    elif header.dtype != dtype:
        yield f"its {item} is {header.dtype}, and must be {dtype}"


def _nested(
    facts: CheckpointFacts, by_name: Mapping[str, TensorHeader], name: str, n_scales: int
) -> Iterator[str]:
    """Scales that are quantised themselves: code * nested_absmax + offset."""
    state = facts.quant.states[f"{name}{STATE}nf4"]
    if isinstance(state, str):
        return
    block, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if type(block) is not int or not _is_block(block):
        yield f"its quant state has the nested_blocksize {str(block)[:20]}"
        return
    if state.get("nested_dtype") not in _DTYPES:
        yield f"its quant state has the nested_dtype {str(state.get('nested_dtype'))[:20]}"
    # The offset is the mean of all scales; NaN is in no range.
    if not isinstance(offset, int | float) or not 0 <= offset < _LARGEST:
        yield f"its quant state has the nested_offset {str(offset)[:20]}"
        return
    yield from _entries(by_name, f"{name}.nested_absmax", "F32", -(-n_scales // block))
    yield from _entries(by_name, f"{name}.nested_quant_map", "F32", _NESTED_CODES)
    table = facts.quant.tables.get(f"{name}.nested_quant_map", ())
    if table and not _is_code_table(table):
        yield "its nested_quant_map is no code table (numbers from -1 to 1)"
    scales = facts.quant.scales.get(f"{name}.nested_absmax")
    if scales == "odd":
        yield "its nested_absmax holds numbers that are no scale (not finite, negative or huge)"
    elif scales == "zero" and offset > 0 and n_scales > 1:
        # Every block of a weight would have the same largest number, to the last bit.
        yield "its nested_absmax is all zeros"


def _odd_shapes(facts: CheckpointFacts) -> Iterator[tuple[str, str]]:
    """One layer's projection in another shape than its likes, with as many elements.

    Each projection of a model has the hidden size on one side, so this is a state that was changed.
    """
    kinds: defaultdict[tuple[str, int], dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name in facts.packed:
        state = facts.quant.states.get(f"{name}{STATE}nf4")
        if isinstance(state, Mapping):
            shape = tuple(state["shape"])
            kinds[_LAYER.sub("#", name), math.prod(shape)][name] = shape
    for shapes in kinds.values():
        counts = Counter(shapes.values()).most_common()
        if len(counts) == 1:
            continue
        tied = counts[0][1] == counts[1][1]
        for name, shape in shapes.items():
            if tied or shape != counts[0][0]:
                others = " or ".join(str(list(s)) for s, _ in counts if s != shape)
                yield name, f"its quant state has the shape {list(shape)}, its likes {others}"
