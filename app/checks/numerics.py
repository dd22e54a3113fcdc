"""Judges the numbers: finite weights, and training steps that do what training steps do.

Whose fault it is decides what the orchestrator does. Numbers that another device would get right
are NUMERICS (80: another node, quarantine this one). A weight that the file holds and the dtype
cannot is PRECISION (76), a weight that is broken in the file DATA_INVALID (65), a graph that
misses the adapter PRECISION too: the same on every node. The judges of the steps are in `_steps`
and `_memory`, those of what the trained adapter computes in `_headroom` and `_generation`.
"""

from __future__ import annotations

from app import sections_numerics as sections
from app.checks import Check, _generation, _headroom, _memory
from app.checks._blame import NODE_STEP, blame
from app.checks._steps import (
    adapter_starts_at_zero,
    batch,
    gradient_reaches_every_pair,
    gradients_finite,
    loss_falls,
    loss_finite,
    nothing_else_moved,
)
from app.facts.adapter import counted
from app.facts.numerics import GenerationFacts, NumericsFacts, StepFacts
from app.facts.words import NAMED, listed
from app.outcome import Fault, Finding, Severity, failed, passed, skipped
from app.plan import Plan
from app.sections import Section


def weights_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Parameters, persistent buffers and the scales of packed weights."""
    weights = facts.weights
    if weights.on_meta:
        return failed(
            f"{counted(len(weights.on_meta), 'tensor')} without data: {listed(weights.on_meta)}",
            expected="every tensor on a device",
            actual="on meta",
            next_step="check the load: these tensors were not in the checkpoint",
            fault=Fault.PRECISION,
        )
    if weights.not_finite:
        fault, why, step = blame(weights.not_finite, plan)
        first = weights.not_finite[0]
        return failed(
            f"not finite, {counted(len(weights.not_finite), 'tensor')} ({why}): "
            f"{listed(entry.name for entry in weights.not_finite)}",
            expected="every parameter, persistent buffer and quantisation scale finite",
            actual=f"{first.name} ({first.dtype}): {first.n_inf} infinite, {first.n_nan} NaN",
            next_step=step,
            fault=fault,
        )
    loose = f"; not judged: {listed(weights.not_judged)}" if weights.not_judged else ""
    return passed(
        f"every value is finite in {counted(weights.n_scanned, 'tensor')}{loose}",
        actual=f"largest magnitude {weights.largest_magnitude} in {weights.largest_name}",
    )


def weights_as_in_file(facts: NumericsFacts, plan: Plan) -> Finding:
    """Weights of nothing but zeros, or of more than float16 can hold, are so in the file too."""
    del plan
    if facts.weights.on_meta:
        return skipped("tensors without data hold nothing to compare")
    wrong = facts.weights.unlike_file
    if not wrong:
        return passed("no weight became all zeros, or out of proportion, after it was read")
    return failed(
        f"not what the file holds any more, {counted(len(wrong), 'tensor')}: {listed(wrong)}",
        expected="the file's largest magnitude, in the dtype of the model",
        actual="zeros alone, or more than float16 can hold",
        next_step=NODE_STEP,
    )


def section(facts: NumericsFacts) -> dict[str, Section]:
    """The parts of the report's section that these facts fill, by their field."""
    weights = facts.weights
    found: dict[str, Section] = {
        "weights": sections.Weights(
            n_scanned=weights.n_scanned,
            n_not_finite=len(weights.not_finite),
            not_finite=[entry.name for entry in weights.not_finite[:NAMED]],
            largest_magnitude=weights.largest_magnitude,
            largest_name=weights.largest_name,
            seconds=weights.seconds,
        )
    }
    if facts.steps is not None:
        found["steps"] = _steps_section(facts.steps)
    if facts.generation is not None:
        found["generation"] = _generation_section(facts.generation)
    if facts.headroom is not None:
        found["headroom"] = _headroom.section(facts.headroom)
    return found


