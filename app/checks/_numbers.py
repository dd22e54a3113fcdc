"""Judges of the numbers in config.json: by themselves, and against the weights' own shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component
from app.facts.shapes import Stack, language_stack, text_tables, token_embeddings
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

# Sizes that every model builds from. A list (one per layer) and null are a family's own matter.
_SIZES = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_attention_heads"),
    *("n_head", "vocab_size", "intermediate_size", "head_dim", "max_position_embeddings"),
)
_MAY_BE_ZERO = frozenset(("intermediate_size", "num_attention_heads", "n_head", "head_dim"))
_MATRIX = 2  # dimensions
_DTYPES = frozenset(
    (
        *("float16", "half", "bfloat16", "float32", "float", "float64", "double"),
        *("uint8", "int8", "int16", "short", "int32", "int", "int64", "long", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float4_e2m1fn_x2", "uint16", "uint32", "uint64", "complex64"),
    )
)
_EXPECTED = "whole numbers above 0, heads that divide the hidden size, a dtype of torch"


def numbers(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """No loader builds a model of a size that is a text, a fraction, zero or negative."""
    if facts.config_problem:
        return skipped("config.json could not be read")
    bad = [
        f"{where}{problem}"
        for where, table in text_tables(facts.config)
        for problem in (*_sizes(table), *_heads(table, facts), *_dtype(table))
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
        and not header.dtype.startswith(("U", "I"))  # a packed one has other sides
        and len(header.shape) == _MATRIX
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


def layers(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """What the configuration promises of layers and embeddings must be in the weights."""
    if facts.config_problem or facts.index_problem or not facts.tensors:
        return skipped("config or weights could not be read")
    if any(shard.problem for shard in facts.shards) or (facts.index and not facts.shards):
        return skipped("not all of the weights could be read")
    stack, embeddings = language_stack(facts), token_embeddings(facts)
    if stack is None and embeddings is None:
        return skipped("neither layers nor embeddings are known by their names in the weights")
    bad = [*(_layer_problems(stack) if stack else ()), *(embeddings.problems if embeddings else ())]
    expected = "as many layers, tokens and hidden units in the weights as config.json says"
    if bad:
        return failed(
            listed(bad, 1),
            expected=expected,
            actual=listed(bad, between="; "),
            next_step="use the config.json that belongs to these weights, and all of their files",
        )
    found = [f"{stack.held} layers"] if stack else []
    found += [f"embeddings {list(embeddings.shape)}"] if embeddings else []
    if stack is not None and stack.doubt:
        return warned(
            f"config.json says {stack.wanted} layers, and the weights have {stack.held}",
            expected=expected,
            actual=listed(found),
            next_step="check that config.json belongs to these weights: few families count their "
            "layers otherwise, or keep one more for multi-token prediction",
        )
    return passed(f"config.json and the weights agree: {listed(found)}", expected=expected)


def _layer_problems(stack: Stack) -> Iterator[str]:
    if stack.short:
        shown = listed([str(number) for number in stack.absent], 5)
        yield (
            f"config.json says {stack.wanted} layers, and the weights have none of number {shown}: "
            "they would be random numbers"
        )
    elif stack.surplus:
        yield f"config.json says {stack.wanted} layers, and the weights have {stack.held}"
    elif stack.gaps:
        yield f"the weights lack {listed(stack.gaps, 3)}, which every other layer has"
