"""The judge of the LoRA targets, by the names in the weights, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from app.facts.adapter import Asked, ComponentT, counted, inventory, whereabouts
from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import VISION_WORDS
from app.facts.lora_targets import Targets, find_targets
from app.facts.words import listed
from app.outcome import Finding, failed, passed, skipped
from app.plan import Plan

_NO_LINEAR = "only routed experts are asked for, and they are no Linear in this model"


def lora_targets(facts: CheckpointFacts, plan: Plan) -> Finding:
    """The flags must name parts that this model has: Unsloth would adapt something else."""
    if facts.config_problem:
        return skipped("config.json could not be read")
    targets = find_targets(facts, load_in_4bit=plan.request.load_in_4bit)
    if targets.problem:
        return skipped(targets.problem)
    asked = Asked.of(plan.request)
    problems = asked.unmet(
        (each.component, each.kind) for each in (*targets.projections, *targets.unsure)
    )
    if not problems and not targets.reachable(asked):
        problems = (_NO_LINEAR,)
    if problems:
        doubt = _doubt(facts, targets, asked)
        if doubt:
            return skipped(f"{'; '.join(problems)}, or so it seems: {doubt}")
        return failed(
            f"LoRA cannot be attached as asked: {'; '.join(problems)}",
            expected=str(asked),
            actual=inventory(targets.projections),
            next_step="set the BOOT_FINETUNE_* flags to parts that this model has",
        )
    expected = targets.expected(asked)
    found = expected or targets.reachable(asked)
    return passed(
        f"{counted(len(found), 'projection')} for LoRA by their names: {whereabouts(found)}",
        expected=str(asked),
        actual=inventory(found),
    )


def _doubt(facts: CheckpointFacts, targets: Targets, asked: Asked) -> str:
    """Why the names may not tell all; empty where they do."""
    wanted: set[ComponentT] = {"language"} if asked.language else set()
    wanted |= {"vision", "projector"} if asked.vision else set()
    unsure = [each.name for each in targets.unsure if each.component in wanted]
    if unsure:
        return f"of {listed(unsure, 2)} the name does not tell the kind"
    sees = any(
        isinstance(value, Mapping) and value and any(word in key.lower() for word in VISION_WORDS)
        for key, value in facts.config.items()
    )
    known = any(each.component in ("vision", "projector") for each in targets.projections)
    if asked.vision and sees and not known and not _has_tower(facts):
        return "config.json speaks of vision, and no tensor is known as its part"
    return ""


def _has_tower(facts: CheckpointFacts) -> bool:
    """Whether a tensor is named as one of a vision tower, be it of convolutions alone."""
    return any("vision" in header.name for header in facts.tensors)
