"""Judges of how long a text may be, and of how text is generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component
from app.facts.shapes import text_tables
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

_LIMITS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_ROPE = ("rope_scaling", "rope_parameters")
_LEARNED = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")
# Used in sampling only, with the value that says nothing (transformers 5.17,
# GenerationConfig.validate). Saving such a file again raises.
_SAMPLING: Mapping[str, float | None] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "top_k": 50,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}

# Names of caches that transformers 4.57 or 5.17 takes (ALL_CACHE_IMPLEMENTATIONS, and "paged").
_CACHES = (
    *("static", "offloaded_static", "dynamic", "dynamic_full", "offloaded", "quantized", "paged"),
    *("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "mamba"),
    *("offloaded_hybrid_chunked", "sliding_window_static"),
)


def context(facts: CheckpointFacts, plan: Plan) -> Finding:
    """Beyond the context that a model was trained for its positions are guesses."""
    if facts.config_problem:
        return skipped("config.json could not be read")
    asked = plan.request.max_seq_length
    found = [_limit(where, table) for where, table in text_tables(facts)]
    known = [entry for entry in found if entry is not None]
    if not known:
        return skipped("config.json gives no longest context")
    limit, told = known[-1]  # the text model's, where it has one of its own
    expected = f"BOOT_MAX_SEQ_LENGTH of at most {limit} ({told})"
    if asked <= limit:
        return passed(f"{asked} tokens fit the model's context of {limit}", expected=expected)
    learned = any(
        header.name.endswith(_LEARNED) and component(header.name) in ("language", "other")
        for header in facts.tensors
    )
    what = (
        "its positions are a learned table, and a longer text ends the run"
        if learned
        else "positions beyond were never trained, and the loss there means little"
    )
    return warned(
        f"BOOT_MAX_SEQ_LENGTH={asked} is beyond the model's context of {limit} tokens: {what}",
        expected=expected,
        actual=str(asked),
        next_step=f"set BOOT_MAX_SEQ_LENGTH={limit} or less, or name a model with a longer context",
    )


def _limit(where: str, table: Mapping[str, Any]) -> tuple[int, str] | None:
    """The context in tokens, scaling of positions included, and who says so."""
    for key in _LIMITS:
        number = table.get(key)
        if type(number) is not int or number < 1:
            continue
        rope: Mapping[str, Any] = next(
            (table[k] for k in _ROPE if isinstance(table.get(k), Mapping)), {}
        )
        factor, base = rope.get("factor"), rope.get("original_max_position_embeddings")
        kind = rope.get("rope_type") or rope.get("type")
        told = f"{where}{key}"
        if not isinstance(factor, int | float) or not 1 < factor < 10**6 or kind == "default":
            return number, told
        scaled = int(factor * (base if type(base) is int and 0 < base <= number else number))
        shown = f"{one_line(str(kind), 20)} scaling by {factor:g}"
        return max(number, min(scaled, 10**9)), f"{told}, {shown}"
    return None


def generation(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """A file that the load refuses, or that a job could not save again at its end."""
    found = facts.generation
    if not found:
        return skipped("there is no generation_config.json, or nothing in it")
    fatal = list(_fatal(found))
    expected = "generation options that transformers accepts and that fit together"
    if fatal:
        return failed(
            f"generation_config.json: {listed(fatal, 1)}",
            expected=expected,
            actual=listed(fatal, between="; "),
            next_step="correct it in the file, or remove the file (generation then uses defaults)",
        )
    idle = [
        f"{key}={one_line(str(found[key]), 20)}"
        for key, neutral in _SAMPLING.items()
        if found.get("do_sample") is not True and found.get(key) not in (None, neutral)
    ]
    if idle:
        return warned(
            f"generation_config.json sets {listed(idle, 3)} without do_sample: transformers will "
            "not save the whole model with it again",
            expected=expected,
            actual=listed(idle),
            next_step="set do_sample to true in generation_config.json, or remove these options",
        )
    return passed("the generation options fit together", expected=expected)


def _fatal(found: Mapping[str, Any]) -> Iterator[str]:
    """What transformers 5.17 raises on when it reads the file."""
    number = found.get("max_new_tokens")
    if type(number) is int and number <= 0:
        yield f"max_new_tokens is {number}"
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = found.get(key)
        ids = value if isinstance(value, list) else [value]
        if any(type(one) is not int for one in ids if one is not None):
            yield f"{key} is {one_line(repr(value), 40)}, and must be the number of a token"
    cache = found.get("cache_implementation")
    if cache is not None and cache not in _CACHES:
        yield f"cache_implementation is {one_line(repr(cache), 40)}, which is none"
    early = found.get("early_stopping")
    if early is not None and early not in (True, False, "never"):
        yield f"early_stopping is {one_line(repr(early), 40)}"
    sequences, beams = found.get("num_return_sequences"), found.get("num_beams")
    single = beams is None or beams == 1
    if type(sequences) is int and sequences > 1 and single and not found.get("do_sample"):
        yield f"num_return_sequences is {sequences}, without sampling and without beams"
