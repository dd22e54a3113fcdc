"""Judges how far activations and their gradients stay below float16's largest number."""

from __future__ import annotations

import math
from collections.abc import Iterable

from app import sections_numerics as sections
from app.checks import Check
from app.checks._blame import blame_steps
from app.facts.headroom import HeadroomFacts, Largest
from app.facts.numerics import NumericsFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan

# Argued, not measured: one power of two for what further training adds (a norm's or a projection's
# output does not double under LoRA without a loss that shows it), one for a batch whose outliers
# are twice this one's. The largest activations stand at the first token and at marks of the
# template, which every batch has.
_LITTLE_BITS = 2.0
_SHOWN = 5


def headroom_finite(facts: NumericsFacts, plan: Plan) -> Finding:
    """Every activation and every gradient of one is a number; the first that is none is named."""
    room = facts.headroom
    if room is None:
        return _not_measured(facts)
    for what, found in (("activation", room.forward), ("gradient", room.backward)):
        first = next((each for each in found if not math.isfinite(each.value)), None)
        if first is not None:
            fault, why, step = blame_steps(facts.weights, plan)
            if first.dtype == "float16":
                step += "; where every node does the same, the model needs a bfloat16 device"
            return failed(
                f"an {what} is not finite, first in {_place(first)}"
                if what == "activation"
                else f"a {what} is not finite, first behind {_place(first)}",
                expected="finite activations and gradients in a forward and a backward pass",
                actual=f"{first.value} in {first.dtype}{why and f'; {why}'}",
                next_step=step,
                fault=fault,
            )
    return passed(f"activations and gradients of {room.n_modules} modules are finite")


def headroom_room(facts: NumericsFacts, plan: Plan) -> Finding:
    """The room in float16: what is there where that is the compute dtype, else what would be.

    Only a warning even where the hardware is known: the training steps were right.
    """
    room = facts.headroom
    if room is None:
        return _not_measured(facts)
    narrow = {"float16", "bfloat16", plan.profile.compute_dtype}
    values = [each for each in (*room.forward, *room.backward) if each.dtype in narrow]
    if not values:
        return skipped("no activation is held in 16 bits, and only those are judged here")
    least = _by_bits(values)[0]
    if not math.isfinite(least.value):
        return skipped("an activation or a gradient is not finite, and has no room")
    where = f"{_place(least)}, {least.value:.6g}"
    if plan.profile.compute_dtype != "float16":
        return passed(_would_be(least), actual=where)
    if least.bits >= _LITTLE_BITS:
        return passed(
            f"at least {least.bits:.1f} bits below float16's largest number", actual=where
        )
    return warned(
        f"only {least.bits:.1f} bits below float16's largest number in {_place(least)}",
        expected=f"at least {_LITTLE_BITS:g} bits, a factor of {2**_LITTLE_BITS:g}",
        actual=f"{least.value:.6g} of 65504",
        next_step="watch the loss of a long run, or train this model on a device that computes in "
        "bfloat16",
    )


def section(facts: HeadroomFacts) -> sections.Headroom:
    """The worst five of each pass, least room first."""
    return sections.Headroom(
        n_modules=facts.n_modules,
        n_classes=len({each.module_class for each in (*facts.forward, *facts.backward)}),
        forward=[_shown(each) for each in _by_bits(facts.forward)[:_SHOWN]],
        backward=[_shown(each) for each in _by_bits(facts.backward)[:_SHOWN]],
        seconds=facts.seconds,
    )


def _not_measured(facts: NumericsFacts) -> Finding:
    why = facts.no_steps_reason or "there was no pass to look at"
    return skipped(f"no activation was measured: {why}")


def _would_be(least: Largest) -> str:
    """What float16 would make of a pass that did not compute in it."""
    if least.bits < 0:
        return f"float16 would overflow in {_place(least)}, by {-least.bits:.1f} bits"
    room = f"{least.bits:.1f} bits below float16's largest number"
    if least.bits < _LITTLE_BITS:
        return f"float16 would have little room: {room} in {_place(least)}"
    return f"at least {room}: its range would do for this model"


def _by_bits(values: Iterable[Largest]) -> list[Largest]:
    return sorted(values, key=lambda each: each.bits)


def _place(found: Largest) -> str:
    return one_line(f"{found.module_class} ({found.name})" if found.name else found.module_class)


def _shown(found: Largest) -> sections.ClassHeadroom:
    return sections.ClassHeadroom(
        module_class=found.module_class,
        name=found.name,
        dtype=found.dtype,
        largest=sections.finite(found.value),
        bits=sections.finite(found.bits),
    )


CHECKS: tuple[Check[NumericsFacts], ...] = (
    Check(
        "numerics.headroom_finite",
        Fault.NUMERICS,
        "hooks on all modules in one forward and one backward pass",
        headroom_finite,
        cause="an activation that overflows float16, weights out of proportion, or a device that "
        "computes wrongly",
        fix="follow the finding: it names the module where it began",
    ),
    Check(
        "numerics.headroom",
        Fault.PRECISION,
        "float16's largest number, 65504",
        headroom_room,
        Severity.WARNING,
        cause="a model whose activations come near to what float16 can hold",
        fix="watch the loss of a long run, or use a device that computes in bfloat16",
    ),
)
