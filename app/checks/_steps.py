"""Judges of the training steps: what the losses and gradients of a healthy model look like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from app.checks._blame import NODE_STEP, blame_steps, suspects
from app.checks._evidence import unlike
from app.facts.adapter import counted
from app.facts.numerics import NumericsFacts, WeightFacts
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

_NO_LOSS = "the first loss is not finite, and a gradient of it tells nothing"
# Relative; one unit in the last place of the compute dtype, since a disabled adapter may take
# another kernel. A mean over many tokens rounds better than that. On a CPU the losses are equal.
_LOSS_TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def untried(facts: NumericsFacts) -> Finding:
    """Of what only steps can show, where none was taken."""
    return skipped(f"no training step was tried: {facts.no_steps_reason}")


def batch(facts: NumericsFacts, plan: Plan) -> Finding:
    """The batch is the model's own chat, with every modality that the pairs want."""
    del plan
    steps = facts.steps
    if steps is None:
        return untried(facts)
    size = (
        f"{counted(steps.n_tokens, 'token')} of {' and '.join(steps.modalities)}, "
        f"{steps.n_supervised} of them to be predicted"
    )
    if not steps.notes:
        return passed(f"the batch is the model's own chat: {size}")
    return warned(
        f"the batch is not the model's own chat: {'; '.join(steps.notes)}",
        expected="tokenizer, chat template and processor of this model",
        actual=size,
        next_step="check the tokenizer and processor files of the checkpoint: training that "
        "uses them meets the same",
    )


def adapter_starts_at_zero(facts: NumericsFacts, plan: Plan) -> Finding:
    """The adapted model's loss equals the base's on the same batch."""
    steps = facts.steps
    if steps is None:
        return untried(facts)
    tolerance = _LOSS_TOLERANCE[plan.profile.compute_dtype]
    shown = f"{steps.start_loss!r} with the adapter, {steps.base_loss!r} without"
    if not (math.isfinite(steps.start_loss) or math.isfinite(steps.base_loss)):
        return skipped("no loss is finite, with the adapter or without")
    if math.isclose(steps.start_loss, steps.base_loss, rel_tol=tolerance):
        return passed("the adapter changes nothing before training", actual=shown)
    reason = "the adapted model differs from its base before any training"
    expected = f"equal losses, relative tolerance {tolerance:g}"
    step = "check the adapter's B, and the kernels that replace PEFT's LoRA"
    if _unfinite(steps.start_loss, steps.base_loss):
        return failed(reason, expected=expected, actual=shown, next_step=step, fault=Fault.NUMERICS)
    again = steps.base_loss_again
    if again is not None and not math.isclose(again, steps.base_loss, rel_tol=tolerance):
        return unlike(
            plan,
            "the base alone gives another loss each time, on the same batch",
            expected=f"{steps.base_loss!r} again, relative tolerance {tolerance:g}",
            actual=f"{again!r}",
            next_step=NODE_STEP,
            fault=Fault.NUMERICS,
        )
    return unlike(plan, reason, expected=expected, actual=shown, next_step=step)


def _unfinite(*values: float) -> bool:
    return not all(math.isfinite(value) for value in values)


def loss_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Every loss, before and during the steps, and as many as were asked for."""
    steps = facts.steps
    if steps is None:
        return untried(facts)
    losses, n = (steps.base_loss, steps.start_loss, *steps.losses), len(steps.losses)
    expected = f"{plan.steps} finite losses"
    actual = f"{_numbers(losses)} (without the adapter, with it, then each step)"
    if _unfinite(*losses):
        fault, why, step = blame_steps(facts.weights, plan)
        return failed(
            f"a loss is not finite, first {_where(losses)}{why and f' ({why})'}",
            expected=expected,
            actual=actual,
            next_step=step,
            fault=fault,
        )
    if n < plan.steps:
        return failed(
            f"only {n} of {plan.steps} steps were run",
            expected=expected,
            actual=actual,
            next_step="report it with this file: it is a bug here",
            fault=Fault.INTERNAL,
        )
    return passed(f"{counted(n, 'step')} with finite losses ({steps.arithmetic})", actual=actual)


def _where(losses: Sequence[float]) -> str:
    """Of the first that is no number: the base's, the fresh adapter's, or that of a step."""
    first = next(place for place, loss in enumerate(losses) if not math.isfinite(loss))
    return ("without the adapter", "with it")[first] if first < 2 else f"in step {first - 1}"  # noqa: PLR2004


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def gradients_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Every gradient of every step, by name."""
    steps = facts.steps
    if steps is None:
        return untried(facts)
    if _unfinite(*steps.losses[:1]):  # later ones may have become so by a gradient
        return skipped(_NO_LOSS)
    if steps.bad_gradients or _unfinite(*steps.gradient_norms):
        fault, why, step = blame_steps(facts.weights, plan)
        named = f", {len(steps.bad_gradients)}: {listed(steps.bad_gradients)}"
        what = "gradients are" if steps.bad_gradients else "the norm of all gradients is"
        return failed(
            f"{what} not finite{why and f' ({why})'}{named if steps.bad_gradients else ''}",
            expected="finite gradients in every step",
            actual=f"norms {_numbers(steps.gradient_norms)}",
            next_step=step,
            fault=fault,
        )
    lost = f"; the scaler threw {counted(steps.n_skipped, 'step')} away" if steps.n_skipped else ""
    return passed(
        f"finite gradients in {counted(len(steps.losses), 'step')}{lost}",
        actual=f"norms {_numbers(steps.gradient_norms)}",
    )


