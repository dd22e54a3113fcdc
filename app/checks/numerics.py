"""Judges the numbers: finite weights, and training steps that do what training steps do.

Whose fault it is decides what the orchestrator does. Numbers that another device would get right
are NUMERICS (80: another node, quarantine this one). A weight that the file holds and the dtype
cannot is PRECISION (76), a weight that is broken in the file DATA_INVALID (65), a graph that
misses the adapter PRECISION too: the same on every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from app import sections
from app.checks import Check
from app.checks._blame import NODE_STEP, blame
from app.facts.numerics import NumericsFacts, StepFacts
from app.facts.words import NAMED, listed
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan

# Relative; one unit in the last place of the compute dtype, since a disabled adapter may take
# another kernel. A mean over 255 tokens rounds better than that. On a CPU the losses are equal.
_LOSS_TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def weights_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Parameters, persistent buffers and the scales of packed weights."""
    del plan
    weights = facts.weights
    if weights.on_meta:
        return failed(
            f"{len(weights.on_meta)} tensors have no data: {listed(weights.on_meta)}",
            expected="every tensor on a device",
            actual="on meta",
            next_step="check the load: these tensors were not in the checkpoint",
            fault=Fault.PRECISION,
        )
    if weights.not_finite:
        fault, why, step = blame(weights.not_finite)
        first = weights.not_finite[0]
        return failed(
            f"{len(weights.not_finite)} tensors are not finite ({why}): "
            f"{listed(entry.name for entry in weights.not_finite)}",
            expected="every parameter, persistent buffer and quantisation scale finite",
            actual=f"{first.name} ({first.dtype}): {first.n_inf} infinite, {first.n_nan} NaN",
            next_step=step,
            fault=fault,
        )
    loose = f"; not judged: {listed(weights.not_judged)}" if weights.not_judged else ""
    return passed(
        f"{weights.n_scanned} tensors are finite{loose}",
        actual=f"largest magnitude {weights.largest_magnitude} in {weights.largest_name}",
    )


def _on_steps(judge: Callable[[StepFacts], Finding], facts: NumericsFacts) -> Finding:
    if facts.steps is None:
        return skipped(f"no training step was tried: {facts.no_steps_reason}")
    return judge(facts.steps)


def adapter_starts_at_zero(facts: NumericsFacts, plan: Plan) -> Finding:
    """The adapted model's loss equals the base's on the same batch."""
    del plan

    def judge(steps: StepFacts) -> Finding:
        tolerance = _LOSS_TOLERANCE[steps.compute_dtype]
        shown = f"{steps.start_loss!r} with the adapter, {steps.base_loss!r} without"
        if math.isclose(steps.start_loss, steps.base_loss, rel_tol=tolerance):
            return passed("the adapter changes nothing before training", actual=shown)
        return failed(
            "the adapted model differs from its base before any training",
            expected=f"equal losses, relative tolerance {tolerance:g}",
            actual=shown,
            next_step="check the adapter's B, and the kernels that replace PEFT's LoRA",
            fault=Fault.NUMERICS if _unfinite(steps.start_loss, steps.base_loss) else None,
        )

    return _on_steps(judge, facts)


def _unfinite(*values: float) -> bool:
    return not all(math.isfinite(value) for value in values)


def loss_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Every loss, before and during the steps, and as many as were asked for."""

    def judge(steps: StepFacts) -> Finding:
        losses = (steps.base_loss, *steps.losses)
        shown = ", ".join(f"{loss:.6g}" for loss in losses)
        wrong, n = _unfinite(*losses), len(steps.losses)
        if wrong or n < plan.steps:
            return failed(
                "a loss is not finite" if wrong else f"only {n} of {plan.steps} steps were run",
                expected=f"{plan.steps} finite losses",
                actual=f"{shown} (the first without the adapter)",
                next_step=NODE_STEP if wrong else "report it with this file: it is a bug here",
                fault=None if wrong else Fault.INTERNAL,
            )
        return passed(f"{len(steps.losses)} finite losses ({steps.arithmetic})", actual=shown)

    return _on_steps(judge, facts)


def gradients_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Every gradient of every step, by name."""
    del plan

    def judge(steps: StepFacts) -> Finding:
        if steps.bad_gradients or _unfinite(*steps.gradient_norms):
            return failed(
                f"{len(steps.bad_gradients)} gradients are not finite: "
                f"{listed(steps.bad_gradients)}",
                expected="finite gradients in every step",
                actual=", ".join(f"{norm:.6g}" for norm in steps.gradient_norms),
                next_step=NODE_STEP,
            )
        norms = ", ".join(f"{norm:.6g}" for norm in steps.gradient_norms)
        found = f"; {steps.n_skipped} steps went to the gradient scaler" * bool(steps.n_skipped)
        return passed(f"finite gradients in {len(steps.losses)} steps{found}", actual=norms)

    return _on_steps(judge, facts)


