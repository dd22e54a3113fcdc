"""Whether the sides of a model's matrices are those that its configuration says.

A shard or a config.json of another size of the model has the right names and the wrong sides. The
rules were held against some 220 families of transformers 5.17: what is in no rule here differs in a
sound one. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component
from app.facts.shapes import (
    EXTRA_ROWS,
    Embeddings,
    Layers,
    hidden_size,
    in_layer,
    text_tables,
)
from app.facts.words import one_line

_MATRIX = 2  # dimensions
# Within a layer: those whose inputs, and those whose outputs, are the hidden units.
_READS = frozenset(
    (
        *("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        *("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    )
)
_OUTPUT = "self_attn.o_proj.weight"
_QUERY, _DOWN = "self_attn.q_proj.weight", "mlp.down_proj.weight"
_WRITES = frozenset((_OUTPUT, _DOWN))
_NORMS = frozenset(("input_layernorm.weight", "post_attention_layernorm.weight"))
_WIDTHS = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
_KEYS_AND_VALUES = ("self_attn.k_proj.weight", "self_attn.v_proj.weight")
# Keys of families whose heads are not all of one size and number.
_OWN_HEADS = re.compile(r"linear|swa|global|lora_rank|v_head_dim|nope|layer_types")
_TOWERS = frozenset(("vision", "audio", "projector"))
_LM_HEAD = re.compile(r"(?:^|\.)lm_head\.weight\Z")
_HEADS = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|score)\.weight\Z")


def side_problems(facts: CheckpointFacts, layers: Layers) -> Iterator[str]:
    """Layers of another width than config.json says, each kind of problem once."""
    table = facts.text_config
    hidden = hidden_size(table)
    if hidden is None:
        return
    shapes = {
        (number, name): shape
        for number, weights in layers.held.items()
        for name, header in weights.items()
        if (name in _READS or name in _WRITES or name in _NORMS)
        and (shape := facts.unpacked_shape(header)) is not None
    }
    odd = [key for key, shape in shapes.items() if _width(key[1], shape) not in (None, hidden)]
    if odd:
        number, name = odd[0]
        shown = f"{one_line(layers.path)}.{number}.{name}"
        width, more = _width(name, shapes[odd[0]]), len(odd) - 1
        yield (
            f"config.json says {hidden} hidden units, and {shown} has {width}"
            f"{f', with {more} more of other sides' if more else ''}"
        )
        return
    yield from _within(layers, shapes)
    yield from _inner(table, shapes)
    yield from _groups(table, shapes)


def _width(name: str, shape: tuple[int, ...]) -> int | None:
    """The side of a weight that is as many as the hidden units; None where it has another form."""
    if name in _NORMS:
        return shape[0] if len(shape) == 1 else None
    if len(shape) != _MATRIX:
        return None
    return shape[1] if name in _READS else shape[0]


def _within(layers: Layers, shapes: Mapping[tuple[int, str], tuple[int, ...]]) -> Iterator[str]:
    """The first layer whose matrices do not fit each other, whatever config.json says."""
    for number in layers.held:
        path = f"{one_line(layers.path)}.{number}"
        rows = {
            name: shapes[number, name][0]
            for name in (*_WIDTHS, _QUERY, _KEYS_AND_VALUES[0])
            if (number, name) in shapes
        }
        inner = {rows[name] for name in _WIDTHS if name in rows}
        inner |= {shapes[number, _DOWN][1]} if (number, _DOWN) in shapes else set()
        if len(inner) > 1:
            told = " and ".join(str(side) for side in sorted(inner))
            yield f"the MLP of {path} is {told} wide in its matrices"
            return
        query, key = rows.get(_QUERY), rows.get(_KEYS_AND_VALUES[0])
        if query is not None and key is not None and (key == 0 or query % key):
            yield f"the attention of {path} has {query} outputs for queries and {key} for keys"
            return


def _inner(
    table: Mapping[str, Any], shapes: Mapping[tuple[int, str], tuple[int, ...]]
) -> Iterator[str]:
    """Some layers may be of another width (Gemma 4's are doubled), but not all of them."""
    said = table.get("intermediate_size")
    found = {shape[0] for (_, name), shape in shapes.items() if name in _WIDTHS}
    if type(said) is int and found and said not in found:
        yield f"config.json says an intermediate_size of {said}, and the layers have {min(found)}"


def _groups(
    table: Mapping[str, Any], shapes: Mapping[tuple[int, str], tuple[int, ...]]
) -> Iterator[str]:
    """Keys and values: as many groups of heads as config.json says."""
    heads, groups = table.get("num_attention_heads"), table.get("num_key_value_heads")
    if type(heads) is not int or type(groups) is not int or heads < 1 or groups < 1:
        return
    # A family's own size of heads may go unsaid (Gemma 3 12B): the output projection has it.
    sizes = {shape[1] // heads for (_, name), shape in shapes.items() if name == _OUTPUT}
    if type(table.get("head_dim")) is int and table["head_dim"] > 0:
        sizes = {table["head_dim"]}
    mixed = any(_OWN_HEADS.search(key) for key in table if not _all_alike(table[key]))
    found = {shape[0] for (_, name), shape in shapes.items() if name in _KEYS_AND_VALUES}
    if mixed or len(found) != 1 or len(sizes) != 1:
        return
    (size,) = sizes
    if found != {groups * size}:
        yield (
            f"config.json says {groups} heads of {size} for keys and values ({groups * size} in "
            f"all), and the layers have {min(found)}"
        )


def _all_alike(value: object) -> bool:
    """A list of kinds that are all one kind tells of no difference."""
    return isinstance(value, list) and len(set(map(str, value))) == 1


def absent_outside(
    facts: CheckpointFacts, layers: Layers, embeddings: Embeddings | None
) -> Iterator[str]:
    """What every language model has around its layers, and these weights do not."""
    yield from _no_tables(facts, embeddings)
    hidden, weights = hidden_size(facts.text_config), next(iter(layers.held.values()))
    normed = any(
        header.shape == (hidden,)
        and not in_layer(header.name)
        and component(header.name) not in _TOWERS
        for header in facts.tensors
    )
    if "input_layernorm.weight" in weights and hidden is not None and not normed:
        around = layers.path.rpartition(".")[0]
        shown = one_line(f"{around}.norm.weight".removeprefix("."))
        yield f"the weights lack the norm behind the last layer (such as {shown})"


def _no_tables(facts: CheckpointFacts, embeddings: Embeddings | None) -> Iterator[str]:
    """Matrices with a row for every token: the embeddings, and a head where it is not the same."""
    rows = facts.text_config.get("vocab_size")
    if type(rows) is not int or rows < 1 or (embeddings is not None and embeddings.problems):
        return  # nothing to compare with, or of another size, which is said already
    tables = []
    for header in facts.tensors:
        if not header.name.endswith((".weight", ".w")) or not header.is_matrix:
            continue
        if in_layer(header.name):
            continue
        shape = facts.unpacked_shape(header)
        if shape is None:
            return  # packed, and nothing says of which size
        if max(shape, default=0) >= rows:
            tables.append(header.name)
    tied = [table.get("tie_word_embeddings") for _, table in text_tables(facts)]
    if not tables:
        yield f"the weights lack the token embeddings (no matrix has {rows} rows)"
    elif len(tables) == 1 and all(flag is False for flag in tied):
        lacks = "the token embeddings" if _HEADS.search(tables[0]) else "the head (lm_head.weight)"
        yield (
            f"the weights lack {lacks}: config.json says that both are separate "
            "(tie_word_embeddings is false)"
        )


def head_problems(facts: CheckpointFacts, embeddings: Embeddings) -> Iterator[str]:
    """A head gives a number for every token; some families have a few more embeddings."""
    heads = [header for header in facts.tensors if _LM_HEAD.search(header.name)]
    shape = facts.unpacked_shape(heads[0]) if len(heads) == 1 else None
    if shape is None or len(shape) != _MATRIX:
        return
    rows, columns = embeddings.shape
    if shape[1] != columns or not 0 <= rows - shape[0] <= EXTRA_ROWS:
        yield (
            f"the head {one_line(heads[0].name)} is {list(shape)}, and the embeddings are "
            f"{list(embeddings.shape)}"
        )
