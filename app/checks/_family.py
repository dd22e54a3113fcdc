"""The judge of the model family: known to the installed transformers, and one that is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.families import Families
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

_LAYOUT = "the tables of the installed transformers could not be read"


def family(facts: CheckpointFacts, plan: Plan) -> Finding:
    """The installed transformers must know the family, and have a class that predicts text."""
    kind = facts.config.get("model_type")
    if facts.config_problem or not isinstance(kind, str) or not kind:
        return skipped("config.json names no model type")
    families = facts.families
    if families is None or not families.configs or not families.causal or not families.image_text:
        return skipped(_LAYOUT)
    return (
        _unknown(facts.config, kind, families)
        or _architectures_problem(facts.config)
        or _untrained(kind, families, plan)
        or _another_class(facts.config, kind, families)
        or _known(kind, families, facts.config)
    )


def _known(kind: str, families: Families, config: Mapping[str, Any]) -> Finding:
    shown = families.causal.get(kind) or families.image_text.get(kind) or one_line(kind)
    note = ", by its own code and not the repository's (auto_map)" if _auto_map(config) else ""
    return passed(
        f"{_library(families)} knows {one_line(kind)}: {shown}{note}",
        expected=f"a model type of {_library(families)}",
        actual=one_line(kind),
    )


def _library(families: Families) -> str:
    return f"transformers {families.version}".strip()


def _auto_map(config: Mapping[str, Any]) -> bool:
    return bool(config.get("auto_map"))


def _unknown(config: Mapping[str, Any], kind: str, families: Families) -> Finding | None:
    looked_up = _looked_up(config, kind, families)
    wrong = [(where, name) for where, name in looked_up if not families.knows(name)]
    if not wrong:
        return None
    where, name = wrong[0]
    shown = one_line(name, 100)
    near = families.near(name)
    by = config.get("transformers_version")
    written = f", and was written by {one_line(by, 20)}" if isinstance(by, str) and by else ""
    expected = f"a model type that {_library(families)} knows"
    actual = f"{where} {shown}{written}"
    if _auto_map(config) and where == "model_type":
        return failed(
            f"{shown} needs code from the model's repository (auto_map), which is not run here",
            expected=expected,
            actual=actual,
            next_step="name a form of the model that transformers knows by itself, or an image "
            "whose transformers does",
        )
    meant = f"; spelt almost so: {listed(near)}" if near else ""
    return failed(
        f"{_library(families)} does not know the {where} {shown}{meant}",
        expected=expected,
        actual=actual,
        next_step=f"correct {where} in config.json, or use an image whose transformers is new "
        "enough for this model",
    )


def _looked_up(
    config: Mapping[str, Any], kind: str, families: Families
) -> Iterator[tuple[str, str]]:
    """Model types that decide on a class: the model's, and those of parts that are looked up."""
    yield "model_type", kind
    for part in sorted(families.nested_by_type):
        table = config.get(part)
        name = table.get("model_type") if isinstance(table, Mapping) else None
        if isinstance(name, str):
            yield f"{part}.model_type", name


def _architectures_problem(config: Mapping[str, Any]) -> Finding | None:
    """transformers 5 checks the type when it reads the file."""
    found = config.get("architectures")
    if found is None or (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        return None
    return failed(
        "config.json's architectures are no list of class names",
        expected="a list of texts, or none",
        actual=one_line(repr(found), 100),
        next_step="fetch config.json of the same revision again",
    )


def _untrained(kind: str, families: Families, plan: Plan) -> Finding | None:
    """Families that no class for language modelling loads."""
    if kind in families.causal or kind in families.image_text:
        return None
    if kind in families.patched and kind not in families.configs:
        return skipped(f"Unsloth brings {one_line(kind)} itself: transformers has no table for it")
    shown = one_line(kind)
    expected = "a family of AutoModelForCausalLM or AutoModelForImageTextToText"
    if kind in families.other and plan.profile.needs_gpu:
        return warned(
            f"{shown} is no plain language model ({families.other[kind]}): Unsloth loads it, and "
            "what this boot proves of it was never tried",
            expected=expected,
            actual=families.other[kind],
            next_step="read the report's later stages with care, or name another model",
        )
    made = families.other.get(kind) or families.configs.get(kind, shown)
    return failed(
        f"{shown} is no language model that this boot can train ({made})",
        expected=expected,
        actual=made,
        next_step="set BOOT_BASE_MODEL_ID to a model that generates text",
        fault=Fault.CONFIG,
    )


def _another_class(config: Mapping[str, Any], kind: str, families: Families) -> Finding | None:
    """The auto classes go by the type alone: another head would be left out, or made up."""
    found = config.get("architectures")
    named = found[0] if isinstance(found, list) and found else ""
    tables = (families.causal, families.image_text, families.other)
    loaded = [table[kind] for table in tables if kind in table]
    if not named or named in loaded:
        return None
    return warned(
        f"the weights were saved by {one_line(named, 80)}, and {listed(loaded, 2)} is loaded",
        expected=listed(loaded),
        actual=one_line(named, 80),
        next_step="make sure that a model for generating text is meant: weights of another head "
        "are not used, and missing ones would be random",
    )
