"""What a load is judged by, and what is packed by name. Real loads: test_precision_models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.checks import load
from app.config import ModelRequest
from app.facts.layers import component, kind
from app.facts.load import LoadFacts
from app.facts.projections import is_projection
from app.outcome import Fault, Status
from app.plan import Plan
from app.profiles import CPU
from tests.test_layers import PLACES

PLAN = Plan(CPU, ModelRequest(), Path("reports"))
GOOD = LoadFacts(
    folder="/models/a",
    device="cpu",
    model_class="LlamaForCausalLM",
    tokenizer_class="LlamaTokenizer",
    observed=True,
    files=("model.safetensors",),
)


def judged(facts: LoadFacts) -> dict[str, tuple[Status, Fault]]:
    """The checks that did not pass."""
    found = {check: check.judge(facts, PLAN) for check in load.CHECKS}
    return {
        check.id: (each.status, each.fault or check.fault)
        for check, each in found.items()
        if each.status is not Status.PASS
    }


@pytest.mark.parametrize(
    ("changes", "check", "status", "fault"),
    [
        ({"missing": ("a",)}, "weights_from_checkpoint", Status.FAIL, Fault.DATA_INVALID),
        ({"mismatched": ("a",)}, "weights_from_checkpoint", Status.FAIL, Fault.DATA_INVALID),
        ({"observed": False}, "weights_from_checkpoint", Status.ERROR, Fault.INTERNAL),
        ({"foreign_files": ("/b/x",)}, "only_the_folder", Status.FAIL, Fault.INTERNAL),
        ({"files": ()}, "only_the_folder", Status.ERROR, Fault.INTERNAL),
        ({"unexpected": ("a",)}, "nothing_left_over", Status.WARN, Fault.DATA_INVALID),
        (
            {"unexpected": ("a", "b"), "dropped": ("b",)},
            *("nothing_left_over", Status.FAIL, Fault.DATA_INVALID),
        ),
        ({"tokenizer_class": ""}, "tokenizer", Status.FAIL, Fault.DATA_INVALID),
    ],
)
def test_each_defect_of_a_load_has_its_check(
    changes: dict[str, object], check: str, status: Status, fault: Fault
) -> None:
    assert judged(GOOD) == {}
    assert judged(replace(GOOD, **changes)) == {f"load.{check}": (status, fault)}  # type: ignore[arg-type]


def test_many_names_are_counted_and_the_first_ten_shown() -> None:
    found = load.weights_from_checkpoint(
        replace(GOOD, missing=tuple(f"w{n}" for n in range(12))), PLAN
    )
    assert found.reason.startswith("12 weights are random numbers")
    assert found.reason.endswith("w9 and 2 more")


@pytest.mark.parametrize("name", [name for name, _, _ in PLACES])
def test_what_must_be_packed_agrees_with_the_adapters_view_of_places(name: str) -> None:
    """Two independent rules over the same names: one is a regular expression, one reads parts."""
    language = component(name) == "language" and kind(name) in ("attention", "mlp", "experts")
    # Fused experts are one parameter, no Linear: nothing to skip or to pack.
    assert is_projection(name) is language


@pytest.mark.parametrize(
    "name",
    [
        *("lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate"),
        *("model.layers.0.block_sparse_moe.gate", "model.layers.0.feed_forward.router"),
        *("model.layers.0.mlp.router.gate", "model.embed_vision.embedding_projection"),
        *("model.audio_tower.conformer.0.attention.post", "score"),
        *("model.language_model.layers.0.altup.prediction_coefs",),
    ],
)
def test_routers_towers_heads_and_altup_are_never_packed_on_the_fly(name: str) -> None:
    assert not is_projection(name)


def test_what_was_brought_to_the_profiles_types_is_said() -> None:
    found = load.weights_from_checkpoint(replace(GOOD, aligned=("lm_head.weight",)), PLAN)
    assert "1 brought to the profile's types: lm_head.weight" in found.actual
