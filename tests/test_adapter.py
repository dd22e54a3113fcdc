"""Judges of the adapter on facts made by hand. `tests/test_adapter_stack.py` has the real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.checks.adapter import CHECKS, section
from app.config import ModelRequest
from app.facts.adapter import AdapterFacts, Asked, ComponentT, KindT, Pair, Projection
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import CPU, H100

LANGUAGE = "model.language_model.layers"
VISION = "model.vision_tower.encoder.layers"


def plan(**flags: Any) -> Plan:
    return Plan(CPU, replace(ModelRequest(), **flags), Path("reports"))


def projection(name: str, component: ComponentT, kind: KindT) -> Projection:
    return Projection(name, component, kind, in_stack=".layers." in name)


def multimodal() -> tuple[Projection, ...]:
    """Two layers of language and vision, an audio layer, a projector, a head."""
    towers: list[tuple[str, ComponentT]] = [(LANGUAGE, "language"), (VISION, "vision")]
    blocks: list[tuple[str, KindT]] = [("self_attn.q_proj", "attention"), ("mlp.up_proj", "mlp")]
    return (
        *(
            projection(f"{root}.{index}.{block}", component, kind)
            for root, component in towers
            for index in range(2)
            for block, kind in blocks
        ),
        projection("model.audio_tower.layers.0.attention.q_proj", "audio", "attention"),
        projection("model.multi_modal_projector.linear", "projector", "other"),
        projection("lm_head", "other", "other"),
    )


def pair(where: Projection) -> Pair:
    return Pair(where.name, where.component, where.kind, 16, 32.0, 0.05,
                (16, 64), (64, 16), b_zero=True, features=(64, 64))  # fmt: skip


def adapted(
    *components: ComponentT, kinds: tuple[KindT, ...] = ("attention", "mlp")
) -> AdapterFacts:
    places = multimodal()
    chosen = [p for p in places if p.component in components and p.kind in kinds]
    return AdapterFacts(tuple(map(pair, chosen)), places, n_trainable=8, n_total=80)


def judged(facts: AdapterFacts, asked: Plan) -> dict[str, Finding]:
    found = {check.id.removeprefix("adapter."): check.judge(facts, asked) for check in CHECKS}
    return {name: finding for name, finding in found.items() if finding.status is not Status.PASS}


def test_the_default_request_is_language_alone() -> None:
    assert judged(adapted("language"), plan()) == {}


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ({"finetune_vision_layers": True}, adapted("language", "vision")),
        ({"finetune_attention_modules": False}, adapted("language", kinds=("mlp",))),
        ({"finetune_mlp_modules": False}, adapted("language", kinds=("attention",))),
        ({"finetune_vision_layers": True, "finetune_language_layers": False}, adapted("vision")),
    ],
    ids=str,
)
def test_each_flag_works_in_both_directions(flags: dict[str, bool], facts: AdapterFacts) -> None:
    assert judged(facts, plan(**flags)) == {}
    assert judged(facts, plan())


def test_a_projector_may_carry_a_pair_with_vision_and_need_not() -> None:
    facts = adapted("language", "vision")
    joint = next(p for p in facts.projections if p.component == "projector")
    more = replace(facts, pairs=(*facts.pairs, pair(joint)))
    assert judged(more, plan(finetune_vision_layers=True)) == {}
    only = judged(more, plan(finetune_vision_layers=True, finetune_mlp_modules=False))
    assert joint.name in only["only_where_asked"].reason


@pytest.mark.parametrize("vision", [False, True])
def test_lora_on_the_audio_tower_is_named(vision: bool) -> None:
    parts: tuple[ComponentT, ...] = ("language", "vision") if vision else ("language",)
    found = judged(adapted(*parts, "audio"), plan(finetune_vision_layers=vision))
    assert set(found) == {"only_where_asked"}
    assert "model.audio_tower.layers.0.attention.q_proj" in found["only_where_asked"].reason
    assert {c.fault for c in CHECKS if c.id == "adapter.only_where_asked"} == {Fault.PRECISION}


def test_a_layer_without_a_pair_is_named() -> None:
    facts = adapted("language")
    found = judged(replace(facts, pairs=facts.pairs[:-1]), plan())
    assert set(found) == {"on_every_layer"}
    assert f"{LANGUAGE}.1.mlp.up_proj" in found["on_every_layer"].reason


def test_vision_asked_of_a_text_only_model_is_a_setting() -> None:
    """Unsloth would put LoRA on the language layers instead."""
    places = tuple(p for p in multimodal() if p.component == "language")
    facts = AdapterFacts(tuple(map(pair, places)), places)
    found = judged(facts, plan(finetune_vision_layers=True, finetune_language_layers=False))
    assert set(found) >= {"request_can_be_met", "only_where_asked"}
    assert "vision" in found["request_can_be_met"].reason
    assert {c.fault for c in CHECKS if c.id == "adapter.request_can_be_met"} == {Fault.CONFIG}


def test_an_adapter_that_missed_a_whole_kind_is_caught_where_no_layer_requires_it() -> None:
    """Routed experts are required nowhere, but MLP was asked for and nothing of it trains."""
    attention = projection("model.layers.0.self_attn.q_proj", "language", "attention")
    experts = projection("model.layers.0.mlp.experts.up_proj", "language", "experts")
    facts = AdapterFacts((pair(attention),), (attention, experts))
    assert set(judged(facts, plan())) == {"on_every_layer"}
    assert judged(replace(facts, pairs=(pair(attention), pair(experts))), plan()) == {}


def mixture() -> tuple[Projection, ...]:
    """Two layers of attention and fused experts, as transformers 5 builds Mixtral."""
    places: list[Projection] = []
    for index in range(2):
        layer = f"model.layers.{index}"
        places.append(projection(f"{layer}.self_attn.q_proj", "language", "attention"))
        block = projection(f"{layer}.mlp.experts.gate_up_proj", "language", "experts")
        places.append(replace(block, fused=True))
    return tuple(places)


def test_fused_experts_warn_in_a_rehearsal_and_are_a_setting_on_a_gpu() -> None:
    """Unsloth's CPU backend cannot adapt them, its CUDA path can."""
    places = mixture()
    facts = AdapterFacts(tuple(pair(p) for p in places if not p.fused), places)
    found = judged(facts, plan())
    assert {name: each.status for name, each in found.items()} == {"on_every_layer": Status.WARN}
    assert "model.layers.1.mlp.experts.gate_up_proj" in found["on_every_layer"].reason
    on_gpu = judged(facts, replace(plan(), profile=H100))["on_every_layer"]
    assert (on_gpu.status, on_gpu.fault) == (Status.FAIL, Fault.CONFIG)
    assert "BOOT_FINETUNE_MLP_MODULES=false" in on_gpu.next_step
    assert "BOOT_LORA_DROPOUT=0" in on_gpu.next_step
    assert judged(facts, plan(finetune_mlp_modules=False)) == {}


