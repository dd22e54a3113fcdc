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
from app.profiles import CPU

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
                (16, 64), (64, 16), b_zero=True)  # fmt: skip


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


def test_experts_that_are_one_tensor_have_a_next_step_of_their_own() -> None:
    attention = projection("model.layers.0.self_attn.q_proj", "language", "attention")
    experts = projection("model.layers.0.mlp.experts.up_proj", "language", "experts")
    facts = AdapterFacts((pair(attention),), (attention, replace(experts, fused=True)))
    assert "CUDA only" in judged(facts, plan())["on_every_layer"].next_step


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
    [{"r": 8}, {"alpha": 128.0}, {"dropout": 0.0}, {"a_shape": (8, 64)}, {"b_shape": (64, 8)}],
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