def _steps_section(steps: StepFacts) -> sections.Steps:
    away = [pair for pair in steps.pairs if pair.unreachable]
    with_gradient = [pair for pair in steps.pairs if pair.b]
    return sections.Steps(
        n_steps=len(steps.losses),
        learning_rate=steps.learning_rate,
        arithmetic=steps.arithmetic,
        gradient_checkpointing=_memory.checkpointing(steps.recomputed),
        n_tokens=steps.n_tokens,
        modalities=list(steps.modalities),
        losses=[sections.finite(loss) for loss in steps.losses],
        gradient_norms=[sections.finite(norm) for norm in steps.gradient_norms],
        n_skipped=steps.n_skipped,
        n_pairs=len(steps.pairs),
        n_pairs_with_gradient=len(with_gradient),
        n_pairs_unreachable=len(away),
        base_loss=sections.finite(steps.base_loss),
        peak_bytes=steps.memory.peak,
        forecast_low_bytes=steps.memory.low,
        forecast_high_bytes=steps.memory.high,
        tokens_per_s=steps.tokens_per_s,
        seconds=steps.seconds,
    )


def _generation_section(said: GenerationFacts) -> sections.Generation:
    return sections.Generation(
        n_tokens=len(said.tokens),
        tokens=list(said.tokens),
        largest_logit=sections.finite(max(said.largest)) if said.largest else None,
        problem=said.problem,
        seconds=said.seconds,
    )


CHECKS: tuple[Check[NumericsFacts], ...] = (
    Check(
        "numerics.loss_falls",
        Fault.NUMERICS,
        "training steps on one batch",
        loss_falls,
        Severity.WARNING,
        cause="too few steps, a learning rate that does not suit the model, or an adapter that "
        "learns nothing",
        fix="raise BOOT_STEPS to see whether it falls later, before a long run",
    ),
    Check(
        "numerics.batch",
        Fault.DATA_INVALID,
        "the checkpoint's tokenizer, chat template and processor",
        batch,
        Severity.WARNING,
        cause="a chat template or processor that fails on an ordinary turn",
        fix="check the tokenizer and processor files: training that uses them meets the same",
    ),
    Check(
        "numerics.weights_finite",
        Fault.NUMERICS,
        "the scan of all weights",
        weights_finite,
        cause="a checkpoint that holds NaN or infinity, a cast to float16 that overflowed, or a "
        "device that computes wrongly",
        fix="follow the finding: another copy of the checkpoint, other hardware, or another node",
    ),
    Check(
        "numerics.weights_as_in_file",
        Fault.NUMERICS,
        "the scan of all weights, and the checkpoint's files",
        weights_as_in_file,
        cause="a device or host memory that changed what was loaded, or code that wrote into it",
        fix="run the boot on another node; if it passes there, take this one out of service",
    ),
    Check(
        "numerics.adapter_starts_at_zero",
        Fault.PRECISION,
        "LoRA: B starts at zero",
        adapter_starts_at_zero,
        cause="B is not zero, or a kernel that replaces PEFT's LoRA computes something else",
        fix="check the adapter's B, and the kernels that replace PEFT's LoRA",
    ),
    Check(
        "numerics.loss_finite",
        Fault.NUMERICS,
        "training steps",
        loss_finite,
        cause="activations that overflow float16, weights out of proportion, or a device that "
        "computes wrongly",
        fix="follow the finding: another copy of the checkpoint, a bfloat16 device, or another "
        "node",
    ),
    Check(
        "numerics.gradients_finite",
        Fault.NUMERICS,
        "training steps",
        gradients_finite,
        cause="activations or gradients that overflow float16, or a device that computes wrongly",
        fix="follow the finding: another copy of the checkpoint, a bfloat16 device, or another "
        "node",
    ),
    Check(
        "numerics.gradient_reaches_every_pair",
        Fault.PRECISION,
        "training steps",
        gradient_reaches_every_pair,
        cause="gradient checkpointing without gradients of the inputs, frozen parts between "
        "adapter and loss, or pairs on modules that the model does not run",
        fix="read which pairs got none; compare the versions with the lock",
    ),
    # Software that writes into the base does so on every node; memory that changes by itself within
    # seconds does not pass the ECC checks of the gpu stage.
    Check(
        "numerics.nothing_else_moved",
        Fault.PRECISION,
        "sums over all bytes of the base",
        nothing_else_moved,
        cause="an optimizer that was given parameters of the base, or code that writes into it",
        fix="do not use this process's model: load it again",
    ),
    *_memory.CHECKS,
    *_headroom.CHECKS,
    *_generation.CHECKS,
)