def test_experts_that_are_adapted_in_one_layer_only_break_the_contract() -> None:
    places = mixture()
    found = judged(AdapterFacts(tuple(map(pair, places[:-1])), places), plan())["on_every_layer"]
    assert (found.status, found.fault) == (Status.FAIL, None)
    assert places[-1].name in found.reason


def test_what_unsloth_adapts_in_no_layer_is_a_setting() -> None:
    """OPT: its fc1 and fc2 lie in the layer itself, and Unsloth's expression passes them by."""
    attention = [projection(f"layers.{i}.self_attn.q_proj", "language", "attention") for i in "01"]
    attention = [replace(p, in_stack=True) for p in attention]
    mlp = [replace(projection(f"layers.{i}.fc1", "language", "mlp"), in_stack=True) for i in "01"]
    places = (*attention, *mlp)
    found = judged(AdapterFacts(tuple(map(pair, attention)), places), plan())
    assert {name: each.fault for name, each in found.items()} == {"on_every_layer": Fault.CONFIG}
    assert "BOOT_FINETUNE_MLP_MODULES=false" in found["on_every_layer"].next_step
    partly = AdapterFacts(tuple(map(pair, places[:-1])), places)
    assert judged(partly, plan())["on_every_layer"].fault is None


VISION_ALONE = {"finetune_vision_layers": True, "finetune_language_layers": False}


def test_a_tower_without_a_linear_is_said_to_have_none() -> None:
    """Gemma 3n: the one pair of vision stands on the projector."""
    places = tuple(p for p in multimodal() if p.component != "vision")
    joint = next(p for p in places if p.component == "projector")
    facts = AdapterFacts((pair(joint),), places)
    told = {c.id: c.judge(facts, plan(**VISION_ALONE)).reason for c in CHECKS}
    assert told["adapter.attached"] == (
        "1 LoRA pair on the projector; the vision tower has no Linear to adapt"
    )
    assert "attention" not in told["adapter.request_can_be_met"]
    assert " 0 " not in told["adapter.on_every_layer"]
    assert judged(facts, plan(**VISION_ALONE)) == {}


