"""Judges whether LoRA stands on every layer, and tells a gap from what Unsloth never adapts."""

from __future__ import annotations

import re
from collections import Counter

from app.facts.adapter import AdapterFacts, Asked, Projection, counted, whereabouts
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, warned
from app.plan import Plan

LIBRARY_STEP = "check the versions of unsloth, unsloth_zoo and peft against the image's lock"


def on_every_layer(facts: AdapterFacts, plan: Plan) -> Finding:
    """Every asked projection of every layer that exists carries a pair, each once.

    What Unsloth adapts in no layer of this model is a request that cannot be met (a setting); what
    it adapts in one layer and not in the next is a broken model.
    """
    asked = Asked.of(plan.request)
    names = Counter(pair.name for pair in facts.pairs)
    required = [item for item in facts.projections if asked.requires(item)]
    missing = [item for item in required if item.name not in names]
    served = {_pattern(pair.name) for pair in facts.pairs}
    gaps = [item.name for item in missing if _pattern(item.name) in served]
    gaps += _expert_gaps(facts, asked)
    twice = [name for name, n in names.items() if n > 1]
    if gaps or twice:
        reasons = []
        if gaps:
            reasons.append(f"{counted(len(gaps), 'projection')} without a pair: {listed(gaps)}")
        if twice:
            reasons.append(f"pairs stand twice on {listed(twice)}")
        return failed(
            "; ".join(reasons),
            expected=f"a pair on each of {counted(len(required), 'projection')}",
            actual=counted(len(facts.pairs), "pair"),
            next_step=LIBRARY_STEP,
        )
    never = [item for item in missing if _pattern(item.name) not in served]
    never += _unserved(facts, asked)
    if never:
        return _never_adapted(never, asked)
    return _experts_finding(facts, asked, plan) or passed(
        f"a pair on each of {counted(len(required), 'projection')}"
        if required
        else f"no layer has a projection that must carry one: {whereabouts(facts.pairs)}"
    )


def _pattern(name: str) -> str:
    """The name without its layer, so that one projection of all layers is one pattern."""
    return re.sub(r"\.\d+\.", ".N.", name)


def _unserved(facts: AdapterFacts, asked: Asked) -> list[Projection]:
    """Parts of the request that exist, that no layer requires, and that no pair serves.

    A projector where the tower has no Linear; routed experts that are the only MLP.
    """
    able = [p for p in facts.projections if asked.allows(p.component, p.kind) and not p.fused]
    joint = {"vision", "projector"}
    found = []
    if asked.vision and not any(pair.component in joint for pair in facts.pairs):
        found += [item for item in able if item.component in joint and not asked.requires(item)]
    if not any(pair.kind in ("mlp", "experts") for pair in facts.pairs):
        found += [item for item in able if item.kind == "experts"]
    return found


def _never_adapted(never: list[Projection], asked: Asked) -> Finding:
    """The way out is the flag of the smaller part: vision, else the kind."""
    if all(item.component in ("vision", "projector") for item in never):
        flag = "BOOT_FINETUNE_VISION_LAYERS"
    elif all(item.kind == "attention" for item in never):
        flag = "BOOT_FINETUNE_ATTENTION_MODULES"
    else:
        flag = "BOOT_FINETUNE_MLP_MODULES"
    kinds = sorted({_pattern(item.name) for item in never})
    return failed(
        f"Unsloth adapts these projections in no layer of this model: {listed(kinds)}",
        expected=str(asked),
        actual=f"{counted(len(never), 'projection')} without a pair",
        next_step=f"set {flag}=false to train the rest, or use a model that Unsloth adapts fully",
        fault=Fault.CONFIG,
    )


def _expert_gaps(facts: AdapterFacts, asked: Asked) -> list[str]:
    """Fused experts without a pair where others have one."""
    bare = _bare_experts(facts, asked)
    return [item.name for item in bare] if any(p.kind == "experts" for p in facts.pairs) else []


def _bare_experts(facts: AdapterFacts, asked: Asked) -> list[Projection]:
    names = {pair.name for pair in facts.pairs}
    fused = [item for item in facts.projections if item.fused and item.name not in names]
    return [item for item in fused if asked.allows(item.component, item.kind)]


def _experts_finding(facts: AdapterFacts, asked: Asked, plan: Plan) -> Finding | None:
    """Experts that are one tensor per layer. Unsloth adapts them on CUDA only, without dropout."""
    bare = _bare_experts(facts, asked)
    if not bare:
        return None
    named = listed(item.name for item in bare)
    expected = f"a pair on each of {counted(len(bare), 'block')} of routed experts"
    if not plan.profile.needs_gpu:
        return warned(
            f"not rehearsed: Unsloth's CPU backend cannot adapt routed experts that are one "
            f"tensor per layer, its CUDA path can: {named}",
            expected=expected,
            actual=f"pairs on {whereabouts(facts.pairs)}",
            next_step="boot on a GPU to see the experts trained, with BOOT_LORA_DROPOUT=0; or set "
            "BOOT_FINETUNE_MLP_MODULES=false to leave them out",
        )
    return failed(
        f"the routed experts carry no pair: {named}",
        expected=expected,
        actual=f"pairs on {whereabouts(facts.pairs)}",
        next_step="set BOOT_FINETUNE_MLP_MODULES=false, or BOOT_LORA_DROPOUT=0 if it is not: "
        "a pair on a tensor of experts works without dropout only",
        fault=Fault.CONFIG,
    )
