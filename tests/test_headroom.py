"""Judges of the room below float16's largest number, on facts made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, isnan, log2, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks._headroom import CHECKS, section
from app.config import ModelRequest
from app.facts.headroom import FLOAT16_MAX, HeadroomFacts, Largest
from app.facts.numerics import NumericsFacts, WeightFacts
from app.outcome import Fault, Finding, Severity, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile

WEIGHTS = WeightFacts(n_scanned=2, largest_magnitude=1.0, largest_name="w")
NORM = Largest("RMSNorm", "layers.0.norm", 100.0, "bfloat16")
PRODUCT = Largest("Linear input", "layers.0.down_proj", 1000.0, "bfloat16")
LOGITS = Largest("Model", "", 8.0, "float32")
GRADIENT = Largest("RMSNorm", "layers.0.norm", 0.5, "bfloat16")
ROOM = HeadroomFacts((NORM, PRODUCT, LOGITS), (GRADIENT,), n_modules=3)
FINITE, LITTLE = "numerics.headroom_finite", "numerics.headroom"

magnitudes = st.floats(min_value=0.0, allow_infinity=True, allow_subnormal=True) | st.just(nan)


def plan_of(profile: Profile) -> Plan:
    return Plan(profile, ModelRequest(), Path("reports"))


def judged(
    room: HeadroomFacts | None, profile: Profile = H100, weights: WeightFacts = WEIGHTS
) -> dict[str, Finding]:
    facts = NumericsFacts(weights, headroom=room)
    return {check.id: check.judge(facts, plan_of(profile)) for check in CHECKS}


def holding(value: float, dtype: str = "bfloat16") -> HeadroomFacts:
    """The healthy facts with another value in one product."""
    return replace(ROOM, forward=(NORM, replace(PRODUCT, value=value, dtype=dtype), LOGITS))


@given(magnitudes)
def test_bits_are_told_of_every_magnitude(value: float) -> None:
    bits = Largest("C", "n", value).bits
    assert not isnan(bits)
    if not value <= FLOAT16_MAX:
        assert bits <= 0
    else:
        assert bits >= 0


@given(magnitudes, magnitudes)
def test_a_larger_magnitude_never_has_more_bits(one: float, other: float) -> None:
    small, large = sorted((one, other))
    if not (isnan(one) or isnan(other)):
        assert Largest("C", "n", large).bits <= Largest("C", "n", small).bits


@pytest.mark.parametrize(
    ("value", "bits"),
    [(FLOAT16_MAX, 0.0), (FLOAT16_MAX / 4, 2.0), (FLOAT16_MAX * 4, -2.0), (0.0, inf),
     (inf, -inf), (nan, -inf), (5e-324, log2(FLOAT16_MAX) + 1074)],
)  # fmt: skip
def test_bits_are_powers_of_two(value: float, bits: float) -> None:
    assert Largest("C", "n", value).bits == pytest.approx(bits)


def test_a_model_with_room_passes_and_the_least_room_is_told() -> None:
    found = judged(ROOM)
    assert {each.status for each in found.values()} == {Status.PASS}
    assert "at least 6.0 bits below float16's largest number" in found[LITTLE].reason
    assert found[LITTLE].actual == "Linear input (layers.0.down_proj), 1000"
    assert "3 modules" in found[FINITE].reason


@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("profile", [CPU, H100, V100], ids=lambda profile: profile.title)
def test_an_activation_that_is_no_number_fails_with_80_where_it_began(
    value: float, profile: Profile
) -> None:
    began = replace(NORM, name="layers.1.norm", value=value)
    after = replace(PRODUCT, value=nan)
    found = judged(replace(ROOM, forward=(began, after), backward=(after,)), profile)
    assert (found[FINITE].status, found[FINITE].fault) == (Status.FAIL, Fault.NUMERICS)
    assert found[FINITE].reason == "an activation is not finite, first in RMSNorm (layers.1.norm)"
    assert found[LITTLE].status is Status.SKIP


def test_a_gradient_that_is_no_number_fails_too() -> None:
    found = judged(replace(ROOM, backward=(GRADIENT, replace(PRODUCT, value=nan))))
    assert found[FINITE].fault is Fault.NUMERICS
    assert "a gradient is not finite, first behind Linear input" in found[FINITE].reason


def test_weights_out_of_proportion_are_blamed_on_the_file() -> None:
    weights = replace(WEIGHTS, largest_magnitude=1e30)
    found = judged(holding(inf), V100, weights)[FINITE]
    assert found.fault is Fault.DATA_INVALID
    assert "w holds 1e+30" in found.actual


def test_an_overflow_in_float16_is_told_from_a_broken_node_by_another_one() -> None:
    assert "bfloat16 device" in judged(holding(inf, "float16"), V100)[FINITE].next_step
    assert "bfloat16 device" not in judged(holding(inf), H100)[FINITE].next_step


@pytest.mark.parametrize(
    ("value", "status"), [(16376.0, Status.PASS), (16377.0, Status.WARN), (65504.0, Status.WARN)]
)
def test_less_than_two_bits_in_float16_warn(value: float, status: Status) -> None:
    found = judged(holding(value, "float16"), V100)[LITTLE]
    assert found.status is status
    assert found.status is Status.PASS or "Linear input (layers.0.down_proj)" in found.reason


def test_little_room_never_fails_a_boot() -> None:
    known = replace(V100, evidence="bench/results/v100.json")
    assert judged(holding(65000.0, "float16"), known)[LITTLE].status is Status.WARN
    check = next(check for check in CHECKS if check.id == LITTLE)
    assert check.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (FLOAT16_MAX * 2.5, "float16 would overflow in Linear input (layers.0.down_proj), by 1.3"),
        (FLOAT16_MAX / 2, "float16 would have little room: 1.0 bits"),
        (FLOAT16_MAX / 4, "at least 2.0 bits below"),
    ],
)
def test_a_bfloat16_card_tells_whether_a_float16_card_could_train_this(
    value: float, words: str
) -> None:
    found = judged(holding(value))[LITTLE]
    assert found.status is Status.PASS
    assert words in found.reason


def test_float32_beside_16_bits_may_be_larger_than_float16() -> None:
    """Logits and norms that autocast keeps in float32 are that on a float16 card as well."""
    assert "6.0 bits" in judged(replace(ROOM, forward=(PRODUCT, replace(LOGITS, value=1e9))))[
        LITTLE
    ].reason  # fmt: skip
    forced = replace(ROOM, forward=(replace(LOGITS, value=1e9),), backward=())
    assert judged(forced, V100)[LITTLE].status is Status.SKIP
    assert "would overflow" in judged(forced, CPU)[LITTLE].reason


def test_without_a_measurement_both_are_skipped_with_the_reason() -> None:
    facts = NumericsFacts(WEIGHTS, None, "the model has no LoRA pair to train")
    for check in CHECKS:
        found = check.judge(facts, plan_of(CPU))
        assert found.status is Status.SKIP
        assert "no LoRA pair" in found.reason
    assert judged(None)[FINITE].status is Status.SKIP


@given(st.lists(magnitudes, max_size=9))
def test_the_section_names_the_worst_five_and_has_no_nan(values: list[float]) -> None:
    found = tuple(Largest(f"C{i}", "n", value) for i, value in enumerate(values))
    made = section(HeadroomFacts(found, found))
    json.dumps(made.model_dump(), allow_nan=False)
    assert len(made.forward) == len(made.backward) == min(len(values), 5)
    assert made.n_classes == len(values)
    worst = sorted(each.bits for each in found)[:5]
    assert [each.bits for each in made.forward] == [b if abs(b) < inf else None for b in worst]
