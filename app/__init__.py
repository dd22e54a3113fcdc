"""bootguard: boots a 4-bit LoRA fine-tuning model and proves that it is what was asked.

Importing this package imports neither torch nor unsloth.
"""

from __future__ import annotations

from app.config import (
    ALLOWED_HARDWARE,
    BASE_MODEL_ID,
    FINETUNE_ATTENTION_MODULES,
    FINETUNE_LANGUAGE_LAYERS,
    FINETUNE_MLP_MODULES,
    FINETUNE_VISION_LAYERS,
    LORA_ALPHA,
    LORA_DROPOUT,
    LORA_R,
    LORA_RANDOM_STATE,
    MAX_SEQ_LENGTH,
    BootConfig,
    HardwareT,
)
from app.errors import BootError
from app.gemma import boot_gemma
from app.slippage import (
    BF16SlippageError,
    FP16SlippageError,
    assert_dtype_for_hardware,
    assert_fp16_dtype,
)
from app.version import __version__

__all__ = [
    "ALLOWED_HARDWARE",
    "BASE_MODEL_ID",
    "FINETUNE_ATTENTION_MODULES",
    "FINETUNE_LANGUAGE_LAYERS",
    "FINETUNE_MLP_MODULES",
    "FINETUNE_VISION_LAYERS",
    "LORA_ALPHA",
    "LORA_DROPOUT",
    "LORA_R",
    "LORA_RANDOM_STATE",
    "MAX_SEQ_LENGTH",
    "BF16SlippageError",
    "BootConfig",
    "BootError",
    "FP16SlippageError",
    "HardwareT",
    "__version__",
    "assert_dtype_for_hardware",
    "assert_fp16_dtype",
    "boot_gemma",
]
