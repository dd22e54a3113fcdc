"""Judges of the numerics on facts made by hand. The real ones are in the `_stack` modules."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from app.checks.numerics import CHECKS, section
from app.config import GradientCheckpointingT, ModelRequest
from app.facts.headroom import HeadroomFacts, Largest
from app.facts.numerics import (
    FileTensor,
    GenerationFacts,
    LeftFacts,
    MemoryUse,
    NotFinite,
    NumericsFacts,
    PairGradient,
    Recomputed,
    StepFacts,
    WeightFacts,
)
from app.outcome import Fault, Finding, Severity, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile
from app.sections_numerics import Generation, Steps

PLAN = Plan(CPU, ModelRequest(), Path("reports"), steps=3)
WEIGHTS = WeightFacts(n_scanned=2, largest_magnitude=1.0, largest_name="w")
STEPS = StepFacts(
    learning_rate=2e-4,
    arithmetic="float32 as it is",
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
    tokens_per_s=1000.0,
    recomputed=Recomputed(n_layers=2, n_again=2),
    memory=MemoryUse(peak=1 << 30, low=1 << 29, high=1 << 31),
)
SAID = GenerationFacts(n_prompt=20, tokens=(5, 6), largest=(3.5, 2.5))
LEFT = LeftFacts(n_compared=40)
ROOM = HeadroomFacts((Largest("LlamaMLP", "layers.0.mlp", 2.0, "bfloat16"),), n_modules=1)
GOOD = NumericsFacts(WEIGHTS, STEPS, generation=SAID, headroom=ROOM, left=LEFT)
# The same tensor as the file has it; float16 ends at 65504.
TOO_LARGE = FileTensor("bfloat16", finite=True, largest=1e5)
SMALL = FileTensor("bfloat16", finite=True, largest=3.0)
INFINITE = FileTensor("bfloat16", finite=False, largest=inf)


def judged(facts: NumericsFacts, plan: Plan = PLAN) -> dict[str, Finding]:
    found = {check.id.removeprefix("numerics."): check.judge(facts, plan) for check in CHECKS}
    return {name: finding for name, finding in found.items() if finding.status is not Status.PASS}


def judged_one(name: str, facts: NumericsFacts, plan: Plan) -> Finding:
    return next(c for c in CHECKS if c.id == f"numerics.{name}").judge(facts, plan)


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


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        # Packed from a float16 that could not hold the weight; the offset of nested scales is NaN.
        (NotFinite("w", "absmax", "float32", 0, 1, TOO_LARGE), Fault.PRECISION),
        (NotFinite("w", "absmax", "float32", 1, 0, TOO_LARGE), Fault.PRECISION),
        # A norm, cast to float16 and brought up again.
        (NotFinite("w", "parameter", "float32", 0, 1, TOO_LARGE), Fault.PRECISION),
        (NotFinite("w", "parameter", "float32", 0, 1, SMALL), Fault.NUMERICS),
        (NotFinite("w", "parameter", "float32", 0, 1), Fault.NUMERICS),
        (NotFinite("w", "absmax", "float32", 0, 1), Fault.NUMERICS),
    ],
)
def test_on_a_float16_card_what_the_file_holds_beyond_it_is_the_casts_fault(
    entry: NotFinite, fault: Fault
) -> None:
    facts = replace(GOOD, weights=replace(WEIGHTS, not_finite=(entry,)))
    found = judged_one("weights_finite", facts, replace(PLAN, profile=V100))
    assert (found.status, found.fault) == (Status.FAIL, fault)


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
    others = {name: each.status for name, each in found.items() if name != "weights_finite"}
    assert set(others.values()) == {Status.SKIP}
    assert len(others) == len(CHECKS) - 1


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
    silent = judged(replace(with_steps(**NO_NUMBERS), generation=None))
    assert silent["generation"].status is Status.SKIP


@pytest.mark.parametrize(
    ("profile", "largest", "fault", "named"),
    [
        (CPU, 2.5, Fault.NUMERICS, "the weights are finite, largest 2.5 in w"),
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
    ("again", "fault"), [(6.3, None), (7.1, Fault.NUMERICS)], ids=["repeats", "does not"]
)
def test_a_base_that_gives_another_loss_each_time_is_the_devices_fault(
    again: float, fault: Fault | None
) -> None:
    facts = with_steps(base_loss=6.3, start_loss=6.9, base_loss_again=again)
    found = judged_one("adapter_starts_at_zero", facts, PLAN)
    assert (found.status, found.fault) == (Status.FAIL, fault)
    on_card = judged_one("adapter_starts_at_zero", facts, replace(PLAN, profile=H100))
    assert on_card.status is Status.WARN  # until a result of such a card is committed


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"zero_matrices": ("embed.weight",), "all_zero": ("embed.weight",)}, Fault.DATA_INVALID),
        (
            {
                "zero_matrices": ("embed.weight",),
                "all_zero": ("embed.weight",),
                "unlike_file": ("embed.weight",),
            },
            Fault.NUMERICS,
        ),
        ({"largest_magnitude": 1e30, "largest_name": "q_proj.lora_A.default.weight"},
         Fault.NUMERICS),  # a fresh adapter is in no file
        ({"largest_magnitude": 1e30, "unlike_file": ("w",)}, Fault.NUMERICS),
    ],
)  # fmt: skip
def test_only_what_the_file_holds_too_makes_it_the_files_fault(
    change: dict[str, Any], fault: Fault
) -> None:
    facts = replace(with_steps(**NO_NUMBERS), weights=replace(WEIGHTS, **change))
    assert judged_one("loss_finite", facts, PLAN).fault is fault


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
        "gradient_checkpointing": Status.SKIP,
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
    facts = with_steps(start_loss=6.25 * (1 + 2**-9))
    assert judged(facts, replace(PLAN, profile=H100)) == {}
    assert set(judged(facts)) == {"adapter_starts_at_zero"}


def test_the_section_has_no_nan() -> None:
    facts = with_steps(losses=(6.25, nan, inf), gradient_norms=(nan, 1.0, 1.0))
    said = replace(SAID, largest=(nan, 1.0))
    made = section(replace(facts, generation=said))
    assert isinstance(made["steps"], Steps)
    assert made["steps"].losses == [6.25, None, None]
    json.dumps({name: each.model_dump() for name, each in made.items()}, allow_nan=False)
    assert set(made) == {"weights", "steps", "generation", "headroom"}
    assert set(section(NumericsFacts(WEIGHTS, None, "no pair"))) == {"weights"}


@pytest.mark.parametrize(
    ("asked", "n_again", "offloaded", "status", "words"),
    [
        ("unsloth", 2, True, Status.PASS, "2 of 2 layers ran again, hidden states moved"),
        ("unsloth", 2, False, Status.PASS, "on: 2 of 2 layers ran again"),
        (True, 1, False, Status.PASS, "1 of 2 layers"),  # a tower may have no support for it
        (False, 0, False, Status.PASS, "off"),
        (True, 0, False, Status.WARN, "off, which costs more memory"),
        ("unsloth", 0, False, Status.WARN, "off, which costs more memory"),
        (False, 2, False, Status.WARN, "on, which costs a forward pass"),
    ],
)
def test_checkpointing_that_is_not_as_asked_warns(
    asked: GradientCheckpointingT, n_again: int, offloaded: bool, status: Status, words: str
) -> None:
    plan = replace(PLAN, request=ModelRequest(use_gradient_checkpointing=asked))
    facts = with_steps(recomputed=Recomputed(2, n_again, offloaded))
    found = judged_one("gradient_checkpointing", facts, plan)
    assert found.status is status
    assert words in found.reason


def test_pairs_outside_of_every_layer_say_nothing_of_checkpointing() -> None:
    found = judged_one("gradient_checkpointing", with_steps(recomputed=Recomputed()), PLAN)
    assert found.status is Status.SKIP


GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "change", "status", "words"),
    [
        (MemoryUse(3 * GIB, GIB, 2 * GIB), {}, Status.WARN, "1.0 GiB more than the forecast"),
        (MemoryUse(2 * GIB, GIB, 2 * GIB), {}, Status.PASS, "no more memory"),
        (MemoryUse(GIB // 2, GIB, 2 * GIB), {}, Status.PASS, "no more memory"),
        (MemoryUse(None, GIB, 2 * GIB), {}, Status.SKIP, "does not tell"),
        (MemoryUse(GIB, no_forecast="no shapes"), {}, Status.SKIP, "no shapes; 1.0 GiB"),
        (MemoryUse(3 * GIB, GIB, 2 * GIB), {"modalities": ("text", "image")}, Status.SKIP, "text"),
    ],
)
def test_more_memory_than_forecast_warns_with_both_numbers(
    memory: MemoryUse, change: dict[str, Any], status: Status, words: str
) -> None:
    facts = with_steps(memory=memory, **change)
    found = judged_one("memory_as_forecast", facts, replace(PLAN, profile=H100))
    assert found.status is status
    assert words in found.reason
    on_host = judged_one("memory_as_forecast", facts, PLAN)
    assert on_host.status is (Status.SKIP if status is Status.WARN else status)
    if status is Status.WARN:
        assert "3.0 GiB" in found.reason
        assert "2.0 GiB" in found.reason


def test_what_was_not_put_back_is_named_and_breaks_the_contract() -> None:
    changed = ("bytes of q_proj.lora_B.default.weight", "training of model")
    check = next(check for check in CHECKS if check.id == "numerics.left_as_found")
    found = check.judge(replace(GOOD, left=replace(LEFT, changed=changed)), PLAN)
    assert (found.status, found.fault or check.fault) == (Status.FAIL, Fault.PRECISION)
    assert all(name in found.reason for name in changed)


@pytest.mark.parametrize(("kept", "status"), [(300, Status.PASS), (301, Status.WARN)])
def test_memory_beyond_the_libraries_work_space_is_missed(kept: int, status: Status) -> None:
    left = replace(LEFT, kept_bytes=kept, workspace_bytes=300)
    assert judged_one("left_as_found", replace(GOOD, left=left), PLAN).status is status


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize(
    ("profile", "largest", "fault"),
    [(CPU, 2.5, Fault.NUMERICS), (H100, 2.5, Fault.NUMERICS), (H100, 1e30, Fault.DATA_INVALID)],
)
def test_logits_that_are_no_numbers_are_blamed_like_losses(
    bad: float, profile: Profile, largest: float, fault: Fault
) -> None:
    facts = replace(
        GOOD,
        weights=replace(WEIGHTS, largest_magnitude=largest),
        generation=replace(SAID, largest=(1.0, bad)),
    )
    found = judged(facts, replace(PLAN, profile=profile))
    assert {name: (each.status, each.fault) for name, each in found.items()} == {
        "generation": (Status.FAIL, fault)
    }


def test_a_model_that_cannot_generate_only_warns() -> None:
    said = GenerationFacts(n_prompt=20, problem="NotImplementedError: no cache")
    found = judged(replace(GOOD, generation=said))
    assert {name: each.status for name, each in found.items()} == {"generation": Status.WARN}
    assert "NotImplementedError: no cache" in found["generation"].reason
    made = section(replace(GOOD, generation=said))["generation"]
    assert isinstance(made, Generation)
    assert (made.n_tokens, made.largest_logit, made.problem) == (0, None, said.problem)


def test_one_token_is_enough() -> None:
    """The model may end its answer at once."""
    assert judged(replace(GOOD, generation=replace(SAID, tokens=(2,), largest=(1.0,)))) == {}


@pytest.mark.parametrize(
    ("change", "finite"),
    [
        ({}, True),
        ({"base_loss": nan}, False),
        ({"start_loss": inf}, False),
        ({"losses": (nan,)}, False),
        ({"gradient_norms": (inf,)}, False),
        ({"bad_gradients": ("q_proj.lora_B",)}, False),
    ],
)
def test_steps_are_finite_when_every_number_is(change: dict[str, Any], finite: bool) -> None:
    assert replace(STEPS, **change).finite is finite
