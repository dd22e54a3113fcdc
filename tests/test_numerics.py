"""Judges of the numerics on facts made by hand. The real ones are in the `_stack` modules."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from app.checks.numerics import CHECKS, section
from app.config import ModelRequest
from app.facts.numerics import (
    FileTensor,
    NotFinite,
    NumericsFacts,
    PairGradient,
    StepFacts,
    WeightFacts,
)
from app.outcome import Fault, Finding, Severity, Status
from app.plan import Plan
from app.profiles import CPU, H100, Profile

PLAN = Plan(CPU, ModelRequest(), Path("reports"), steps=3)
WEIGHTS = WeightFacts(n_scanned=2, n_bytes=8, largest_magnitude=1.0, largest_name="w")
STEPS = StepFacts(
    learning_rate=2e-4,
    arithmetic="float32 as it is",
    compute_dtype="float32",
    n_tokens=256,
    n_supervised=255,
    modalities=("text",),
    notes=(),
    base_loss=6.25,
    start_loss=6.25,
    losses=(6.25, 6.2, 6.1),
    gradient_norms=(2.0, 1.9, 1.8),
    bad_gradients=(),
    pairs=(PairGradient("q_proj", a=True, b=True),),
    n_watched=5,
)
GOOD = NumericsFacts(WEIGHTS, STEPS)
# The same tensor as the file has it; float16 ends at 65504.
TOO_LARGE = FileTensor("bfloat16", finite=True, largest=1e5)
SMALL = FileTensor("bfloat16", finite=True, largest=3.0)
INFINITE = FileTensor("bfloat16", finite=False, largest=inf)


def judged(facts: NumericsFacts, plan: Plan = PLAN) -> dict[str, Finding]:
    found = {check.id.removeprefix("numerics."): check.judge(facts, plan) for check in CHECKS}
    return {name: finding for name, finding in found.items() if finding.status is not Status.PASS}


def with_steps(**change: Any) -> NumericsFacts:
    return replace(GOOD, steps=replace(STEPS, **change))


def test_good_numbers_pass() -> None:
    assert judged(GOOD) == {}


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        # The file holds 1e5 in bfloat16, which float16 has not.
        (NotFinite("w", "parameter", "float16", 0, 1, TOO_LARGE),
         Fault.PRECISION),
        (NotFinite("w", "parameter", "float16", 0, 1), Fault.PRECISION),
        # NaN is no overflow, and what fits float16 cannot have overflowed.
        (NotFinite("w", "parameter", "float16", 1, 0), Fault.NUMERICS),
        (NotFinite("w", "parameter", "float16", 0, 1, SMALL),
         Fault.NUMERICS),
        (NotFinite("w", "parameter", "bfloat16", 0, 1, TOO_LARGE),
         Fault.NUMERICS),
        (NotFinite("w", "absmax", "float32", 0, 1), Fault.NUMERICS),
        (NotFinite("w", "absmax", "float32", 0, 1, SMALL), Fault.NUMERICS),
        (NotFinite("w", "absmax", "float32", 0, 1, TOO_LARGE), Fault.DATA_INVALID),
        (NotFinite("w", "parameter", "float16", 0, 1, INFINITE),
         Fault.DATA_INVALID),
    ],
    ids=lambda value: value.value if isinstance(value, Fault) else "",
)  # fmt: skip
def test_the_file_tells_whose_fault_it_is(entry: NotFinite, fault: Fault) -> None:
    found = judged(replace(GOOD, weights=replace(WEIGHTS, not_finite=(entry,))))
    assert set(found) == {"weights_finite"}
    assert found["weights_finite"].fault is fault
    assert "w" in found["weights_finite"].reason


def test_non_persistent_buffers_are_listed_and_not_judged() -> None:
    """Gemma 3n's gradient_clipping is inf in float16 on every healthy V100."""
    facts = replace(GOOD, weights=replace(WEIGHTS, not_judged=("a.gradient_clipping",)))
    assert judged(facts) == {}
    check = next(check for check in CHECKS if check.id == "numerics.weights_finite")
    assert "a.gradient_clipping" in check.judge(facts, PLAN).reason


def test_tensors_on_meta_end_the_stage_before_a_step() -> None:
    weights = replace(WEIGHTS, on_meta=("model.norm.weight",))
    found = judged(NumericsFacts(weights, None, "1 tensors have no data"))
    assert found["weights_finite"].fault is Fault.PRECISION
    assert {each.status for name, each in found.items() if name != "weights_finite"} == {
        Status.SKIP
    }


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"losses": (6.25, 6.2)}, {"loss_finite"}),
        ({"base_loss": nan}, {"loss_finite", "adapter_starts_at_zero"}),
        ({"start_loss": 6.26}, {"adapter_starts_at_zero"}),
        ({"bad_gradients": ("q_proj.lora_B",)}, {"gradients_finite"}),
        ({"gradient_norms": (2.0, inf, 1.0)}, {"gradients_finite"}),
        ({"moved": ("model.embed_tokens.weight",)}, {"nothing_else_moved"}),
        ({"pairs": (PairGradient("q_proj", a=False, b=True),)}, {"gradient_reaches_every_pair"}),
    ],
    ids=str,
)
def test_what_is_wrong_fails_its_check(change: dict[str, Any], check: set[str]) -> None:
    found = judged(with_steps(**change))
    assert set(found) == check
    for name, finding in found.items():
        assert finding.status is Status.FAIL, name


