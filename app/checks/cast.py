"""Judges of the cast from the checkpoint's dtype to the compute dtype, which itself looks nowhere.

Only what the model holds in the target, or packed from it, was cast to it. All else says what that
dtype would do: a rehearsal tells of a GPU that is not there, and norms may stay in float32. What a
cast flushes to zero is counted and never fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from app import sections_numerics as sections
from app.checks import Check
from app.facts.adapter import counted
from app.facts.cast import CastFacts, TensorCast
from app.facts.words import NAMED, listed
from app.outcome import Fault, Finding, failed, passed, skipped, unread
from app.plan import Plan


def cast_overflow(facts: CastFacts, plan: Plan) -> Finding:
    """No finite value of the files became infinite in the model."""
    if facts.reason:
        return skipped(facts.reason)
    lost = [each for each in facts.tensors if each.n_overflow and each.took_place]
    if lost:
        return _overflowed(lost)
    if facts.unread:
        return unread(
            f"{counted(len(facts.unread), 'weight file')} could not be read again: "
            f"{listed(facts.unread)}",
            expected="every floating tensor of the checkpoint read to its end",
            actual=listed(facts.unread),
            next_step="look at the mount, or take another node",
            fault=Fault.READ_ERROR,
        )
    found = _by_target(facts)
    counts = [_counts(_target(target, tensors)) for target, tensors in found.items()]
    return passed(
        "; ".join(_told(target, found.get(target, ())) for target in plan.profile.cast_dtypes),
        expected="no finite value of the files infinite in the model",
        actual="; ".join(
            [*counts, f"{counted(facts.n_exact, 'tensor')} exact by the dtypes alone"]
        ),
    )


def _overflowed(lost: Sequence[TensorCast]) -> Finding:
    worst = max(lost, key=lambda each: each.largest)
    return failed(
        f"the cast to {worst.target} made {counted(len(lost), 'tensor')} infinite: "
        f"{listed(each.name for each in lost)}",
        expected=f"every finite value of the checkpoint finite in {worst.target}",
        actual=f"{worst.name} ({worst.dtype}): {counted(worst.n_overflow, 'value')} of {worst.n}, "
        f"the largest {worst.largest:g}",
        next_step="use hardware whose compute dtype holds these values, or a checkpoint whose "
        f"weights fit {worst.target}",
    )


def _by_target(facts: CastFacts) -> dict[str, list[TensorCast]]:
    found: dict[str, list[TensorCast]] = {}
    for each in facts.tensors:
        found.setdefault(each.target, []).append(each)
    return found


def _told(target: str, tensors: Sequence[TensorCast]) -> str:
    """What the target does or would do, in a few words."""
    beyond = [each.name for each in tensors if each.n_overflow]
    if beyond:
        return (
            f"{target} would make {counted(len(beyond), 'tensor')} infinite that the model holds "
            f"otherwise or not at all: {listed(beyond, 3)}"
        )
    return f"no value is beyond {target}"


def _counts(target: sections.CastTarget) -> str:
    broken = f", {target.n_not_finite} not finite in the file" if target.n_not_finite else ""
    return (
        f"{target.dtype}: of {target.n_values} values {target.n_zero} to zero, "
        f"{target.n_subnormal} subnormal, largest {target.largest} in {target.largest_name}{broken}"
    )


def section(facts: CastFacts) -> sections.Cast:
    """The cast, summed up per target."""
    return sections.Cast(
        targets=[_target(name, tensors) for name, tensors in _by_target(facts).items()],
        n_exact=facts.n_exact,
        n_bytes=facts.n_bytes,
        seconds=facts.seconds,
    )


def _target(dtype: str, tensors: list[TensorCast]) -> sections.CastTarget:
    largest = max(tensors, key=lambda each: each.largest)
    return sections.CastTarget(
        dtype=dtype,
        n_tensors=len(tensors),
        n_values=sum(each.n for each in tensors),
        n_overflow=sum(each.n_overflow for each in tensors),
        n_zero=sum(each.n_zero for each in tensors),
        n_subnormal=sum(each.n_subnormal for each in tensors),
        n_not_finite=sum(each.n_not_finite for each in tensors),
        largest=largest.largest,
        largest_name=largest.name,
        overflowing=[each.name for each in tensors if each.n_overflow][:NAMED],
    )


CHECKS: tuple[Check[CastFacts], ...] = (
    Check(
        "numerics.cast_overflow",
        Fault.PRECISION,
        "the bits of every floating tensor in the checkpoint's files",
        cast_overflow,
        cause="weights beyond float16's 65504, in a checkpoint that was trained in bfloat16",
        fix="use hardware that computes in bfloat16, or a checkpoint whose weights fit float16",
    ),
)
