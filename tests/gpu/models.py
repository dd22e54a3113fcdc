"""Tiny models on the device by transformers and PEFT alone, in the types that Unsloth would give.

So that the engine's proofs can be tried where Unsloth is not installed. Whole boots load by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.config import ModelRequest
from app.errors import BootError
from app.facts.checkpoint import CheckpointFacts
from app.plan import Plan, Resolved
from app.probes.safetensors import read_checkpoint
from app.profiles import Profile
from tests.tiny_models import Kind, tiny_model

TOKENS = 256
# The projections of the language model, in Gemma 3n too, whose towers name their stacks otherwise.
_TARGETS = r".*model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj"
# Quantised here, on the device, with nested scales as the engine asks for; the head stays.
_ON_THE_FLY = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_skip_modules": ["lm_head"],
}


@dataclass(frozen=True)
class Bare:
    """A model in evaluation mode without an adapter, and what its proofs want beside it."""

    model: Any
    tokenizer: Any
    plan: Plan
    checkpoint: CheckpointFacts


def folder_of(kind: Kind) -> Path:
    """The folder of a tiny model; a skip where this Python cannot build it."""
    try:
        return tiny_model(kind)
    except BootError as error:
        pytest.skip(error.finding.reason)


def plan_for(kind: Kind, profile: Profile, *, load_in_4bit: bool = True) -> Plan:
    """A plan that loads this kind on the subject."""
    folder = folder_of(kind)
    request = ModelRequest(
        base_model_id=str(folder),
        max_seq_length=TOKENS,
        load_in_4bit=load_in_4bit,
        lora_dropout=0.0,
        use_gradient_checkpointing=True,
    )
    resolved = Resolved(str(folder), None, folder, "a test's model")
    return Plan(profile, request, Path("reports"), resolved=resolved)


def bare(kind: Kind, profile: Profile, *, load_in_4bit: bool = True) -> Bare:
    """Load it on the profile's device; what is not packed in its file is packed here."""
    import torch
    from transformers import AutoModelForCausalLM, AutoProcessor, BitsAndBytesConfig

    from app.engine.loader import _align

    plan = plan_for(kind, profile, load_in_4bit=load_in_4bit)
    assert plan.resolved is not None
    folder = plan.resolved.folder
    checkpoint = read_checkpoint(folder)
    dtype = getattr(torch, profile.compute_dtype)
    pack = load_in_4bit and not checkpoint.packed
    how = BitsAndBytesConfig(bnb_4bit_compute_dtype=dtype, **_ON_THE_FLY) if pack else None
    # Given as None it would take the place of the file's own configuration.
    packing = {"quantization_config": how} if how else {}
    if not profile.needs_gpu:
        torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        device_map={"": 0 if profile.needs_gpu else profile.device},
        **packing,
    )
    # What a file was packed for gives way to what this device computes in.
    _align(model, profile)
    _keep_layout(model)
    return Bare(model.eval(), AutoProcessor.from_pretrained(folder), plan, checkpoint)


def _keep_layout(model: Any) -> None:
    """As Unsloth's CPU backend: bitsandbytes would repack weights in place on some processors."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def adapted(loaded: Bare) -> Any:
    """The model with a fresh adapter on every projection, and with gradient checkpointing."""
    from peft import LoraConfig, get_peft_model

    request = loaded.plan.request
    config = LoraConfig(
        r=request.lora_r,
        lora_alpha=request.lora_alpha,
        lora_dropout=request.lora_dropout,
        target_modules=_TARGETS,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(loaded.model, config)
    # Afterwards: before, PEFT makes the embeddings' output want gradients, into which Gemma 3n
    # writes in place.
    loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    return model
