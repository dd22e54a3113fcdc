"""Facts read from a model folder without torch: configuration and safetensors headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.facts.words import one_line

# bitsandbytes' `QuantState.from_dict` (functional.py, 0.50): what a packed weight needs beside it.
_STATE = ".quant_state.bitsandbytes__"
_ITEMS = (".absmax", ".quant_map", f"{_STATE}nf4")
_NESTED = (".nested_absmax", ".nested_quant_map")

# One of these sets is enough for a tokenizer (transformers' slow and fast formats).
_TOKENIZERS = (
    {"tokenizer.json"},
    {"tokenizer.model"},
    {"vocab.json", "merges.txt"},
    {"vocab.txt"},
    {"spiece.model"},
    {"tekken.json"},
    {"sentencepiece.bpe.model"},
)
_PROCESSORS = frozenset({"processor_config.json", "preprocessor_config.json"})


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One entry of a safetensors header. `dtype` is the file's own name, for instance `BF16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One weight file. `problem` is empty when header and size agree, else one line of why not."""

    name: str
    n_bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A model folder. Unreadable parts leave their text in the `*_problem` fields.

    `config` is the parsed `config.json`; `index` maps tensor name to file as
    `model.safetensors.index.json` says (empty without one); `other_files` are the file names in
    the folder that are not weight files. `shards` are the files that a loader opens; weight files
    that it does not open are `spare_weights` and `pickles`, an index that it does not read is
    `unused_index`. `broken_files`: name -> what it is instead, for small files. `errnos`: name ->
    the system's number for what could not be read (`index` is the index).
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_problem: str = ""
    index: Mapping[str, str] = field(default_factory=dict)
    index_problem: str = ""
    shards: tuple[ShardFacts, ...] = ()
    tensors: tuple[TensorHeader, ...] = ()
    other_files: tuple[str, ...] = ()
    spare_weights: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()
    unused_index: str = ""
    broken_files: Mapping[str, str] = field(default_factory=dict)
    errnos: Mapping[str, int] = field(default_factory=dict)

    @property
    def quantization_config(self) -> Mapping[str, Any] | None:
        """The checkpoint's own `quantization_config`, None when it is not quantised."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, Mapping) else None

    @property
    def packed(self) -> tuple[str, ...]:
        """Names of the weights that are stored packed in 4 bits, in file order.

        bitsandbytes stores a packed `X.weight` as bytes beside `X.weight.quant_state.*`.
        """
        marked = {
            header.name.partition(".quant_state.bitsandbytes__")[0]
            for header in self.tensors
            if ".quant_state.bitsandbytes__" in header.name
        }
        return tuple(header.name for header in self.tensors if header.name in marked)


def missing_from_files(facts: CheckpointFacts) -> list[str]:
    """Tensors that the index promises and that their file, itself intact, does not hold."""
    held = {(header.name, header.file) for header in facts.tensors}
    broken = {shard.name for shard in facts.shards if shard.problem}
    return [n for n, file in facts.index.items() if (n, file) not in held and file not in broken]


def tokenizer_problems(facts: CheckpointFacts) -> tuple[bool, list[str]]:
    """Whether a tokenizer can be made, and what besides it is expected and not there."""
    names = set(facts.other_files)
    lacking = [] if "tokenizer_config.json" in names else ["tokenizer_config.json"]
    parts = [part for part in ("vision_config", "audio_config") if facts.config.get(part)]
    if parts and not names & _PROCESSORS:
        lacking.append(f"processor_config.json (the model has a {parts[0]})")
    return any(files <= names for files in _TOKENIZERS), lacking


def incomplete_packing(facts: CheckpointFacts, *, nested: bool) -> list[str]:
    """Packed weights with what each lacks; bytes under a weight's name count as packed."""
    by_name = {header.name: header for header in facts.tensors}
    states: Counter[str] = Counter()
    for name in by_name:
        base, mark, _ = name.partition(_STATE)
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
