"""How a training step is computed on a profile: autocast, gradient scaler, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from app.plan import Plan


@dataclass(frozen=True)
class Arithmetic:
    """How a step is computed. `autocast` None means none."""

    autocast: torch.dtype | None
    reason: str
    scaler: bool = False


def arithmetic(model: Any, plan: Plan) -> Arithmetic:
    """As the trainer of this profile computes.

    Unsloth's trainer (2026.10.9, `models/rl.py`) follows `model._unsloth_forced_float32`: fp16,
    bf16 and mixed precision off. Otherwise the compute dtype is autocast, float16 with a scaler.
    """
    dtype = plan.profile.compute_dtype
    if dtype == "float32":
        return Arithmetic(None, "float32 as it is")
    if dtype == "float16" and getattr(model, "_unsloth_forced_float32", False):
        return Arithmetic(None, "Unsloth's forced float32 path: no autocast, no scaler")
    scaler = dtype == "float16"
    reason = f"{dtype} autocast" + (" with a gradient scaler" if scaler else "")
    return Arithmetic(getattr(torch, dtype), reason, scaler)
