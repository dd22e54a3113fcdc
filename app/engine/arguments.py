"""The keyword arguments that a request becomes. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from app.config import ModelRequest


def adapter_arguments(request: ModelRequest) -> dict[str, Any]:
    """Keyword arguments of `FastModel.get_peft_model`, values passed through as given."""
    return {
        "r": request.lora_r,
        "lora_alpha": request.lora_alpha,
        "lora_dropout": request.lora_dropout,
        "finetune_vision_layers": request.finetune_vision_layers,
        "finetune_language_layers": request.finetune_language_layers,
        "finetune_attention_modules": request.finetune_attention_modules,
        "finetune_mlp_modules": request.finetune_mlp_modules,
        "use_gradient_checkpointing": request.use_gradient_checkpointing,
        "random_state": request.lora_random_state,
    }
