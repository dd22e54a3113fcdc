"""Facts read from a model folder without torch: configuration and safetensors headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.facts.beside import Beside
from app.facts.words import one_line

# bitsandbytes' `QuantState.from_dict` (functional.py, 0.50): what a packed weight needs beside it.
STATE = ".quant_state.bitsandbytes__"
_ITEMS = (".absmax", ".quant_map", f"{STATE}nf4")
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
# Names of token embeddings over the families (Llama, GPT-2, GPT-NeoX, Falcon and BLOOM).
_EMBEDDINGS = tuple(
    f"{name}.weight"
    for name in (*("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings"),)
)
_MATRIX = 2  # dimensions
_PROCESSORS = frozenset({"processor_config.json", "preprocessor_config.json"})


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One entry of a safetensors header. `dtype` is the file's own name, for instance `BF16`.

    `begin` is where its data begins in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: str
    begin: int = 0


@dataclass(frozen=True, slots=True)
class QuantData:
    """What the small tensors beside packed weights hold, by tensor name.

    `states`: the JSON of a quant state, or one line of why it is none. `tables`: code tables.
    `scales`: float scales, as one of `zero` (all are), `odd` (not finite, negative or beyond any
    weight) or empty. Of a table over 64 KiB only samples are read, and it is never `zero`.
    """

    states: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    tables: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The ids that the tokenizer can give. `largest` is -1 where no tokenizer.json says so.

    `added`: its added tokens as (id, text, whether a text can hold it). `special`: ids by
    `file: key`, as the configuration files name them. `absent`: tokens that the tokenizer's
    configuration names (by its key) and tokenizer.json lacks; loading adds them behind the others.
    """

    largest: int = -1
    added: tuple[tuple[int, str, bool], ...] = ()
    special: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    absent: tuple[tuple[str, str], ...] = ()

    @property
    def next_id(self) -> int:
        """The id that a token gets which is added."""
        return max((self.largest, *(number for number, _, _ in self.added))) + 1


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
    the system's number for what could not be read (`the index` too). `uid` is who read it.
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
    quant: QuantData = QuantData()
    tokens: TokenFacts = TokenFacts()
    beside: Beside = field(default_factory=Beside)
    uid: int = 0

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
            header.name.partition(STATE)[0] for header in self.tensors if STATE in header.name
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


def embedding_rows(facts: CheckpointFacts) -> tuple[int | None, str]:
    """How many ids the model takes, and who says so: the weights, else the configuration."""
    sizes = {
        header.shape[0]: header.name
        for header in facts.tensors
        if header.name.endswith(_EMBEDDINGS) and len(header.shape) == _MATRIX
        if not header.dtype.startswith(("U", "I"))  # a packed one has other sides
    }
    if sizes:
        # Towers have smaller ones of their own.
        return max(sizes), one_line(sizes[max(sizes)])
    text = facts.config.get("text_config")
    for where, table in (("text_config.", text), ("", facts.config)):
        number = table.get("vocab_size") if isinstance(table, Mapping) else None
        if type(number) is int and number > 0:
            return number, f"config.json: {where}vocab_size"
    return None, ""
