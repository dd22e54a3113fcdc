"""Judges what the steps took of memory, by which means, and what they left behind."""

from __future__ import annotations

from app.checks import Check
from app.checks._steps import untried
from app.facts.adapter import counted
from app.facts.host import size
from app.facts.numerics import LeftFacts, NumericsFacts, Recomputed
from app.facts.words import listed
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan


def gradient_checkpointing(facts: NumericsFacts, plan: Plan) -> Finding:
    """Layers run again for their gradients where that was asked for, and only there."""
    if facts.steps is None:
        return untried(facts)
    if not any(pair.b for pair in facts.steps.pairs):
        return skipped("no pair got a gradient, and without one no layer runs again")
    asked, found = plan.request.use_gradient_checkpointing, facts.steps.recomputed
    if not found.n_layers:
        return skipped("no pair stands in a numbered layer")
    if bool(asked) == bool(found.n_again):
        return passed(checkpointing(found), expected=f"as asked: {asked}")
    cost = "more memory than asked for" if asked else "a forward pass more than asked for"
    return warned(
        f"gradient checkpointing is {'on' if found.n_again else 'off'}, which costs {cost}",
        expected=f"BOOT_USE_GRADIENT_CHECKPOINTING={str(asked).lower()}",
        actual=checkpointing(found),
        next_step="check whether this architecture supports it (supports_gradient_checkpointing), "
        "and the versions of transformers and Unsloth",
    )


def checkpointing(found: Recomputed) -> str:
    """What was seen, in words."""
    if not found.n_again:
        return f"off: none of {counted(found.n_layers, 'layer')} ran again"
    moved = ", hidden states moved to the host" if found.offloaded else ""
    return f"on: {found.n_again} of {counted(found.n_layers, 'layer')} ran again{moved}"


def memory_as_forecast(facts: NumericsFacts, plan: Plan) -> Finding:
    """The peak is not above the most that the forecast gives for a batch of this length."""
    if facts.steps is None:
        return untried(facts)
    used = facts.steps.memory
    if used.peak is None:
        return skipped("the system does not tell the peak")
    peak = f"{size(used.peak)} at the most"
    text = facts.steps.modalities == ("text",)
    if used.low is None or used.high is None or not text:
        why = used.no_forecast if text else "the forecast is of text alone"
        return skipped(f"no forecast to compare with: {why}; {peak}")
    bounds = f"{size(used.low)} to {size(used.high)} for {facts.steps.n_tokens} tokens"
    if used.peak <= used.high:
        return passed("no more memory was taken than forecast", expected=bounds, actual=peak)
    more = f"{size(used.peak - used.high)} more than the forecast's most: {peak}, {bounds}"
    if not plan.profile.needs_gpu:  # of the process since it began, with its libraries' pages
        return skipped(f"a process on the host tells nothing of the steps alone; it took {more}")
    return warned(
        f"the device took {more}",
        expected=bounds,
        actual=f"{peak} (what other processes hold is in it)",
        next_step="leave more room than the forecast says for this model, and report its "
        "architecture with this file",
    )


def left_as_found(facts: NumericsFacts, plan: Plan) -> Finding:
    """Adapter, gradients, modes, buffers and generators are what they were before the steps."""
    del plan
    if facts.left is None:
        return untried(facts)
    left = facts.left
    if left.changed:
        return failed(
            f"the steps left a trace, {counted(len(left.changed), 'thing')}: "
            f"{listed(left.changed)}",
            expected=f"{left.n_compared} things as they were",
            actual=f"{len(left.changed)} are not",
            next_step="do not use this process's model: load it again, and report it with this "
            "file: it is a bug here",
        )
    if left.kept_bytes > left.workspace_bytes:
        return _kept(left)
    return passed(f"{left.n_compared} things are as they were before the steps")


def _kept(left: LeftFacts) -> Finding:
    return warned(
        f"{size(left.kept_bytes)} of the device are held after the steps that were free before",
        expected=f"at most {size(left.workspace_bytes)}, work space of the libraries",
        actual=size(left.kept_bytes),
        next_step="leave that much more room, and report it with this file",
    )


CHECKS: tuple[Check[NumericsFacts], ...] = (
    Check(
        "numerics.gradient_checkpointing",
        Fault.PRECISION,
        "BOOT_USE_GRADIENT_CHECKPOINTING, and layers that run in a backward pass",
        gradient_checkpointing,
        Severity.WARNING,
        cause="an architecture without support for it, or a flag that no code of this version "
        "reads",
        fix="count on the memory that the report shows, or use another version",
    ),
    Check(
        "numerics.memory_as_forecast",
        Fault.HARDWARE_MISMATCH,
        "the forecast of memory for a batch of this length",
        memory_as_forecast,
        Severity.WARNING,
        cause="an architecture that keeps more than the forecast knows of, or another process on "
        "the device",
        fix="leave more room than the forecast says; a job with longer batches may not fit",
    ),
    Check(
        "numerics.left_as_found",
        Fault.PRECISION,
        "two looks at the model, before the steps and after all was put back",
        left_as_found,
        cause="code of the model or a library that keeps state where it is not looked for",
        fix="load the model again; a job that is handed this one starts from another state",
    ),
)
