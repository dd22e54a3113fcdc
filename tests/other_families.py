"""Tiny models of families that the product never names: the rules must hold for them as they are.

Gemma 3 has a vision tower and, under older keys, a renaming on load; Qwen3-MoE, one of
`tests.tiny_models`, has routers and experts that transformers 5 fuses into one parameter. Built in
the child process that boots them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.broken_files import copy, rewrite
from tests.tiny_models import SIZES, tiny_model

_TEXT: dict[str, Any] = {**SIZES, "head_dim": 32}


def gemma3(folder: Path) -> Path:
    """Gemma 3 with its SigLIP tower, bfloat16."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    config = Gemma3Config(text_config=_TEXT, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    return _saved(Gemma3ForConditionalGeneration(config), folder)


def gemma3_renamed(folder: Path) -> Path:
    """The same in NF4, under the keys of transformers 4: renamed on load."""
    from app.engine.tiny import quantise

    plain = gemma3(folder.with_name(f"{folder.name}-plain"))
    quantise(plain, folder, ["lm_head", "model.vision_tower", "model.multi_modal_projector"])
    _tokenizer(folder)

    def rename(tensors: dict[str, Any]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("model.")] = tensors.pop(key)

    rewrite(folder, rename)
    return folder


def qwen3_moe(folder: Path) -> Path:
    """Qwen3-MoE with four experts, bfloat16."""
    return copy(tiny_model("qwen3moe-bf16"), folder)


def qwen2_vl(folder: Path) -> Path:
    """Qwen2-VL, which only the auto class for images and text knows, bfloat16."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {"depth": 1, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "patch_size": 8}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    config = Qwen2VLConfig(text_config=SIZES | {"rope_parameters": rope}, vision_config=vision)
    torch.manual_seed(0)
    return _saved(Qwen2VLForConditionalGeneration(config), folder)


def _saved(model: Any, folder: Path) -> Path:
    import torch

    model.to(torch.bfloat16).save_pretrained(folder)
    _tokenizer(folder)
    return folder


def _tokenizer(folder: Path) -> None:
    for file in tiny_model("llama-bf16").glob("*token*"):
        shutil.copy(file, folder)
    shutil.copy(tiny_model("llama-bf16") / "chat_template.jinja", folder)


FAMILIES = {
    "gemma3": gemma3,
    "gemma3 renamed": gemma3_renamed,
    "qwen3 moe": qwen3_moe,
    "qwen2 vl": qwen2_vl,
}
