"""What the tensor names and shapes of a file say of a model's size. Standard library only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.facts.checkpoint import CheckpointFacts, TensorHeader
from app.facts.layers import LAYER, component
from app.facts.words import one_line

# Token embeddings over the families: Llama, GPT-2, GPT-NeoX, Falcon and BLOOM, InternLM.
_EMBEDDINGS = tuple(
    f".{name}.weight"
    for name in ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")
)
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
# Keys that say that embeddings have a size of their own, or that layers have more than a number.
_OWN_ROWS = ("embedding_size", "padded_vocab", "pad_vocab", "vocab_size_multiple")
_OWN_COLUMNS = re.compile(r"emb\w*_(?:dim|size)|embd_dim")
_MORE_LAYERS = re.compile(r"nextn|mtp|predict")
# Keys of families whose layers are of several kinds, and those of them that tell of none.
_UNLIKE = re.compile(
    r"block|layer_type|pattern|cross|skip|shar|_layers$|_layer_|interval|hybrid|moe"
)
_SAME = frozenset((*_COUNTS, "max_window_layers", "layer_types", "sliding_window_pattern"))
_KINDS = "layer_types"  # one kind a layer
_PAIR = 2  # layers of which each can tell what the other lacks
# Rows that a class adds by itself (Mllama 8 for images, Moshi 1).
EXTRA_ROWS = 8


@dataclass(frozen=True, slots=True)
class Layers:
    """The numbered layers of the language model: number -> name within the layer -> weight.

    `path` is the stack's own (`model.layers`); only names that end in `.weight` are in it.
    """

    path: str
    held: Mapping[int, Mapping[str, TensorHeader]]


@dataclass(frozen=True, slots=True)
class Stack:
    """How many layers the configuration says, and how many the file has.

    `recounted`: another number of layers in the configuration is what the file has.
    `extra_known`: the configuration speaks of layers beyond the count. `extra_alike`: the last
    layer of the file has the weights that the one before it has. `gaps` are weights that one layer
    lacks and all others of its kind have.
    """

    wanted: int
    held: int
    absent: tuple[int, ...] = ()
    recounted: bool = False
    extra_known: bool = False
    extra_alike: bool = False
    gaps: tuple[str, ...] = ()

    @property
    def doubt(self) -> bool:
        """One more than said, which may predict further tokens: it has weights for that."""
        return self.held == self.wanted + 1 and not self.extra_known and not self.extra_alike

    @property
    def short(self) -> bool:
        """Layers are missing.

        A family may run each of its layers several times and count the runs (LongCat Flash, HRM):
        it then says elsewhere how many there are.
        """
        last = tuple(range(self.held, self.wanted))
        return bool(self.absent) and not (self.recounted and self.absent == last)

    @property
    def surplus(self) -> bool:
        """More than said, beyond what any family adds."""
        return self.held > self.wanted and not self.extra_known and not self.doubt


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The table of token embeddings, and where it is not what the configuration says."""

    shape: tuple[int, ...]
    problems: tuple[str, ...] = ()


