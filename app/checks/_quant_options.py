"""Rules on the options of a bitsandbytes configuration, beside those on the packed weights.

By `BitsAndBytesConfig.__init__` and `post_init` of transformers 5.17, which raise on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, warned
from app.plan import Plan

_BYTES = "uint8"
_COMPUTE = "bnb_4bit_compute_dtype"
_STORAGE = "bnb_4bit_quant_storage"
_SKIP = "llm_int8_skip_modules"
_FLOATS = frozenset(
    ("float16", "half", "bfloat16", "float32", "float", "float64", "double")  # names in torch
)
_SWITCHES = (
    *("bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload"),
    "llm_int8_has_fp16_weight",
)


def bad_options(found: Mapping[str, Any] | None, facts: CheckpointFacts) -> Finding | None:
    """Options that the loader raises on, and a storage that no later stage can prove."""
    bad = [*_wrong(found or {}), *_other_bytes(facts)]
    if not bad:
        return None
    return failed(
        f"quantization_config: {listed(bad, 1)}",
        expected="options that BitsAndBytesConfig takes, and packed bytes kept as uint8",
        actual=listed(bad, between="; "),
        next_step="fetch config.json and the weights of the same revision again, or pack the "
        "16-bit model anew",
    )


def _wrong(found: Mapping[str, Any]) -> Iterator[str]:
    compute = found.get(_COMPUTE)
    if compute is not None and (not isinstance(compute, str) or compute not in _FLOATS):
        yield f"{_COMPUTE} {one_line(repr(compute), 40)} is no floating dtype of torch"
    storage = found.get(_STORAGE)
    if storage not in (None, _BYTES):
        yield f"{_STORAGE} is {one_line(repr(storage), 40)}, and only {_BYTES} can be proved"
    skip = found.get(_SKIP)
    texts = isinstance(skip, list) and all(isinstance(name, str) for name in skip)
    if skip is not None and not texts:
        yield f"{_SKIP} is no list of names"
    for key in _SWITCHES:
        value = found.get(key, False)
        if not isinstance(value, bool):
            yield f"{key} is {one_line(repr(value), 40)}, and must be true or false"
    threshold = found.get("llm_int8_threshold", 6.0)
    if not isinstance(threshold, float):
        yield f"llm_int8_threshold is {one_line(repr(threshold), 40)}, and must be like 6.0"


def _other_bytes(facts: CheckpointFacts) -> Iterator[str]:
    packed = frozenset(facts.packed)
    for header in facts.tensors:
        if header.name in packed and header.dtype != "U8":
            yield f"{one_line(header.name)} is stored as {header.dtype}, and must be U8"


def skipped_and_packed(facts: CheckpointFacts) -> Finding | None:
    """A module that the configuration leaves out and the file packs has two meanings.

    transformers 5.17 takes an entry for the beginning or the end of a module's name. Names in the
    file may be renamed on load, so that this only warns.
    """
    listed_out = (facts.quantization_config or {}).get(_SKIP)
    entries = tuple(name for name in listed_out or () if isinstance(name, str) and name)
    both = [name for name in facts.packed if entries and _plain(name).endswith(entries)]
    if not both:
        return None
    return warned(
        f"{len(both)} weight(s) are packed and in {_SKIP}: {listed(both, 2)}",
        expected=f"packed weights outside of {_SKIP}",
        actual=listed(both),
        next_step="fetch config.json and weights of one revision; the precision stage tells what "
        "became of these weights",
    )


def _plain(name: str) -> str:
    return name.removesuffix(".weight")


def compute_note(facts: CheckpointFacts, plan: Plan) -> str:
    """The loader gives every packed layer the profile's own dtype, whatever the file says."""
    said = (facts.quantization_config or {}).get(_COMPUTE)
    wanted = plan.profile.compute_dtype
    if said in (None, wanted) or not plan.profile.needs_gpu:
        return ""
    return f"; the file's compute dtype {one_line(str(said), 20)} becomes {wanted} on the load"
