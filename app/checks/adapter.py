"""Judges the adapter: LoRA where it was asked for, on every layer there, and nowhere else.

A request that this model cannot serve is a setting (78). A model that came out otherwise than
asked is a broken contract between Unsloth, PEFT and us: no node and no retry mends it (76).
"""

from __future__ import annotations

import math

from app import sections
from app.checks import Check
from app.facts.adapter import AdapterFacts, Asked, Pair, inventory
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_FLAGS = "BOOT_FINETUNE_* (Unsloth's meaning of them: unsloth_zoo.peft_utils.get_peft_regex)"
_FUSED_STEP = (
    "these experts are one tensor per layer, which Unsloth adapts on CUDA only and without dropout:"
    " set BOOT_FINETUNE_MLP_MODULES=false to rehearse the rest"
)
_LIBRARY_STEP = "check the versions of unsloth, unsloth_zoo and peft against the image's lock"


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
    return passed(f"the model has {Asked.of(plan.request)}", actual=inventory(facts.projections))


def attached(facts: AdapterFacts, plan: Plan) -> Finding:
    """There is an adapter at all."""
    if not facts.pairs:
        return failed(
            "the model has no LoRA pair",
            expected=str(Asked.of(plan.request)),
            actual="no pair",
            next_step=_LIBRARY_STEP,
        )
    return passed(f"{len(facts.pairs)} LoRA pairs", actual=inventory(facts.pairs))


def only_where_asked(facts: AdapterFacts, plan: Plan) -> Finding:
    """No pair outside the asked parts and kinds; on audio never."""
    asked = Asked.of(plan.request)
    stray = [pair for pair in facts.pairs if not asked.allows(pair.component, pair.kind)]
    if stray:
        return failed(
            f"LoRA stands on {len(stray)} modules that were not asked for: "
            f"{listed(pair.name for pair in stray)}",
            expected=str(Asked.of(plan.request)),
            actual=inventory(stray),
            next_step=_LIBRARY_STEP,
        )
    return passed(f"all {len(facts.pairs)} pairs stand on {Asked.of(plan.request)}")


def on_every_layer(facts: AdapterFacts, plan: Plan) -> Finding:
    """Every asked projection of every layer that exists carries a pair, each once."""
    asked = Asked.of(plan.request)
    names = [pair.name for pair in facts.pairs]
    required = [item.name for item in facts.projections if asked.requires(item)]
    missing = [name for name in required if name not in set(names)]
    twice = sorted({name for name in names if names.count(name) > 1})
    # Routed experts are required nowhere; asked for alone and without a pair, they are missing.
    places = {(item.component, item.kind) for item in facts.projections}
    bare = () if asked.unmet(places) else asked.unmet((p.component, p.kind) for p in facts.pairs)
    fused = any(item.fused for item in facts.projections)
    if missing or twice or bare:
        reasons = (
            [f"{len(missing)} projections carry no pair: {listed(missing)}"] if missing else []
        )
        reasons += [f"pairs stand twice on {listed(twice)}"] if twice else []
        reasons += [f"no pair serves this: {text}" for text in bare if not missing]
        return failed(
            "; ".join(reasons),
            expected=f"a pair on each of {len(required)} projections",
            actual=f"{len(facts.pairs)} pairs",
            next_step=_FUSED_STEP if fused and bare and not missing else _LIBRARY_STEP,
        )
    return passed(f"a pair on each of {len(required)} projections")


def only_lora_trains(facts: AdapterFacts, plan: Plan) -> Finding:
    """Towers, embeddings, norms and biases are frozen; the pairs are not."""
    del plan
    foreign = [*facts.other_trainable, *(f"{name} (kept whole)" for name in facts.modules_to_save)]
    if foreign:
        return failed(
            f"{len(foreign)} parameters outside the adapter train: {listed(foreign)}",
            expected="trainable: LoRA A and B only",
            actual=f"{len(foreign)} others",
            next_step="do not unfreeze parameters or set modules_to_save before training",
        )
    if facts.frozen_lora:
        return failed(
            f"{len(facts.frozen_lora)} LoRA matrices are frozen: {listed(facts.frozen_lora)}",
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
            f"{len(wrong)} pairs differ from the request: {listed(pair.name for pair in wrong)}",
            expected=expected,
            actual=f"r {first.r}, alpha {first.alpha:g}, dropout {first.dropout:g}, "
            f"A {list(first.a_shape)}, B {list(first.b_shape)}",
            next_step=_LIBRARY_STEP,
        )
    return passed(f"every pair has {expected}")


def _as_asked(pair: Pair, plan: Plan) -> bool:
    request = plan.request
    # Fused experts put the pairs of all experts into one matrix: a multiple of r.
    ranks = (pair.a_shape[0], pair.b_shape[1]) if pair.a_shape and pair.b_shape[1:] else (0, 0)
    fits = ranks[0] == ranks[1] and (
        ranks[0] % pair.r == 0 if pair.kind == "experts" else ranks[0] == pair.r
    )
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
            f"B is not zero or has no data in {len(loaded) + len(unread_pairs)} pairs: "
            f"{listed(loaded + unread_pairs)}",
            expected="B all zero before training",
            actual=f"{len(loaded)} not zero, {len(unread_pairs)} without data",
            next_step="attach a fresh adapter; a boot does not resume one",
        )
    return passed(f"B is zero in all {len(facts.pairs)} pairs")


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


CHECKS: tuple[Check[AdapterFacts], ...] = (
    Check("adapter.request_can_be_met", Fault.CONFIG, _FLAGS, request_can_be_met),
    Check("adapter.attached", Fault.PRECISION, _FLAGS, attached),
    Check("adapter.only_where_asked", Fault.PRECISION, _FLAGS, only_where_asked),
    Check("adapter.on_every_layer", Fault.PRECISION, _FLAGS, on_every_layer),
    Check("adapter.only_lora_trains", Fault.PRECISION, "PEFT freezes the base", only_lora_trains),
    Check("adapter.hyperparameters", Fault.PRECISION, "BOOT_LORA_*", hyperparameters),
    Check("adapter.starts_at_zero", Fault.PRECISION, "LoRA: B starts at zero", starts_at_zero),
)
