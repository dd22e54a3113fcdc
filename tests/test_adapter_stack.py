"""The adapter on real models: what Unsloth and PEFT do with the flags, and what we make of it."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

import pytest

from app.checks import adapter as checks
from app.errors import BootError
from app.facts.adapter import AdapterFacts, Asked
from app.outcome import Fault
from tests.stack_models import adapted, failing, load, plan_for
from tests.tiny_models import Kind

pytestmark = pytest.mark.stack


def components(facts: AdapterFacts) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for pair in facts.pairs:
        kinds = counts.setdefault(pair.component, {})
        kinds[pair.kind] = kinds.get(pair.kind, 0) + 1
    return counts


# Four language layers, the last two without k/v projections: 12 attention and 12 MLP projections.
LANGUAGE = {"attention": 12, "mlp": 12}
# The vision tower of Gemma 3n is all convolutions; its projector is the one Linear of vision.
GEMMA: list[tuple[dict[str, bool], dict[str, dict[str, int]]]] = [
    ({}, {"language": LANGUAGE}),
    ({"finetune_vision_layers": True}, {"language": LANGUAGE, "projector": {"other": 1}}),
    ({"finetune_attention_modules": False}, {"language": {"mlp": 12}}),
    ({"finetune_mlp_modules": False}, {"language": {"attention": 12}}),
    ({"finetune_vision_layers": True, "finetune_language_layers": False},
     {"projector": {"other": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), GEMMA, ids=str)
def test_every_flag_on_gemma3n(flags: dict[str, bool], expected: dict[str, dict[str, int]]) -> None:
    plan = plan_for("gemma3n-nf4", **flags)
    model, _ = adapted(plan)
    from app.engine.adapter import gather

    facts = gather(model)
    assert components(facts) == expected
    assert failing(checks.CHECKS, facts, plan) == {}


@pytest.mark.parametrize(
    ("kind", "n_pairs"),
    [
        ("gemma3n-bf16", 24),
        ("llama-nf4", 14),
        ("llama-bf16", 14),
        ("qwen-nf4", 14),
        ("qwen-bf16", 14),
    ],
)
def test_other_models_get_a_pair_on_every_projection(kind: Kind, n_pairs: int) -> None:
    plan = plan_for(kind, lora_r=8, lora_alpha=8, lora_dropout=0.0)
    model, _ = adapted(plan)
    from app.engine.adapter import gather

    facts = gather(model)
    assert len(facts.pairs) == n_pairs
    assert failing(checks.CHECKS, facts, plan) == {}


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("llama-nf4", {"finetune_vision_layers": True}),
        # Unsloth falls back to the language model here, and to the audio tower's attention there.
        ("llama-nf4", {"finetune_vision_layers": True, "finetune_language_layers": False}),
        ("gemma3n-nf4", {"finetune_vision_layers": True, "finetune_language_layers": False,
                         "finetune_mlp_modules": False}),
        ("gemma3n-nf4", {"finetune_attention_modules": False, "finetune_mlp_modules": False}),
    ],
    ids=str,
)  # fmt: skip
def test_an_impossible_request_is_a_setting_and_says_what_there_is(
    kind: Kind, flags: dict[str, bool]
) -> None:
    plan = plan_for(kind, **flags)
    model, _ = load(plan)
    from app.engine.adapter import attach

    with pytest.raises(BootError) as caught:
        attach(model, plan)
    assert caught.value.finding.fault is Fault.CONFIG
    assert "language mlp" in caught.value.finding.actual
    assert not any("lora" in name for name, _ in model.named_parameters())


def test_the_cpu_backend_alone_reaches_the_audio_tower_and_is_caught_by_name() -> None:
    plan = plan_for("gemma3n-nf4")
    model, _ = load(plan)
    import unsloth

    from app.engine.adapter import gather
    from app.engine.arguments import adapter_arguments

    facts = gather(unsloth.FastModel.get_peft_model(model, **adapter_arguments(plan.request)))
    found = failing(checks.CHECKS, facts, plan)
    assert set(found) == {"adapter.only_where_asked"}
    assert (
        "model.audio_tower.conformer.0.attention.attn.q_proj"
        in found["adapter.only_where_asked"].reason
    )


def test_what_thaws_freezes_or_fills_afterwards_is_named() -> None:
    plan = plan_for("llama-nf4")
    model, _ = adapted(plan)
    import torch

    from app.engine.adapter import gather, lora_parameters

    (first, (a, b)), *_ = lora_parameters(model).items()
    a.requires_grad = False
    with torch.no_grad():
        b[0, 0] = 1e-3
    assert set(failing(checks.CHECKS, gather(model), plan)) == {
        "adapter.only_lora_trains",
        "adapter.starts_at_zero",
    }
    model.get_input_embeddings().weight.requires_grad_()
    found = failing(checks.CHECKS, gather(model), plan)
    assert "embed_tokens" in found["adapter.only_lora_trains"].reason
    assert first in found["adapter.starts_at_zero"].reason


def test_facts_count_packed_weights_unpacked() -> None:
    plain, _ = adapted(plan_for("llama-bf16", load_in_4bit=False))
    packed, _ = adapted(plan_for("llama-nf4"))
    from app.engine.adapter import gather

    assert gather(plain).n_total == gather(packed).n_total
    assert sum(item.packed for item in gather(packed).projections) == 14
    assert not any(item.packed for item in gather(plain).projections)


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}  # fmt: skip
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**SMALL, "pad_token_id": 0}),
    "mistral": ("MistralConfig", "MistralForCausalLM", SMALL),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SMALL, "head_dim": 16}),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**SMALL, "num_experts": 4}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**SMALL}),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", SMALL),
    "gemma3": ("Gemma3Config", "Gemma3ForConditionalGeneration",
               {"text_config": {**SMALL, "head_dim": 16}, "vision_config": TOWER}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
                   {"text_config": SMALL, "vision_config": {"depth": 2}}),
    "llava": ("LlavaConfig", "LlavaForConditionalGeneration",
              {"text_config": SMALL, "vision_config": TOWER}),
}  # fmt: skip
# Vision, language, attention, MLP.
FLAGS = [
    Asked(
        vision=each[0] == "1", language=each[1] == "1", attention=each[2] == "1", mlp=each[3] == "1"
    )
    for each in ("0111", "1111", "0101", "0110", "1011", "1010")
]


def meta_model(family: str) -> Any:
    importlib.import_module("unsloth")  # first of the stack, or it patches nothing
    import torch
    import transformers

    config, model, values = FAMILIES[family]
    with torch.device("meta"):
        return getattr(transformers, model)(getattr(transformers, config)(**values))


@pytest.mark.parametrize("family", FAMILIES)
def test_our_idea_of_a_model_agrees_with_unsloths_expression(family: str) -> None:
    """Where a request can be met, what Unsloth's CUDA path matches is what we require and allow."""
    model = meta_model(family)
    from unsloth_zoo.peft_utils import get_peft_regex

    from app.engine.adapter import projections

    found = projections(model)
    for asked in FLAGS:
        if asked.unmet((item.component, item.kind) for item in found):
            continue
        expression = re.compile(get_peft_regex(model, *dataclasses.astuple(asked)), flags=re.DOTALL)
        hit = {item.name for item in found if expression.fullmatch(item.name)}
        assert {item.name for item in found if asked.requires(item)} <= hit, asked
        matched = [item for item in found if item.name in hit]
        assert all(asked.allows(item.component, item.kind) for item in matched), asked


