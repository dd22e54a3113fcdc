"""Facts read from a model folder without torch: configuration and safetensors headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.facts.families import Families
from app.facts.pickles import PickledWeights

# Between a packed weight's name and the kind of its state (bitsandbytes 0.50, functional.py).
STATE = ".quant_state.bitsandbytes__"
_MATRIX = 2  # dimensions


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

    @property
    def is_matrix(self) -> bool:
        """Two dimensions, as a Linear and an embedding have."""
        return len(self.shape) == _MATRIX

    @property
    def is_integer(self) -> bool:
        """Whole numbers: of a weight these are packed ones, and its shape is not the matrix's."""
        return self.dtype.startswith(("U", "I"))


@dataclass(frozen=True, slots=True)
class QuantData:
    """What the small tensors beside packed weights hold, by tensor name.

    `states`: the JSON of a quant state, or one line of why it is none. `tables`: code tables.
    `scales`: float scales, as one of `zero` (all are), `odd` (not finite, negative or beyond any
    weight) or empty. Of a table over 64 KiB only samples are read, and it is never `zero`.
    """

    states: dict[str, Mapping[str, Any] | str] = field(default_factory=dict)
    tables: dict[str, tuple[float, ...]] = field(default_factory=dict)
    scales: dict[str, str] = field(default_factory=dict)


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
    `unused_index`. `pickled` are pickles that a loader would open for want of safetensors.
    `broken_files`: name -> what it is instead, for small files. `broken_templates`: name -> why
    Jinja cannot parse a chat template of it. `errnos`: name -> the system's number for what could
    not be read (`the index` too). `families` is what the installed transformers knows, None where
    it was not read. `generation` is the parsed `generation_config.json`, empty without one.
    `nested` are folders in this one, or in the snapshots of a hub's cache, that hold a
    `config.json`, looked for where this one has none. `adapter_base` is the model that an
    `adapter_config.json` here names, "" without one. `uid` is who read it all.
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
    pickled: PickledWeights = field(default_factory=PickledWeights)
    unused_index: str = ""
    broken_files: Mapping[str, str] = field(default_factory=dict)
    broken_templates: Mapping[str, str] = field(default_factory=dict)
    errnos: Mapping[str, int] = field(default_factory=dict)
    quant: QuantData = field(default_factory=QuantData)
    tokens: TokenFacts = field(default_factory=TokenFacts)
    families: Families | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    adapter_base: str = ""
    uid: int = 0

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of `config`, which is all of it where there are no parts."""
        found = self.config.get("text_config")
        return found if isinstance(found, Mapping) else self.config

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

    def unpacked_shape(self, header: TensorHeader) -> tuple[int, ...] | None:
        """Of a packed weight as its quant state says, None where nothing says it."""
        if not header.is_integer:
            return header.shape
        state = self.quant.states.get(f"{header.name}{STATE}nf4")
        shape = state.get("shape") if isinstance(state, Mapping) else None
        if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
            return None
        return tuple(shape)
