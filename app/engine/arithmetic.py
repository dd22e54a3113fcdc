"""How a training step is computed on a profile, and what it means when computing one raises."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.blame import blamed
from app.errors import BootError
from app.outcome import Fault
from app.plan import Plan

_APP = Path(__file__).resolve().parent.parent
# Words of the errors by which torch hands on what the driver or a library on the device said.
_OF_THE_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN", "CUBLAS", "CUSPARSE", "NCCL")


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
    if dtype == "float32" and _unpacked_experts(model):
        return Arithmetic(torch.bfloat16, "bfloat16 autocast: experts were unpacked to bfloat16")
    if dtype == "float32":
        return Arithmetic(None, "float32 as it is")
    if dtype == "float16" and getattr(model, "_unsloth_forced_float32", False):
        return Arithmetic(None, "Unsloth's forced float32 path: no autocast, no scaler")
    scaler = dtype == "float16"
    reason = f"{dtype} autocast" + (" with a gradient scaler" if scaler else "")
    return Arithmetic(getattr(torch, dtype), reason, scaler)


def _unpacked_experts(model: Any) -> bool:
    """Whether fused experts are bfloat16 in a model of float32 embeddings.

    Packed experts that transformers fuses are unpacked to their quant state's dtype, and Unsloth's
    CPU backend makes the rest float32: the two do not multiply (Mixtral, transformers 5.17).
    """
    wide = model.get_input_embeddings().weight.dtype is torch.float32
    return wide and any(
        p.ndim == 3 and p.dtype is torch.bfloat16  # noqa: PLR2004 - expert, row, column
        for p in model.parameters()
    )


def computing(how: Arithmetic, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward pass: the trainer's autocast, or nothing."""
    return torch.autocast(device.type, dtype=how.autocast) if how.autocast else nullcontext()


@contextmanager
def stepping() -> Iterator[None]:
    """Around what computes steps: an error of the model's own code becomes a finding.

    Dtypes, shapes and configurations that do not fit raise these types, on every node alike. What
    the device says, want of memory, and what raises in our own code go on as they are.
    """
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        known = of_the_device(error) or blamed(error) is not None
        if known or _APP in Path(place.filename).resolve().parents:
            raise
        raise BootError(
            f"a training step of this model fails: {type(error).__name__}: {error}",
            fault=Fault.PRECISION,
            expected="a forward and a backward pass on finite weights",
            actual=f"raised in {place.name} ({place.filename}:{place.lineno})",
            source="one batch of a training step's length",
            next_step="check that config.json fits the weights, and that this version of "
            "transformers and Unsloth can train the architecture",
        ) from error


def of_the_device(error: Exception) -> bool:
    """Whether the driver, a library on the device, or the allocator of its memory said it."""
    # An illegal access or a lost device; no memory.
    classes = torch.AcceleratorError, torch.OutOfMemoryError
    return isinstance(error, classes) or any(word in str(error) for word in _OF_THE_DEVICE)