def test_routed_experts_are_known_as_one_tensor() -> None:
    model = meta_model("qwen2_moe")
    from app.engine.adapter import projections

    fused = [item for item in projections(model) if item.fused]
    assert {item.name.rpartition(".")[2] for item in fused} == {"gate_up_proj", "down_proj"}
    assert {(item.component, item.kind) for item in fused} == {("language", "experts")}


def test_matrices_of_another_shape_shared_ones_and_a_second_adapter_are_named() -> None:
    model, _ = adapted(plan := plan_for("llama-nf4"))
    import torch
    from peft import LoraConfig

    from app.engine.adapter import gather, lora_parameters

    held = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    ends = ("0.mlp.gate_proj", "0.mlp.up_proj", "1.mlp.up_proj")
    first, second, third = (module for name, module in held.items() if name.endswith(ends))
    a = first.lora_A["default"]
    a.weight = torch.nn.Parameter(a.weight[:, :-1].clone())
    third.lora_B["default"].weight = second.lora_B["default"].weight
    found = failing(checks.CHECKS, gather(model), plan)
    assert set(found) == {"adapter.attached", "adapter.hyperparameters"}
    assert len(lora_parameters(model)) == 14
    model.add_adapter("second", LoraConfig(r=4, target_modules=["o_proj"]))
    named = failing(checks.CHECKS, gather(model), plan)["adapter.attached"]
    assert "second" in named.reason