def gradient_reaches_every_pair(facts: NumericsFacts, plan: Plan) -> Finding:
    """Each pair that the batch can reach got a gradient in B, and in A once B had moved.

    A's gradient is B's product: zero in the first step, so that one step alone cannot show it.
    """
    steps = facts.steps
    if steps is None:
        return untried(facts)
    if _unfinite(*steps.losses[:1]):  # later ones may have become so by a gradient
        return skipped(_NO_LOSS)
    away = [pair for pair in steps.pairs if pair.unreachable]
    near = [pair for pair in steps.pairs if not pair.unreachable]
    dry = [pair.name for pair in near if not (pair.b and (pair.a or plan.steps < 2))]  # noqa: PLR2004
    reasons = sorted({pair.unreachable for pair in away} | set(steps.notes))
    apart = f"; {counted(len(away), 'pair')} not judged: {'; '.join(reasons)}" if away else ""
    if dry:
        return _no_gradient(dry, len(near), apart, facts.weights)
    if not near:
        return skipped(f"no pair can be reached by this batch: {'; '.join(reasons)}")
    return passed(f"a gradient in {counted(len(near), 'pair')}{apart}")


def _no_gradient(dry: list[str], n_near: int, apart: str, weights: WeightFacts) -> Finding:
    """The weights' fault where they explain it (nothing passes a zero), else the graph's."""
    step = "check gradient checkpointing and input gradients of this architecture"
    why, fault = suspects(weights), None
    if why:
        step, fault = (
            f"use another copy of the checkpoint; if it gives the same, {step}",
            Fault.DATA_INVALID,
        )
    elif weights.unlike_file:
        why, step, fault = listed(weights.unlike_file), NODE_STEP, Fault.NUMERICS
    return failed(
        f"no gradient reaches {counted(len(dry), 'LoRA pair')}"
        f"{why and f' (suspected weights: {why})'}: {listed(dry)}{apart}",
        expected=f"a gradient in {counted(n_near, 'pair')}",
        actual=counted(n_near - len(dry), "pair"),
        next_step=step,
        fault=fault,
    )


def loss_falls(facts: NumericsFacts, plan: Plan) -> Finding:
    """The last loss on the fixed batch is below the first."""
    del plan
    steps = facts.steps
    if steps is None:
        return untried(facts)
    if len(steps.losses) < 2:  # noqa: PLR2004
        return skipped("one step has no later loss to compare")
    if _unfinite(*steps.losses):
        return skipped("a loss is not finite, and nothing is above or below it")
    if not any(pair.b for pair in steps.pairs):
        return skipped("no pair got a gradient, and without one no loss falls")
    first, last = steps.losses[0], steps.losses[-1]
    if last < first:
        return passed(f"the loss fell from {first:.6g} to {last:.6g}")
    return warned(
        "the loss did not fall",
        expected=f"below {first!r} after {len(steps.losses)} steps",
        actual=f"{last!r}",
        next_step="raise BOOT_STEPS to see whether it falls later, before a long run",
    )


def nothing_else_moved(facts: NumericsFacts, plan: Plan) -> Finding:
    """No parameter of the base, packed or not, changed a byte during the steps."""
    del plan
    steps = facts.steps
    if steps is None:
        return untried(facts)
    if steps.moved:
        return failed(
            f"the base moved in training, {counted(len(steps.moved), 'tensor')}: "
            f"{listed(steps.moved)}",
            expected=f"{steps.n_watched} tensors with the bytes they had",
            actual=f"{len(steps.moved)} changed",
            next_step="do not use this process's model: load it again",
        )
    return passed(f"the base kept every byte of {counted(steps.n_watched, 'tensor')}")
