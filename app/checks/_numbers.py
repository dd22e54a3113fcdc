"""The judge of the numbers and words in config.json; `app.checks.checkpoint` lists it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component
from app.facts.shapes import text_tables
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped
from app.plan import Plan

# Sizes that every model builds from. A list (one per layer) and null are a family's own matter.
_SIZES = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_attention_heads"),
    *("n_head", "vocab_size", "intermediate_size", "head_dim", "max_position_embeddings"),
    "num_key_value_heads",
)
_MAY_BE_ZERO = frozenset(
    ("intermediate_size", "num_attention_heads", "n_head", "head_dim", "num_key_value_heads")
)
# Where a text is none of them: "1e-5" is no number, and "false" is true.
_FRACTIONS = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    *("initializer_range", "attention_dropout", "rope_theta"),
)
_SWITCHES = ("tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
# What each way of scaling positions needs beside its name (transformers, modeling_rope_utils.py).
_ROPE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
_DTYPES = frozenset(
    (
        *("float16", "half", "bfloat16", "float32", "float", "float64", "double"),
        *("uint8", "int8", "int16", "short", "int32", "int", "int64", "long", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float4_e2m1fn_x2", "uint16", "uint32", "uint64", "complex64"),
    )
)
_EXPECTED = (
    "whole numbers above 0, heads that divide the hidden size, a dtype of torch, and functions "
    "that transformers has"
)


def numbers(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """No loader builds a model of a size that is a text, a fraction, zero or negative."""
    if facts.config_problem:
        return skipped("config.json could not be read")
    bad = [
        f"{where}{problem}"
        for where, table in text_tables(facts)
        for problem in (
            *(*_sizes(table), *_heads(table, facts), *_dtype(table), *_texts(table)),
            *(*_activation(table, facts), *_rope(table)),
        )
    ]
    if bad:
        return failed(
            f"config.json: {listed(bad, 1)}",
            expected=_EXPECTED,
            actual=listed(bad, between="; "),
            next_step="fetch config.json of the same revision again, or correct it",
        )
    return passed("the sizes in config.json can be built", expected=_EXPECTED)


def _sizes(table: Mapping[str, Any]) -> Iterator[str]:
    for key in _SIZES:
        value = table.get(key)
        if value is None or isinstance(value, list):
            continue
        least = 0 if key in _MAY_BE_ZERO else 1
        if type(value) is not int:
            yield f"{key} is {one_line(repr(value), 40)}, and must be a whole number"
        elif value < least:
            yield f"{key} is {value}"


def _texts(table: Mapping[str, Any]) -> Iterator[str]:
    """Entries that a script or a hand has put between quotation marks."""
    for keys, what in (
        (_FRACTIONS, "a number"),
        (_SWITCHES, "true or false"),
        (_TOKENS, "the number of a token"),
    ):
        for key in keys:
            value = table.get(key)
            if isinstance(value, str):
                yield f"{key} is the text {one_line(repr(value), 40)}, and must be {what}"
            elif isinstance(value, float) and not math.isfinite(value):
                yield f"{key} is {value}"


def _activation(table: Mapping[str, Any], facts: CheckpointFacts) -> Iterator[str]:
    families = facts.families
    known = families.activations if families is not None else frozenset()
    for key in _ACTIVATIONS if known else ():
        value = table.get(key)
        if isinstance(value, str) and value not in known:
            yield f"{key} {one_line(repr(value), 40)} is no function that transformers has"


def _rope(table: Mapping[str, Any]) -> Iterator[str]:
    """Scaling of positions, for all layers or by kind of layer, without what it needs."""
    for key in ("rope_scaling", "rope_parameters"):
        found = table.get(key)
        if found is None:
            continue
        if not isinstance(found, Mapping):
            yield f"{key} is {one_line(repr(found), 40)}, and must be an object"
            continue
        for part in (found, *(one for one in found.values() if isinstance(one, Mapping))):
            kind = part.get("rope_type", part.get("type"))
            needs = _ROPE.get(kind, ()) if isinstance(kind, str) else ()
            lacks = [name for name in needs if part.get(name) is None]
            if lacks:
                yield f"{key} is of the type {kind} and lacks {listed(lacks)}"


def _heads(table: Mapping[str, Any], facts: CheckpointFacts) -> Iterator[str]:
    """Heads share the hidden size, and groups of them share keys and values."""
    hidden = _first(table, ("hidden_size", "n_embd", "d_model"))
    heads = _first(table, ("num_attention_heads", "n_head"))
    groups = _first(table, ("num_key_value_heads",))
    if hidden is None or heads is None or hidden < 1 or heads < 0:
        return
    attends = any(header.name.endswith("k_proj.weight") for header in facts.tensors)
    if heads == 0:
        if attends:
            yield "num_attention_heads is 0, and the weights have attention"
        return
    if hidden % heads and _splits_heads(facts, heads):
        yield f"hidden size {hidden} is no multiple of {heads} attention heads"
    if groups is not None and attends and (groups < 1 or heads % groups):
        yield f"{heads} attention heads are no multiple of num_key_value_heads {groups}"


def _splits_heads(facts: CheckpointFacts, heads: int) -> bool:
    """Whether the weights have a query projection that so many heads do not divide.

    Heads may have a size of their own (GLM 4.5: 96 heads of 128, hidden size 4096).
    """
    return any(
        header.name.endswith("q_proj.weight")
        and header.is_matrix
        and not header.is_integer
        and component(header.name) == "language"
        and header.shape[0] % heads
        for header in facts.tensors
    )


def _first(table: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((table[key] for key in keys if type(table.get(key)) is int), None)


def _dtype(table: Mapping[str, Any]) -> Iterator[str]:
    """Taken from torch by name when the file is read, whatever dtype is asked for."""
    for key in ("dtype", "torch_dtype"):
        value = table.get(key)
        if isinstance(value, str) and value not in _DTYPES:
            yield f"{key} {one_line(repr(value), 40)} is no dtype of torch"
