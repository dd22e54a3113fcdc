"""Judges the adapter: LoRA where it was asked for, on every layer there, and nowhere else.

A request that this model cannot serve is a setting (78). A model that came out otherwise than
asked is a broken contract between Unsloth, PEFT and us: no node and no retry mends it (76).
"""

from __future__ import annotations

import math

from app import sections
from app.checks import Check
from app.checks._on_layers import LIBRARY_STEP, on_every_layer
from app.facts.adapter import (
    AdapterFacts,
    Asked,
    Pair,
    counted,
    inventory,
    whereabouts,
)
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_FLAGS = "BOOT_FINETUNE_* (Unsloth's meaning of them: unsloth_zoo.peft_utils.get_peft_regex)"


def request_can_be_met(facts: AdapterFacts, plan: Plan) -> Finding:
    """The model has what the flags ask for. Unsloth would silently adapt something else."""
    places = {(item.component, item.kind) for item in facts.projections}
    problems = Asked.of(plan.request).unmet(places)
    if problems:
        return failed(
            "; ".join(problems),
            expected=str(Asked.of(plan.request)),
            actual=inventory(facts.projections),
            next_step="set the BOOT_FINETUNE_* flags to parts that this model has",
        )
    asked = Asked.of(plan.request)
    has = whereabouts(p for p in facts.projections if asked.allows(p.component, p.kind))
    return passed(
        f"the model has {has}{_vision_note(facts, asked)}", actual=inventory(facts.projections)
    )


def _vision_note(facts: AdapterFacts, asked: Asked) -> str:
    """Vision may be all convolutions (Gemma 3n): then its projector is all that can be adapted."""
    bare = not any(p.component == "vision" for p in facts.projections)
    return "; the vision tower has no Linear to adapt" if asked.vision and bare else ""


def attached(facts: AdapterFacts, plan: Plan) -> Finding:
    """There is one adapter, it is on, and no two pairs are one."""
    shared = [pair.name for pair in facts.pairs if pair.shared]
    told = (
        ("the model has no LoRA pair", not facts.pairs, ()),
        ("the model holds other adapters too", facts.other_adapters, facts.other_adapters),
        ("pairs are switched off, merged or not active", facts.inactive, facts.inactive),
        ("pairs hold a matrix that stands elsewhere too", shared, shared),
    )
    problems = [f"{text}: {listed(names)}".removesuffix(": ") for text, so, names in told if so]
    found = f"{counted(len(facts.pairs), 'LoRA pair')} on {whereabouts(facts.pairs)}"
    if problems:
        return failed(
            "; ".join(problems),
            expected=f"one adapter, active on {Asked.of(plan.request)}",
            actual=found if facts.pairs else "no pair",
            next_step="attach one fresh adapter, and neither disable, merge nor tie it"
            if facts.pairs
            else LIBRARY_STEP,
        )
    note = _vision_note(facts, Asked.of(plan.request))
    return passed(f"{found}{note}", actual=inventory(facts.pairs))


def only_where_asked(facts: AdapterFacts, plan: Plan) -> Finding:
    """No pair outside the asked parts and kinds; on audio never."""
    asked = Asked.of(plan.request)
    stray = [pair for pair in facts.pairs if not asked.allows(pair.component, pair.kind)]
    if stray:
        return failed(
            f"LoRA stands on {counted(len(stray), 'module')} that the settings do not ask for: "
            f"{listed(pair.name for pair in stray)}",
            expected=str(Asked.of(plan.request)),
            actual=inventory(stray),
            next_step=LIBRARY_STEP,
        )
    return passed("no pair stands where none was asked for", actual=inventory(facts.pairs))


def only_lora_trains(facts: AdapterFacts, plan: Plan) -> Finding:
    """Towers, embeddings, norms and biases are frozen; the pairs are not."""
    del plan
    foreign = [*facts.other_trainable, *(f"{name} (kept whole)" for name in facts.modules_to_save)]
    if foreign:
        return failed(
            f"trainable outside the adapter, {len(foreign)}: {listed(foreign)}",
            expected="trainable: LoRA A and B only",
            actual=f"{len(foreign)} others",
            next_step="do not unfreeze parameters or set modules_to_save before training",
        )
    if facts.frozen_lora:
        return failed(
            f"LoRA matrices are frozen, {len(facts.frozen_lora)}: {listed(facts.frozen_lora)}",
            expected="every LoRA matrix trains",
            actual=f"{len(facts.frozen_lora)} frozen",
            next_step="do not freeze the model after the adapter was attached",
        )
    return passed(f"{facts.n_trainable} trainable scalars, all of LoRA")


def hyperparameters(facts: AdapterFacts, plan: Plan) -> Finding:
    """r, alpha and dropout of every pair, the shapes of its matrices included."""
    request = plan.request
    expected = f"r {request.lora_r}, alpha {request.lora_alpha}, dropout {request.lora_dropout}"
    wrong = [pair for pair in facts.pairs if not _as_asked(pair, plan)]
    if wrong:
        first = wrong[0]
        return failed(
            f"not as asked, {counted(len(wrong), 'pair')}: {listed(pair.name for pair in wrong)}",
            expected=expected,
            actual=f"r {first.r}, alpha {first.alpha:g}, dropout {first.dropout:g}, "
            f"A {list(first.a_shape)}, B {list(first.b_shape)}"
            + (f" on {first.features[0]} to {first.features[1]}" if first.features else ""),
            next_step=LIBRARY_STEP,
        )
    return passed(f"every pair has {expected}")


