"""The judge of what kind of folder this is; `app.checks.checkpoint` lists it."""

from __future__ import annotations

from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import CheckpointFacts
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed
from app.plan import Plan

_EXPECTED = "config.json with a model_type"
_ADAPTER = "adapter_config.json"


def config(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """Says what model this is."""
    if facts.config_problem:
        return something_else(facts) or failed(
            f"config.json: {facts.config_problem}",
            expected=_EXPECTED,
            actual=facts.config_problem,
            next_step=step_for(facts, {"config.json": facts.config_problem}),
            fault=fault_in(facts, ["config.json"]),
        )
    if _ADAPTER in facts.other_files:
        # Unsloth then loads the base that the adapter names, from wherever that is: the folder
        # that was checked is not the model that would be trained.
        return failed(
            "the folder holds a model and a LoRA adapter, and the adapter's base would be loaded",
            expected="a model, without an adapter_config.json beside it",
            actual="config.json and adapter_config.json",
            next_step="move the adapter's files into a folder of their own",
        )
    kind = facts.config.get("model_type")
    if not isinstance(kind, str) or not kind:
        return failed(
            "config.json names no model_type",
            expected=_EXPECTED,
            actual=one_line(repr(kind), 100),
            next_step="use a folder that transformers saved",
        )
    return passed(f"model type {one_line(kind)}", expected=_EXPECTED, actual=one_line(kind))


def something_else(facts: CheckpointFacts) -> Finding | None:
    """Folders that are something known, and no model of transformers."""
    names = facts.other_files
    if "config.json" in names:
        return None  # it is there and cannot be used: that is what is to be said
    found: tuple[str, str, str] | None = None
    other_case = [one_line(name) for name in names if name.lower() == "config.json"]
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    if _ADAPTER in names:
        found = (
            "the folder holds a LoRA adapter, not a base model",
            f"{_ADAPTER} and no config.json",
            f"set BOOT_BASE_MODEL_ID to the adapter's base model{_base(facts)}",
        )
    elif "model_index.json" in names:
        found = (
            "the folder holds a diffusion pipeline, not a language model",
            "model_index.json and no config.json",
            "name a language model: this boot trains no diffusion models",
        )
    elif gguf:
        found = (
            "the folder holds a model in GGUF, which cannot be trained",
            f"{listed(gguf, 3)} and no config.json",
            "name the safetensors form of the model (the repository that the GGUF was made from)",
        )
    elif "params.json" in names:
        found = (
            "the folder holds a model in its maker's own layout, not in that of transformers",
            "params.json and no config.json",
            "name the form of the model that was converted for transformers (it has a config.json)",
        )
    elif other_case:
        found = (
            f"the folder has {other_case[0]}, and its name must be config.json",
            listed(other_case),
            f"rename {other_case[0]} to config.json, and look at the other names too",
        )
    elif facts.nested:
        found = (
            f"the model is one folder deeper: {listed(facts.nested, 3)}",
            f"no config.json here, and one in {listed(facts.nested)}",
            f"set BOOT_BASE_MODEL_ID to {_deeper(facts)}",
        )
    if found is None:
        return None
    reason, actual, step = found
    return failed(reason, expected=_EXPECTED, actual=actual, next_step=step)


def _base(facts: CheckpointFacts) -> str:
    name = facts.adapter_base
    return f" ({one_line(name, 200)})" if name else ""


def _deeper(facts: CheckpointFacts) -> str:
    names = facts.nested
    if len(names) > 1:
        return f"one of {listed(names, 3)} in {facts.folder}"
    return one_line(str(facts.folder / names[0]), 400)
