"""Judges what the trained adapter says: eight greedy tokens after the chat template."""

from __future__ import annotations

import math

from app.checks import Check
from app.checks._blame import blame_steps
from app.facts.adapter import counted
from app.facts.numerics import NumericsFacts
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan


def generation(facts: NumericsFacts, plan: Plan) -> Finding:
    """Finite logits for every token. A model that cannot generate may still be trained."""
    said = facts.generation
    if said is None:
        return skipped(f"nothing was generated: {facts.no_steps_reason or 'the steps are broken'}")
    if said.problem:
        return warned(
            f"the model cannot generate: {said.problem}",
            expected="greedy tokens from model.generate",
            actual=said.problem,
            next_step="training does not need it; check generation_config.json, the chat template "
            "and the versions of transformers and Unsloth before anything generates",
        )
    shown = ", ".join(f"{size:.6g}" for size in said.largest)
    if not all(math.isfinite(size) for size in said.largest):
        fault, why, step = blame_steps(facts.weights, plan)
        return failed(
            f"the logits of a generated token are not finite{why and f' ({why})'}",
            expected=f"finite logits for {counted(len(said.largest), 'token')}",
            actual=f"largest magnitudes: {shown}",
            next_step=step,
            fault=fault,
        )
    note = f" ({said.note})" if said.note else ""
    return passed(
        f"{counted(len(said.tokens), 'greedy token')} with finite logits after a prompt of "
        f"{said.n_prompt}{note}",
        actual=f"largest magnitudes: {shown}",
    )


CHECKS: tuple[Check[NumericsFacts], ...] = (
    Check(
        "numerics.generation",
        Fault.NUMERICS,
        "greedy decoding with the trained adapter",
        generation,
        cause="a kernel for single tokens or a cache in another type than the training's, weights "
        "out of proportion, or a model class that does not generate",
        fix="follow the finding; where only generating is broken, training can go on",
    ),
)
