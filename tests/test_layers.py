"""Which part of a model a path names. The paths are those of transformers 5.17."""

from __future__ import annotations

import pytest

from app.facts import layers
from app.facts.adapter import ComponentT, KindT

PLACES: list[tuple[str, ComponentT, KindT]] = [
    # Gemma 3n
    ("model.language_model.layers.0.self_attn.q_proj", "language", "attention"),
    ("model.language_model.layers.0.mlp.down_proj", "language", "mlp"),
    ("model.language_model.layers.0.altup.prediction_coefs", "language", "other"),
    ("model.language_model.layers.0.altup.modality_router", "language", "other"),
    ("model.language_model.layers.0.laurel.linear_left", "language", "other"),
    ("model.language_model.layers.0.per_layer_input_gate", "language", "other"),
    ("model.language_model.layers.0.per_layer_projection", "language", "other"),
    ("model.language_model.per_layer_model_projection", "language", "other"),
    ("model.language_model.altup_unembed_projections.2", "language", "other"),
    ("model.audio_tower.conformer.0.attention.attn.q_proj", "audio", "attention"),
    ("model.audio_tower.conformer.0.ffw_layer_start.ffw_layer_1", "audio", "mlp"),
    ("model.audio_tower.subsample_conv_projection.input_proj_linear", "audio", "other"),
    ("model.embed_audio.embedding_projection", "audio", "other"),
    ("model.embed_vision.embedding_projection", "projector", "other"),
    ("lm_head", "other", "other"),
    # text-only families
    ("model.layers.3.self_attn.qkv_proj", "language", "attention"),
    ("model.layers.3.mlp.gate_up_proj", "language", "mlp"),
    ("transformer.h.1.self_attention.query_key_value", "language", "attention"),
    ("transformer.h.1.mlp.dense_h_to_4h", "language", "mlp"),
    ("gpt_neox.layers.0.attention.dense", "language", "attention"),
    ("model.decoder.layers.0.fc1", "language", "mlp"),
    ("model.layers.0.linear_attn.in_proj_qkvz", "language", "attention"),
    # experts, routers, mixers
    ("model.layers.0.mlp.experts.3.up_proj", "language", "experts"),
    ("model.layers.0.mlp.experts.gate_up_proj", "language", "experts"),
    ("model.layers.0.mlp.shared_experts.up_proj", "language", "mlp"),
    ("language_model.model.layers.0.feed_forward.router", "language", "other"),
    ("model.layers.0.mamba.in_proj", "language", "mixer"),
    # towers and joints
    ("model.visual.blocks.0.attn.qkv", "vision", "attention"),
    ("model.visual.blocks.0.mlp.gate_proj", "vision", "mlp"),
    ("model.visual.merger.mlp.0", "projector", "mlp"),
    ("model.visual.deepstack_merger_list.0.linear_fc1", "projector", "other"),
    ("model.vision_tower.encoder.layers.0.self_attn.out_proj", "vision", "attention"),
    ("vision_model.patch_embedding.linear", "vision", "other"),
    ("model.multi_modal_projector", "projector", "other"),
    ("model.multi_modal_projector.linear_1", "projector", "other"),
    ("model.embed_tokens_extend.image_embed.img_projection_up", "projector", "other"),
    ("model.embed_tokens_extend.audio_embed.encoder.encoders.0.self_attn.q_proj", "audio",
     "attention"),
    ("language_model.lm_head", "other", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "component", "kind"), PLACES, ids=str)
def test_a_path_says_part_and_kind(name: str, component: ComponentT, kind: KindT) -> None:
    assert (layers.component(name), layers.kind(name)) == (component, kind)


def test_a_gate_beside_experts_is_a_router_and_elsewhere_a_projection() -> None:
    name = "model.layers.0.mlp.gate"
    assert layers.kind(name, beside_experts=True) == "other"
    assert layers.kind(name) == "mlp"


def test_a_numbered_layer_is_a_stack_and_a_numbered_leaf_is_not() -> None:
    assert layers.in_stack("model.layers.0.mlp.up_proj")
    assert not layers.in_stack("model.visual.merger.mlp.0")
