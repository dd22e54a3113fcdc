"""What the tensor names and shapes of a file say of a model's size. Standard library only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component

# The first number of a path is the layer; names of the stacks over the families.
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,5})\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in|word_embeddings)\.weight\Z")
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
# Keys that say that embeddings have a size of their own, or that layers have more than a number.
_OWN_ROWS = ("embedding_size", "padded_vocab", "pad_vocab", "vocab_size_multiple")
_OWN_COLUMNS = re.compile(r"emb\w*_(?:dim|size)|embd_dim")
_MORE_LAYERS = re.compile(r"nextn|mtp|predict")
# Keys of families whose layers are of several kinds.
_UNLIKE = re.compile(
    r"block|layer_type|pattern|cross|skip|shar|_layers$|_layer_|interval|hybrid|moe"
)
_SAME = frozenset(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "max_window_layers"))
_MATRIX = 2  # dimensions
# Rows that a class adds by itself (Mllama 8 for images, Moshi 1).
_EXTRA_ROWS = 8


@dataclass(frozen=True, slots=True)
class Stack:
    """The language model's layers: how many the configuration says, how many the file has."""

    wanted: int
    held: int
    absent: tuple[int, ...] = ()
    extra_known: bool = False  # the configuration speaks of layers beyond the count
    gaps: tuple[str, ...] = ()  # weights that one layer lacks and all others have

    @property
    def doubt(self) -> bool:
        """Other than said, and still possible.

        One more may predict further tokens; a family may run each of its layers several times
        (LongCat Flash, HRM) and count the runs.
        """
        more = self.held == self.wanted + 1 and not self.extra_known
        return more or (bool(self.absent) and not self.short)

    @property
    def short(self) -> bool:
        """Layers are missing: some in the middle, or so many that no family counts that way."""
        last = tuple(range(self.held, self.wanted))
        return bool(self.absent) and (self.absent != last or self.wanted % self.held != 0)

    @property
    def surplus(self) -> bool:
        """More than said, beyond what any family adds."""
        return self.held > self.wanted + 1 and not self.extra_known


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The table of token embeddings, and where it is not what the configuration says."""

    shape: tuple[int, ...]
    problems: tuple[str, ...] = ()


def text_tables(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configuration, and that of its text model where it has one, each with its place."""
    yield "", config
    text = config.get("text_config")
    if isinstance(text, Mapping):
        yield "text_config.", text


def language_stack(facts: CheckpointFacts) -> Stack | None:
    """The stack of numbered layers of the language model; None where none is known for sure."""
    table = _text_table(facts)
    wanted = _number(table, _COUNTS)
    if wanted is None or facts.config.get("is_encoder_decoder") is True:
        return None
    stacks: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for header in facts.tensors:
        # Every layer has a weight, and what stands beside packed ones would only cost time.
        found = _LAYER.search(header.name) if header.name.endswith(".weight") else None
        if found and component(header.name) == "language":
            stack = header.name[: found.start(1) - 1]
            stacks[stack][int(found[1])].add(header.name[found.end() :])
    if not stacks:
        return None
    # A tower may have a stack of its own under a name that tells nothing (Video-LLaVA).
    fitting = [each for each, held in stacks.items() if _counts_to(wanted, held)]
    if len(stacks) > 1 and not fitting:
        return None
    name = fitting[0] if fitting else next(iter(stacks))
    held = set(stacks[name])
    absent = tuple(sorted(set(range(wanted)) - held)) if wanted < 10**5 else ()
    extra = any(_MORE_LAYERS.search(key) for key in table)
    alike = not any(_UNLIKE.search(key) for key in table if key not in _SAME)
    gaps = tuple(_gaps(name, stacks[name])) if alike and _counts_to(wanted, held) else ()
    return Stack(wanted, max(held) + 1, absent, extra, gaps)


def _counts_to(wanted: int, held: Collection[int]) -> bool:
    """Whether these are the numbers from 0 to below `wanted`."""
    return len(held) == wanted and max(held) < wanted


def _gaps(name: str, layers: Mapping[int, set[str]]) -> Iterator[str]:
    """Weights that a single layer within the stack lacks, where all others have them.

    First and last layers differ in sound families (DeepSeek's first is no mixture of experts).
    """
    counts = Counter(weight for weights in layers.values() for weight in weights)
    common = {w for w, n in counts.items() if n == len(layers) - 1 and w.endswith(".weight")}
    for number in sorted(layers)[1:-1]:
        for weight in sorted(common - layers[number]):
            yield f"{name}.{number}.{weight}"


def token_embeddings(facts: CheckpointFacts) -> Embeddings | None:
    """The one table of the language model; None where there is none, or several."""
    found = {
        header.shape: header
        for header in facts.tensors
        if _EMBEDDING.search(header.name)
        and len(header.shape) == _MATRIX
        and not header.dtype.startswith(("U", "I"))
        and component(header.name) not in ("vision", "audio", "projector")
    }
    if len(found) != 1:
        return None
    (rows, columns) = shape = next(iter(found))
    table = _text_table(facts)
    problems = []
    vocabulary = _number(table, ("vocab_size",))
    own_rows = any(mark in key for key in table for mark in _OWN_ROWS)
    extra = rows - (vocabulary or 0)
    if vocabulary is not None and not own_rows and not 0 <= extra <= _EXTRA_ROWS:
        problems.append(f"config.json says {vocabulary} tokens, and the embeddings have {rows}")
    hidden = _number(table, _HIDDEN)
    own_columns = any(_OWN_COLUMNS.search(key) for key in table)
    if hidden is not None and hidden != columns and not own_columns:
        problems.append(f"config.json says {hidden} hidden units, the embeddings have {columns}")
    return Embeddings(shape, tuple(problems))


def _text_table(facts: CheckpointFacts) -> Mapping[str, Any]:
    """Of a model with parts only the text model's own part counts."""
    text = facts.config.get("text_config")
    return text if isinstance(text, Mapping) else facts.config


def _number(table: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((table[k] for k in keys if type(table.get(k)) is int and table[k] > 0), None)