def test_vision_that_no_pair_reaches_is_a_setting() -> None:
    """Unsloth adapts Gemma's projectors only."""
    places = tuple(p for p in multimodal() if p.component != "vision")
    pairs = tuple(pair(p) for p in places if p.component == "language")
    found = judged(AdapterFacts(pairs, places), plan(finetune_vision_layers=True))
    assert {name: each.fault for name, each in found.items()} == {"on_every_layer": Fault.CONFIG}
    assert "BOOT_FINETUNE_VISION_LAYERS=false" in found["on_every_layer"].next_step


def test_the_headline_tells_how_many_pairs_stand_where() -> None:
    assert CHECKS[0].judge(adapted("language"), plan()).reason == (
        "4 LoRA pairs on attention and mlp of language"
    )


@pytest.mark.parametrize("field", ["other_adapters", "inactive"])
def test_an_adapter_that_does_not_act_alone_is_named(field: str) -> None:
    change: dict[str, Any] = {field: ("second",)}
    found = judged(replace(adapted("language"), **change), plan())
    assert set(found) == {"attached"}
    assert "second" in found["attached"].reason


def test_matrices_that_two_layers_share_are_named() -> None:
    facts = adapted("language")
    first, *rest = facts.pairs
    found = judged(replace(facts, pairs=(replace(first, shared=True), *rest)), plan())
    assert set(found) == {"attached"}
    assert first.name in found["attached"].reason


def test_no_pair_at_all() -> None:
    assert set(judged(replace(adapted("language"), pairs=()), plan())) >= {"attached"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"other_trainable": ("model.embed_tokens.weight",)}, "model.embed_tokens.weight"),
        ({"modules_to_save": ("lm_head",)}, "lm_head"),
        ({"frozen_lora": ("q_proj.lora_B.default.weight",)}, "q_proj.lora_B"),
    ],
)
def test_what_trains_is_lora_and_all_of_it(change: dict[str, Any], named: str) -> None:
    found = judged(replace(adapted("language"), **change), plan())
    assert set(found) == {"only_lora_trains"}
    assert named in found["only_lora_trains"].reason


@pytest.mark.parametrize(
    "change",
    [
        {"r": 8},
        {"alpha": 128.0},
        {"dropout": 0.0},
        {"a_shape": (8, 64)},
        {"b_shape": (64, 8)},
        {"a_shape": (16, 63)},
        {"b_shape": (63, 16)},
    ],
    ids=str,
)
def test_one_pair_with_another_value_is_named(change: dict[str, Any]) -> None:
    facts = adapted("language")
    first, *rest = facts.pairs
    found = judged(replace(facts, pairs=(replace(first, **change), *rest)), plan())
    assert set(found) == {"hyperparameters"}
    assert first.name in found["hyperparameters"].reason


@pytest.mark.parametrize("b_zero", [False, None])
def test_b_must_be_zero_and_readable(b_zero: bool | None) -> None:
    facts = adapted("language")
    first, *rest = facts.pairs
    found = judged(replace(facts, pairs=(replace(first, b_zero=b_zero), *rest)), plan())
    assert set(found) == {"starts_at_zero"}
    assert first.name in found["starts_at_zero"].reason


def test_the_section_counts_by_part_and_kind() -> None:
    made = section(adapted("language"), plan())
    assert made.components == {"language": {"attention": 2, "mlp": 2}}
    assert made.targets == ["q_proj", "up_proj"]
    assert (made.r, made.alpha, made.dropout, made.n_pairs) == (16, 32.0, 0.05, 4)


@pytest.mark.parametrize(
    ("vision", "language", "attention", "mlp", "part"),
    [
        (False, False, True, True, "neither vision nor language"),
        (True, True, False, False, "neither attention nor MLP"),
    ],
)
def test_asking_for_nothing_is_unmet(
    vision: bool, language: bool, attention: bool, mlp: bool, part: str
) -> None:
    asked = Asked(vision=vision, language=language, attention=attention, mlp=mlp)
    assert part in asked.unmet((p.component, p.kind) for p in multimodal())[0]
