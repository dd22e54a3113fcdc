"""Config.json against the sides of the weights, and what must stand around the layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.checks.checkpoint import CHECKS
from app.outcome import Finding, Status
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import (
    CONTENT,
    NF4,
    findings,
    model_files,
    plan_for,
    state_bytes,
    write_model,
)

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 8,
    "intermediate_size": 6, "tie_word_embeddings": False,
}  # fmt: skip
SIDES: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj": (4, 4), "self_attn.k_proj": (2, 4), "self_attn.v_proj": (2, 4),
    "self_attn.o_proj": (4, 4), "mlp.gate_proj": (6, 4), "mlp.up_proj": (6, 4),
    "mlp.down_proj": (4, 6), "input_layernorm": (4,), "post_attention_layernorm": (4,),
}  # fmt: skip


def llama(**sides: tuple[int, ...]) -> dict[str, Any]:
    """Three layers; other sides by name, with two underscores for a dot, of the second one."""
    changed = {name.replace("__", "."): shape for name, shape in sides.items()}
    layers = {
        f"model.layers.{n}.{name}.weight": ("BF16", changed.get(name, shape) if n == 1 else shape)
        for n in range(3)
        for name, shape in SIDES.items()
    }
    tables = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ("BF16", (8, 4)))
    return {**layers, **tables, "model.norm.weight": ("BF16", (4,))}


def wide_heads() -> dict[str, Any]:
    """Two heads of 3, and 1 for keys and values."""
    sides = {"q_proj": (6, 4), "k_proj": (3, 4), "v_proj": (3, 4), "o_proj": (4, 6)}
    return llama() | {
        f"model.layers.{n}.self_attn.{name}.weight": ("BF16", shape)
        for n in range(3)
        for name, shape in sides.items()
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in llama().items() if key != name}


def said(folder: Path, tensors: dict[str, Any], change: dict[str, Any], **more: Any) -> Finding:
    files = model_files(tensors, **more)
    config = {**json.loads(files["config.json"]), **CONFIG, **change}
    files["config.json"] = json.dumps(config).encode()
    return findings(CHECKS, read_checkpoint(write_model(folder, files)), plan_for())[
        "checkpoint.layers"
    ]


@pytest.mark.parametrize(
    ("tensors", "change", "reason"),
    [
        (llama(mlp__up_proj=(6, 5)), {}, "says 4 hidden units, and model.layers.1.mlp.up_proj.wei"),
        (llama(mlp__down_proj=(5, 6)), {}, "model.layers.1.mlp.down_proj.weight has 5"),
        (llama(input_layernorm=(5,)), {}, "model.layers.1.input_layernorm.weight has 5"),
        (
            llama(self_attn__q_proj=(4, 5), self_attn__o_proj=(5, 4)), {},
            "q_proj.weight has 5, with 1 more of other sides",
        ),
        (llama(), {"intermediate_size": 7}, "an intermediate_size of 7, and the layers have 6"),
        (llama(), {"num_key_value_heads": 2}, "says 2 heads of 2 for keys and values (4 in all)"),
        (wide_heads(), {"num_key_value_heads": 2}, "says 2 heads of 3 for keys and values (6 in"),
        (llama(), {"head_dim": 4}, "says 1 heads of 4 for keys and values (4 in all), and the la"),
        (llama(mlp__up_proj=(5, 4)), {}, "the MLP of model.layers.1 is 5 and 6 wide"),
        (llama(mlp__gate_proj=(0, 4)), {}, "the MLP of model.layers.1 is 0 and 6 wide"),
        (llama(self_attn__q_proj=(3, 4)), {}, "layers.1 has 3 outputs for queries and 2 for keys"),
        (
            {**llama(), "lm_head.weight": ("BF16", (9, 4))}, {},
            "the head lm_head.weight is [9, 4], and the embeddings are [8, 4]",
        ),
        (without("model.norm.weight"), {}, "lack the norm behind the last layer (such as model.no"),
        (without("lm_head.weight"), {}, "lack the head (lm_head.weight)"),
        (without("model.embed_tokens.weight"), {}, "lack the token embeddings"),
        (
            {k: v for k, v in llama().items() if "layers" in k or "norm" in k}, {},
            "lack the token embeddings (no matrix has 8 rows)",
        ),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_told_by_their_sides(
    tmp_path: Path, tensors: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    finding = said(tmp_path, tensors, change)
    assert finding.status is Status.FAIL
    assert reason in finding.reason


@pytest.mark.parametrize(
    ("tensors", "change"),
    [
        (llama(), {}),
        # Gemma 4 doubles the MLPs of some layers.
        (llama(mlp__gate_proj=(12, 4), mlp__up_proj=(12, 4), mlp__down_proj=(4, 12)), {}),
        # Qwen3-Next's queries have a gate beside them; its linear layers have other heads.
        (llama(self_attn__q_proj=(8, 4)), {}),
        (llama(), {"num_key_value_heads": 2, "linear_num_key_heads": 1}),
        (llama(), {"intermediate_size": [6, 6, 6]}),
        # What is a family's own default goes unsaid in a text_config: Gemma 3's heads of 256.
        (wide_heads(), {"head_dim": None}),
        (wide_heads(), {"num_key_value_heads": None, "head_dim": None}),
        # One table for both, whoever says so.
        (without("lm_head.weight"), {"tie_word_embeddings": True}),
        (without("lm_head.weight"), {"text_config": {**CONFIG, "tie_word_embeddings": True}}),
        (without("lm_head.weight"), {"tie_word_embeddings": None}),
    ],
)
def test_sound_families_differ_in_these(
    tmp_path: Path, tensors: dict[str, Any], change: dict[str, Any]
) -> None:
    finding = said(tmp_path, tensors, change)
    assert finding.status is Status.PASS
    assert "3 layers" in finding.reason


@pytest.mark.parametrize(("columns", "status"), [(4, Status.PASS), (8, Status.FAIL)])
def test_a_packed_weight_has_the_sides_of_its_quant_state(
    tmp_path: Path, columns: int, status: Status
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    suffixes = [key.removeprefix("layer.weight") for key in CONTENT]
    content = {name + suffix: CONTENT["layer.weight" + suffix] for suffix in suffixes}
    state = f"{name}.quant_state.bitsandbytes__nf4"
    content[state] = state_bytes(shape=[6 * 4 // columns, columns])
    packed = {
        name: ("U8", (12, 1)), f"{name}.absmax": ("U8", (1,)), state: ("U8", (160,)),
        f"{name}.quant_map": ("F32", (16,)), f"{name}.nested_absmax": ("F32", (1,)),
        f"{name}.nested_quant_map": ("F32", (256,)),
    }  # fmt: skip
    finding = said(tmp_path, llama() | packed, {}, quantization=NF4, content=content)
    assert finding.status is status
