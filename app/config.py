"""The origin's constants and its `BootConfig`: what model is asked for.

A leaf: imports nothing of the app and nothing heavy. `app` re-exports all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BASE_MODEL_ID: str = "unsloth/gemma-3n-E2B-it"
MAX_SEQ_LENGTH: int = 4096
LORA_R: int = 16
LORA_ALPHA: int = 32
LORA_DROPOUT: float = 0.05
LORA_RANDOM_STATE: int = 3407
FINETUNE_VISION_LAYERS: bool = False
FINETUNE_LANGUAGE_LAYERS: bool = True
FINETUNE_ATTENTION_MODULES: bool = True
FINETUNE_MLP_MODULES: bool = True

HardwareT = Literal["v100", "h100"]
ALLOWED_HARDWARE: tuple[HardwareT, ...] = ("v100", "h100")

GradientCheckpointingT = Literal["unsloth"] | bool


@dataclass(frozen=True)
class ModelRequest:
    """The model and the adapter that a job asks for. Lengths are in tokens."""

    base_model_id: str = BASE_MODEL_ID
    max_seq_length: int = MAX_SEQ_LENGTH
    load_in_4bit: bool = True
    lora_r: int = LORA_R
    lora_alpha: int = LORA_ALPHA
    lora_dropout: float = LORA_DROPOUT
    lora_random_state: int = LORA_RANDOM_STATE
    finetune_vision_layers: bool = FINETUNE_VISION_LAYERS
    finetune_language_layers: bool = FINETUNE_LANGUAGE_LAYERS
    finetune_attention_modules: bool = FINETUNE_ATTENTION_MODULES
    finetune_mlp_modules: bool = FINETUNE_MLP_MODULES
    use_gradient_checkpointing: GradientCheckpointingT = "unsloth"


@dataclass(frozen=True)
class BootConfig(ModelRequest):
    """Arguments of `boot_gemma`."""

    hardware: HardwareT = "v100"