NO_NUMBERS: dict[str, Any] = {
    "base_loss": nan,
    "start_loss": nan,
    "losses": (nan, nan, nan),
    "gradient_norms": (nan, nan, nan),
    "bad_gradients": ("q_proj.lora_A", "q_proj.lora_B"),
}


def test_losses_that_are_no_numbers_fail_one_check_and_the_rest_is_skipped() -> None:
    found = judged(with_steps(**NO_NUMBERS))
    assert {name for name, each in found.items() if each.status is Status.FAIL} == {"loss_finite"}
    assert {name for name, each in found.items() if each.status is Status.SKIP} == {
        "loss_falls",
        "adapter_starts_at_zero",
        "gradients_finite",
        "gradient_reaches_every_pair",
    }


@pytest.mark.parametrize(
    ("profile", "largest", "fault", "named"),
    [
        (CPU, 2.5, Fault.DATA_INVALID, "largest magnitude 2.5 in w"),  # no device to quarantine
        (CPU, 1e30, Fault.DATA_INVALID, "w holds 1e+30"),
        (H100, 1e30, Fault.DATA_INVALID, "w holds 1e+30"),
        (H100, 2.5, Fault.NUMERICS, "a loss is not finite"),
    ],
)
def test_a_loss_that_is_no_number_is_the_devices_fault_where_the_weights_are_ordinary(
    profile: Profile, largest: float, fault: Fault, named: str
) -> None:
    weights = replace(WEIGHTS, largest_magnitude=largest)
    facts = replace(with_steps(**NO_NUMBERS), weights=weights)
    found = judged(facts, replace(PLAN, profile=profile))["loss_finite"]
    assert found.fault is fault
    assert named in found.reason
    assert ("another node" in found.next_step) is (fault is Fault.NUMERICS)


@pytest.mark.parametrize(
    ("change", "fault"),
    [({}, None), ({"all_zero": ("norm.weight",)}, Fault.DATA_INVALID),
     ({"largest_magnitude": 1e20}, Fault.DATA_INVALID)],
)  # fmt: skip
def test_weights_that_pass_no_gradient_on_are_named(
    change: dict[str, Any], fault: Fault | None
) -> None:
    dry = with_steps(pairs=(PairGradient("q_proj", a=False, b=False),))
    found = judged(replace(dry, weights=replace(WEIGHTS, **change)))
    assert found["gradient_reaches_every_pair"].fault is fault
    assert ("suspected" in found["gradient_reaches_every_pair"].reason) is (fault is not None)


def test_without_any_gradient_more_steps_are_not_recommended() -> None:
    found = judged(with_steps(pairs=(PairGradient("q_proj", a=False, b=False),), losses=(6.0,) * 3))
    assert {name: each.status for name, each in found.items()} == {
        "gradient_reaches_every_pair": Status.FAIL,
        "loss_falls": Status.SKIP,
    }


def test_a_batch_that_is_not_the_models_own_chat_warns() -> None:
    found = judged(with_steps(notes=("plain text, no chat: the tokenizer has no chat template",)))
    assert {name: each.status for name, each in found.items()} == {"batch": Status.WARN}
    assert "no chat template" in found["batch"].reason


def test_fewer_steps_are_not_taken_for_a_loss_that_is_no_number() -> None:
    found = judged(with_steps(losses=(6.25, 6.2)))["loss_finite"]
    assert (found.reason, found.fault) == ("only 2 of 3 steps were run", Fault.INTERNAL)


def test_a_loss_that_does_not_fall_warns() -> None:
    found = judged(with_steps(losses=(6.25, 6.2, 6.25)))
    assert {name: each.status for name, each in found.items()} == {"loss_falls": Status.WARN}
    check = next(check for check in CHECKS if check.id == "numerics.loss_falls")
    assert check.severity is Severity.WARNING


def test_one_step_shows_no_gradient_in_a() -> None:
    once = with_steps(losses=(6.25,), pairs=(PairGradient("q_proj", a=False, b=True),))
    found = judged(once, replace(PLAN, steps=1))
    assert {name: each.status for name, each in found.items()} == {"loss_falls": Status.SKIP}


def test_pairs_out_of_reach_are_skipped_with_the_reason() -> None:
    away = PairGradient("audio.q_proj", a=False, b=False, unreachable="the batch holds no audio")
    check = next(check for check in CHECKS if check.id == "numerics.gradient_reaches_every_pair")
    mixed = check.judge(with_steps(pairs=(*STEPS.pairs, away)), PLAN)
    assert (mixed.status, "the batch holds no audio" in mixed.reason) == (Status.PASS, True)
    alone = check.judge(with_steps(pairs=(away,), notes=("no processor",)), PLAN)
    assert (alone.status, "no processor" in alone.reason) == (Status.SKIP, True)


def test_the_losses_may_differ_by_a_unit_of_the_compute_dtype() -> None:
    off = {"start_loss": 6.25 * (1 + 2**-9)}
    assert judged(with_steps(**off, compute_dtype="bfloat16")) == {}
    assert set(judged(with_steps(**off, compute_dtype="float32"))) == {"adapter_starts_at_zero"}


def test_the_section_has_no_nan() -> None:
    made = section(with_steps(losses=(6.25, nan, inf), gradient_norms=(nan, 1.0, 1.0)))
    assert made.steps is not None
    assert made.steps.losses == [6.25, None, None]
    json.dumps(made.model_dump(), allow_nan=False)
    assert section(replace(GOOD, steps=None)).steps is None
