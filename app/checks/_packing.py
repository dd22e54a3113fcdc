"""The judge of how a folder is packed, with its rules; `app.checks.checkpoint` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.checks._quant_options import bad_options, compute_note, skipped_and_packed
from app.checks._quant_state import incomplete_packing, state_offenders
from app.facts.checkpoint import CheckpointFacts
from app.facts.shapes import text_tables
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_FETCH_WEIGHTS = "fetch the weights of one revision again, or pack the 16-bit model anew"
_REHEARSAL = "rehearsal:"
_CONFIG = "quantization_config"
_FLAGS = ("load_in_4bit", "_load_in_4bit", "load_in_8bit", "_load_in_8bit")
_UNQUANTISED = (
    "name the unquantised model (it is packed to nf4 while it loads) or its -bnb-4bit form"
)
_OTHER_METHODS = (
    (".qweight", "GPTQ or AWQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_inv", "8-bit floats"),
    (".SCB", "bitsandbytes in 8 bits"),
    ("_proj_blocks", "MXFP4"),
)
_PACKING = (
    "beside every packed weight absmax, quant_map, exactly one nf4 quant state, and the nested "
    "pair where the scales are quantised too"
)


def quantization(facts: CheckpointFacts, plan: Plan) -> Finding:
    """What the folder is packed with must be what the boot asks for, and be complete."""
    if facts.config_problem or any(shard.problem for shard in facts.shards) or not facts.tensors:
        return skipped("config or weights could not be read")
    found = facts.quantization_config
    return (
        _no_method(facts)
        or _elsewhere(facts)
        or _wrong_method(found, plan)
        or bad_options(found, facts)
        or _packing(facts, found)
        or skipped_and_packed(facts)
        or _good(facts, plan)
    )


def _good(facts: CheckpointFacts, plan: Plan) -> Finding:
    if facts.packed:
        note = compute_note(facts, plan)
        return passed(f"{len(facts.packed)} weights are packed as nf4{note}", expected=_PACKING)
    how = "packed to nf4 while they load" if plan.request.load_in_4bit else "loaded as they are"
    return passed(f"the weights are not packed, and are {how}")


def _no_method(facts: CheckpointFacts) -> Finding | None:
    """A configuration that says nothing, on which transformers 5.17 raises (quantizers/auto.py)."""
    for where, table in text_tables(facts):
        raw = table.get(_CONFIG)
        if isinstance(raw, Mapping):
            what = "names no quant_method" if raw else "is empty"
            wrong = raw.get("quant_method") is None and not any(raw.get(key) for key in _FLAGS)
        else:
            what, wrong = f"is no object but {one_line(repr(raw), 60)}", raw is not None
        if wrong:
            packed = facts.packed or _other_packing(facts)
            return failed(
                f"config.json's {where}{_CONFIG} {what}",
                expected=f"an object with a quant_method, or no {_CONFIG}",
                actual=one_line(repr(raw), 60),
                next_step="fetch config.json of the same revision again"
                if packed
                else f"remove {_CONFIG} from config.json: no weight is packed",
            )
    return None


def _elsewhere(facts: CheckpointFacts) -> Finding | None:
    """A method that no later stage would hear of: they ask config.json's own entry alone."""
    for table, key, place in (
        (facts.text_config, _CONFIG, f"text_config.{_CONFIG}"),
        (facts.config, "compression_config", "compression_config"),
    ):
        inner = table.get(key)
        if facts.quantization_config is None and isinstance(inner, Mapping) and inner:
            method = one_line(str(inner.get("quant_method", "a method without a name")), 60)
            return failed(
                f"config.json's {place} says {method}, and its {_CONFIG} does not",
                expected=f"{_CONFIG} in config.json itself, or none",
                actual=f"{place}: {method}",
                next_step=_UNQUANTISED,
            )
    return None


def _packing(facts: CheckpointFacts, found: Mapping[str, Any] | None) -> Finding | None:
    """Config and headers must tell the same."""
    nested = bool(found and found.get("bnb_4bit_use_double_quant"))
    what, offenders = "without all of their quantisation", incomplete_packing(facts, nested=nested)
    if not offenders:
        what, offenders = "whose quantisation does not fit", state_offenders(facts)
    if offenders:
        reason = f"{len(offenders)} packed weight(s) {what}: {offenders[0]}"
        actual, step = listed(offenders, between="; "), _FETCH_WEIGHTS
    elif found is None and (other := _other_packing(facts)):
        method, names = other
        reason = f"{len(names)} weight(s) are packed by {method}, and config.json does not say so"
        actual, step = listed(names), _UNQUANTISED
    elif found is None and facts.packed:
        reason = "weights are packed and config.json has no quantization_config"
        actual, step = "no quantization_config", "fetch config.json of the same revision again"
    elif found is not None and not facts.packed:
        reason = "config.json says bitsandbytes 4-bit and no weight is packed"
        actual = "no packed weight"
        step = "remove quantization_config from config.json, or fetch the packed weights"
    else:
        return None
    return failed(reason, expected=_PACKING, actual=actual, next_step=step)


def _other_packing(facts: CheckpointFacts) -> tuple[str, list[str]] | None:
    """Packed weights of other methods, by the names that they go by."""
    for suffix, method in _OTHER_METHODS:
        names = [header.name for header in facts.tensors if header.name.endswith(suffix)]
        if names:
            return method, names
    return None


def _wrong_method(found: Mapping[str, Any] | None, plan: Plan) -> Finding | None:
    if found is None:
        return None
    load_in_4bit = plan.request.load_in_4bit
    # Files of before 2023 name no method beside load_in_4bit, and are bitsandbytes'.
    method = found.get("quant_method") or "bitsandbytes"
    kind = found.get("bnb_4bit_quant_type", "fp4")  # transformers' own default
    four = (
        method == "bitsandbytes" and found.get("load_in_4bit", found.get("_load_in_4bit")) is True
    )
    eight = found.get("load_in_8bit", found.get("_load_in_8bit")) is True
    actual = one_line(f"{method}" + (f" {kind}" if four else " in 8 bits" if eight else ""))
    if four and eight:
        return failed(
            "config.json says bitsandbytes in 4 and in 8 bits",
            expected="load_in_4bit alone",
            actual="load_in_4bit and load_in_8bit",
            next_step="fetch config.json of the same revision again",
        )
    if four and kind == "nf4" and load_in_4bit:
        return None
    if four and not load_in_4bit:
        return _not_asked_for(actual, plan.request.base_model_id)
    return failed(
        f"the folder is quantised by {actual}, which this boot cannot prove",
        expected="bitsandbytes nf4, or no quantization_config",
        actual=actual,
        next_step=_UNQUANTISED,
    )


def _not_asked_for(actual: str, asked: str) -> Finding:
    rehearsal = asked.startswith(_REHEARSAL)
    what = f"the rehearsal model {asked}" if rehearsal else "the folder"
    other = (
        "set BOOT_BASE_MODEL_ID to a model that is not packed"
        if rehearsal
        else "name the 16-bit model"
    )
    return failed(
        f"{what} is packed in 4 bits and BOOT_LOAD_IN_4BIT is false",
        expected="unpacked weights",
        actual=actual,
        next_step=f"set BOOT_LOAD_IN_4BIT=true, or {other}",
        fault=Fault.CONFIG,
    )