def gradient_reaches_every_pair(facts: NumericsFacts, plan: Plan) -> Finding:
    """Each pair that the batch can reach got a gradient in B, and in A once B had moved.

    A's gradient is B's product: zero in the first step, so that one step alone cannot show it.
    """

    def judge(steps: StepFacts) -> Finding:
        away = [pair for pair in steps.pairs if pair.unreachable]
        near = [pair for pair in steps.pairs if not pair.unreachable]
        dry = [pair.name for pair in near if not (pair.b and (pair.a or plan.steps < 2))]  # noqa: PLR2004
        reasons = sorted({pair.unreachable for pair in away} | set(steps.notes))
        apart = f"; {len(away)} pairs not judged: {'; '.join(reasons)}" if away else ""
        if dry:
            return failed(
                f"{len(dry)} LoRA pairs get no gradient: {listed(dry)}{apart}",
                expected=f"a gradient in each of {len(near)} pairs",
                actual=f"{len(near) - len(dry)} pairs",
                next_step="check gradient checkpointing and input gradients of this architecture",
            )
        if not near:
            return skipped(f"no pair can be reached by this batch: {'; '.join(reasons)}")
        return passed(f"a gradient in each of {len(near)} pairs{apart}")

    return _on_steps(judge, facts)


def loss_falls(facts: NumericsFacts, plan: Plan) -> Finding:
    """The last loss on the fixed batch is below the first."""
    del plan

    def judge(steps: StepFacts) -> Finding:
        if len(steps.losses) < 2:  # noqa: PLR2004
            return skipped("one step has no later loss to compare")
        first, last = steps.losses[0], steps.losses[-1]
        if last < first:
            return passed(f"the loss fell from {first:.6g} to {last:.6g}")
        return warned(
            "the loss did not fall",
            expected=f"below {first!r} after {len(steps.losses)} steps",
            actual=f"{last!r}",
            next_step="raise BOOT_STEPS to see whether it falls later, before a long run",
        )

    return _on_steps(judge, facts)


def nothing_else_moved(facts: NumericsFacts, plan: Plan) -> Finding:
    """No parameter of the base, packed or not, changed a byte during the steps."""
    del plan

    def judge(steps: StepFacts) -> Finding:
        if steps.moved:
            return failed(
                f"{len(steps.moved)} tensors of the base moved in training: {listed(steps.moved)}",
                expected=f"{steps.n_watched} tensors with the bytes they had",
                actual=f"{len(steps.moved)} changed",
                next_step="do not use this process's model: load it again",
            )
        return passed(f"{steps.n_watched} tensors of the base kept every byte")

    return _on_steps(judge, facts)


def section(facts: NumericsFacts) -> sections.Numerics:
    """The report's section: weights and steps; JSON has no NaN, so that None stands for it."""
    weights = facts.weights
    return sections.Numerics(
        weights=sections.Weights(
            n_scanned=weights.n_scanned,
            n_not_finite=len(weights.not_finite),
            not_finite=[entry.name for entry in weights.not_finite[:NAMED]],
            largest_magnitude=weights.largest_magnitude,
            largest_name=weights.largest_name,
        ),
        steps=None if facts.steps is None else _steps_section(facts.steps),
    )


def _steps_section(steps: StepFacts) -> sections.Steps:
    away = [pair for pair in steps.pairs if pair.unreachable]
    with_gradient = [pair for pair in steps.pairs if pair.b]
    return sections.Steps(
        n_steps=len(steps.losses),
        learning_rate=steps.learning_rate,
        n_tokens=steps.n_tokens,
        modalities=list(steps.modalities),
        losses=[_or_none(loss) for loss in steps.losses],
        gradient_norms=[_or_none(norm) for norm in steps.gradient_norms],
        n_pairs=len(steps.pairs),
        n_pairs_with_gradient=len(with_gradient),
        n_pairs_unreachable=len(away),
        base_loss=_or_none(steps.base_loss),
        seconds=steps.seconds,
    )


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


# The first one that passed is what the table shows of a stage that passed.
CHECKS: tuple[Check[NumericsFacts], ...] = (
    Check(
        "numerics.loss_falls",
        Fault.NUMERICS,
        "training steps on one batch",
        loss_falls,
        Severity.WARNING,
    ),
    Check("numerics.weights_finite", Fault.NUMERICS, "the scan of all weights", weights_finite),
    Check(
        "numerics.adapter_starts_at_zero",
        Fault.PRECISION,
        "LoRA: B starts at zero",
        adapter_starts_at_zero,
    ),
    Check("numerics.loss_finite", Fault.NUMERICS, "training steps", loss_finite),
    Check("numerics.gradients_finite", Fault.NUMERICS, "training steps", gradients_finite),
    Check(
        "numerics.gradient_reaches_every_pair",
        Fault.PRECISION,
        "training steps",
        gradient_reaches_every_pair,
    ),
    # Software that writes into the base does so on every node; memory that changes by itself within
    # seconds does not pass the ECC checks of the gpu stage.
    Check(
        "numerics.nothing_else_moved",
        Fault.PRECISION,
        "sums over all bytes of the base",
        nothing_else_moved,
    ),
)