def text_tables(facts: CheckpointFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configuration, and that of its text model where it has one, each with its place."""
    yield "", facts.config
    if facts.text_config is not facts.config:
        yield "text_config.", facts.text_config


def hidden_size(table: Mapping[str, Any]) -> int | None:
    """The width of the language model, where the table says one."""
    return _number(table, _HIDDEN)


def in_layer(name: str) -> bool:
    """Whether a tensor belongs to a numbered layer."""
    return LAYER.search(name) is not None


def language_layers(facts: CheckpointFacts) -> Layers | None:
    """The stack of numbered layers of the language model; None where none is known for sure."""
    wanted = _number(facts.text_config, _COUNTS)
    if wanted is None or facts.config.get("is_encoder_decoder") is True:
        return None
    stacks: defaultdict[str, defaultdict[int, dict[str, TensorHeader]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for header in facts.tensors:
        # Every layer has a weight, and what stands beside packed ones would only cost time.
        found = LAYER.search(header.name) if header.name.endswith(".weight") else None
        if found and component(header.name) == "language":
            stack = header.name[: found.start(1) - 1]
            stacks[stack][int(found[1])][header.name[found.end() :]] = header
    # A tower may have a stack of its own under a name that tells nothing (Video-LLaVA).
    fitting = [each for each, held in stacks.items() if _counts_to(wanted, held)]
    if not stacks or (len(stacks) > 1 and len(fitting) != 1):
        return None
    name = fitting[0] if fitting else next(iter(stacks))
    return Layers(name, stacks[name])


def language_stack(facts: CheckpointFacts, layers: Layers) -> Stack:
    """How these layers agree with what the configuration says of them."""
    table, held = facts.text_config, layers.held
    wanted = _number(table, _COUNTS) or 0
    n_held = max(held) + 1
    alike = not any(_UNLIKE.search(key) for key in table if key not in _SAME)
    return Stack(
        wanted,
        n_held,
        absent=tuple(sorted(set(range(wanted)) - set(held))) if wanted < 10**5 else (),
        recounted=any(table[key] == n_held for key in table if "layers" in key),
        extra_known=any(_MORE_LAYERS.search(key) for key in table),
        extra_alike=held[n_held - 1].keys() == held.get(n_held - 2, {}).keys(),
        gaps=tuple(_gaps(layers, table)) if alike and _counts_to(wanted, held) else (),
    )


def _counts_to(wanted: int, held: Collection[int]) -> bool:
    """Whether these are the numbers from 0 to below `wanted`."""
    return len(held) == wanted and max(held) < wanted


def _gaps(layers: Layers, table: Mapping[str, Any]) -> Iterator[str]:
    """Weights that a single layer lacks, where all others of its kind have them."""
    said = table.get(_KINDS)
    kinds = said if isinstance(said, list) and len(said) == len(layers.held) else None
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(layers.held):
        groups[str(kinds[number]) if kinds else ""].append(number)
    for numbers in groups.values():
        if len(numbers) < _PAIR:
            continue
        counts = Counter(weight for number in numbers for weight in layers.held[number])
        common = {weight for weight, n in counts.items() if n == len(numbers) - 1}
        everywhere = {weight for weight, n in counts.items() if n == len(numbers)}
        for number in numbers if common else ():
            mine = layers.held[number].keys()
            # A layer of another kind has weights of its own in the place of those that it lacks.
            for weight in sorted(common - mine) if mine <= common | everywhere else ():
                # A sound first layer may have one norm less (ModernBERT) or more (RWKV).
                if not _is_norm(weight) or (number and len(numbers) > _PAIR):
                    yield f"{layers.path}.{number}.{weight}"


def _is_norm(weight: str) -> bool:
    return "norm" in weight or "ln" in weight


def _token_tables(facts: CheckpointFacts) -> Iterator[TensorHeader]:
    """Token embeddings that are not packed, towers' own among them."""
    for header in facts.tensors:
        if header.is_matrix and not header.is_integer and f".{header.name}".endswith(_EMBEDDINGS):
            yield header


def token_table(facts: CheckpointFacts) -> TensorHeader | None:
    """The largest token embeddings: towers have smaller ones of their own."""
    return max(_token_tables(facts), key=lambda header: header.shape[0], default=None)


def embedding_rows(facts: CheckpointFacts) -> tuple[int | None, str]:
    """How many ids the model takes, and who says so: the weights, else the configuration."""
    table = token_table(facts)
    if table is not None:
        return table.shape[0], one_line(table.name)
    for where, config in reversed([*text_tables(facts)]):
        number = _number(config, ("vocab_size",))
        if number is not None:
            return number, f"config.json: {where}vocab_size"
    return None, ""


def token_embeddings(facts: CheckpointFacts) -> Embeddings | None:
    """The language model's token embeddings; None where there are none, or of several shapes."""
    found = {
        header.shape
        for header in _token_tables(facts)
        if component(header.name) not in ("vision", "audio", "projector")
    }
    if len(found) != 1:
        return None
    (rows, columns) = shape = next(iter(found))
    table = facts.text_config
    problems = []
    vocabulary = _number(table, ("vocab_size",))
    own_rows = any(mark in key for key in table for mark in _OWN_ROWS)
    extra = rows - (vocabulary or 0)
    if vocabulary is not None and not own_rows and not 0 <= extra <= EXTRA_ROWS:
        problems.append(f"config.json says {vocabulary} tokens, and the embeddings have {rows}")
    hidden = hidden_size(table)
    own_columns = any(_OWN_COLUMNS.search(key) for key in table)
    if hidden is not None and hidden != columns and not own_columns:
        problems.append(f"config.json says {hidden} hidden units, the embeddings have {columns}")
    return Embeddings(shape, tuple(problems))


def _number(table: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((table[k] for k in keys if type(table.get(k)) is int and table[k] > 0), None)