def _as_asked(pair: Pair, plan: Plan) -> bool:
    request = plan.request
    # Fused experts put the pairs of all experts into one matrix: a multiple of r.
    ranks = (pair.a_shape[0], pair.b_shape[1]) if pair.a_shape and pair.b_shape[1:] else (0, 0)
    fits = ranks[0] == ranks[1] and (
        ranks[0] % pair.r == 0 if pair.kind == "experts" else ranks[0] == pair.r
    )
    if pair.features is not None:
        features_in, features_out = pair.features
        fits = fits and (pair.a_shape[1:], pair.b_shape[:1]) == ((features_in,), (features_out,))
    return (
        pair.r == request.lora_r
        and fits
        and math.isclose(pair.alpha, request.lora_alpha, rel_tol=1e-6)
        and math.isclose(pair.dropout, request.lora_dropout, rel_tol=1e-6)
    )


def starts_at_zero(facts: AdapterFacts, plan: Plan) -> Finding:
    """B is zero, so that the adapted model starts equal to the base."""
    del plan
    if not facts.pairs:
        return skipped("no LoRA pair")
    unread_pairs = [pair.name for pair in facts.pairs if pair.b_zero is None]
    loaded = [pair.name for pair in facts.pairs if pair.b_zero is False]
    if loaded or unread_pairs:
        return failed(
            f"B is not zero or has no data in {counted(len(loaded + unread_pairs), 'pair')}: "
            f"{listed(loaded + unread_pairs)}",
            expected="B all zero before training",
            actual=f"{len(loaded)} not zero, {len(unread_pairs)} without data",
            next_step="attach a fresh adapter; a boot does not resume one",
        )
    return passed(f"B is zero in {counted(len(facts.pairs), 'pair')}")


def section(facts: AdapterFacts, plan: Plan) -> sections.Adapter:
    """The report's section. r, alpha and dropout are the request's, which the checks hold to."""
    components: dict[str, dict[str, int]] = {}
    for pair in facts.pairs:
        kinds = components.setdefault(pair.component, {})
        kinds[pair.kind] = kinds.get(pair.kind, 0) + 1
    return sections.Adapter(
        r=plan.request.lora_r,
        alpha=plan.request.lora_alpha,
        dropout=plan.request.lora_dropout,
        n_pairs=len(facts.pairs),
        n_trainable=facts.n_trainable,
        n_total=facts.n_total,
        components=components,
        targets=sorted({pair.name.rpartition(".")[2] for pair in facts.pairs}),
    )


# The first one that passed is what the table shows of a stage that passed.
CHECKS: tuple[Check[AdapterFacts], ...] = (
    Check(
        "adapter.attached",
        Fault.PRECISION,
        _FLAGS,
        attached,
        cause="the model came with an adapter, or it was disabled, merged or tied after it was "
        "attached",
        fix="start from a base model and attach one fresh adapter",
    ),
    Check(
        "adapter.request_can_be_met",
        Fault.CONFIG,
        _FLAGS,
        request_can_be_met,
        cause="the flags ask for vision layers of a text model, or for a kind of layer that the "
        "family does not have",
        fix="set the BOOT_FINETUNE_* flags to parts that this model has",
    ),
    Check(
        "adapter.only_where_asked",
        Fault.PRECISION,
        _FLAGS,
        only_where_asked,
        cause="a pattern of target modules that also matches towers or another part of the model",
        fix="compare unsloth_zoo's version with the lock, and report it with the names",
    ),
    Check(
        "adapter.on_every_layer",
        Fault.PRECISION,
        _FLAGS,
        on_every_layer,
        cause="a pattern of target modules that misses some layers, as for renamed or fused "
        "projections",
        fix="compare unsloth_zoo's version with the lock, and report it with the names",
    ),
    Check(
        "adapter.only_lora_trains",
        Fault.PRECISION,
        "PEFT freezes the base",
        only_lora_trains,
        cause="embeddings or norms were unfrozen, modules_to_save was set, or the LoRA matrices "
        "were frozen",
        fix="leave the base frozen before training",
    ),
    Check(
        "adapter.hyperparameters",
        Fault.PRECISION,
        "BOOT_LORA_*",
        hyperparameters,
        cause="a library changed rank, alpha or dropout, or shaped a matrix for another layer",
        fix="compare peft's version with the lock, and report it with the names",
    ),
    Check(
        "adapter.starts_at_zero",
        Fault.PRECISION,
        "LoRA: B starts at zero",
        starts_at_zero,
        cause="an adapter that was trained before, or another initialisation",
        fix="attach a fresh adapter; a boot does not resume one",
    ),
)
