"""The rule of packed layers over hand-made censuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.facts.census import PackedFate, PlainLinear
from app.profiles import V100
from tests.censuses import LAYER, broken, healthy, layer, plan_for, state_of, tensor


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": None}, "cannot be read"),
        ({"state": state_of(V100, quant_type="fp4")}, "fp4"),
        ({"state": state_of(V100, nested=False, absmax_dtype="float32")}, "nested: False"),
        ({"state": state_of(V100, absmax_dtype="float16")}, "float16"),
        ({"weight_dtype": "float16"}, "float16"),
        ({"numel": 16}, "16 bytes"),
    ],
)
def test_a_packed_layer_without_its_state_is_named(changes: dict[str, object], said: str) -> None:
    census = replace(healthy(V100), packed=(layer(V100, **changes),))
    reason = broken(census, plan_for(V100))["precision.quant_states"]
    assert reason.startswith("1 packed: " + LAYER)
    assert said in reason


@pytest.mark.parametrize("fate", ["differs", "bytes", "absent"])
def test_a_packed_weight_that_went_astray_is_named(fate: str) -> None:
    lost = PackedFate("a.weight", fate, nested=True, projection=False)  # type: ignore[arg-type]
    census = healthy(V100)
    census = replace(census, fates=(*census.fates, lost))
    assert "a.weight" in broken(census, plan_for(V100))["precision.packed_layers"]


def test_the_loader_may_dequantise_what_is_no_projection_of_the_language_model() -> None:
    census = healthy(V100)
    for projection in (True, False):
        fate = PackedFate("a.weight", "dequantised", nested=True, projection=projection)
        judged = replace(census, fates=(*census.fates, fate))
        assert bool(broken(judged, plan_for(V100))) is projection


def test_of_an_unquantised_checkpoint_every_linear_outside_the_skip_list_is_packed() -> None:
    census = replace(healthy(V100), fates=(), checkpoint_packs=False)
    plain = {
        "skipped": PlainLinear("lm_head", "float16", projection=False, skipped=True),
        "forgotten": PlainLinear("model.other", "float16", projection=False, skipped=False),
        "projection": PlainLinear(LAYER, "float16", projection=True, skipped=True),
    }
    for name, each in plain.items():
        found = broken(replace(census, plain=(each,)), plan_for(V100))
        assert bool(found) is (name != "skipped")


def test_bytes_outside_a_packed_layer_are_named() -> None:
    census = healthy(V100)
    odd = tensor(V100, "a.weight", "uint8")
    found = broken(replace(census, tensors=(*census.tensors, odd)), plan_for(V100))
    assert "a.weight (uint8)" in found["precision.packed_layers"]


def test_without_4_bits_no_layer_is_packed_and_with_them_some_are() -> None:
    assert (
        LAYER
        in broken(healthy(V100), plan_for(V100, load_in_4bit=False))["precision.packed_layers"]
    )
    none = replace(healthy(V100), packed=(), fates=(), checkpoint_packs=False)
    assert "precision.packed_layers" in broken(none, plan_for(V100))
    assert broken(none, plan_for(V100, load_in_4bit=False)) == {}
