"""Hand-made censuses: a healthy one for each profile, and parts to break it with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.checks import precision
from app.config import ModelRequest
from app.facts.census import Census, PackedFate, PackedLayer, QuantState, TensorFacts
from app.plan import Plan
from app.profiles import Profile

LAYER = "model.layers.0.mlp.up_proj"


def plan_for(profile: Profile, *, load_in_4bit: bool = True) -> Plan:
    return Plan(profile, ModelRequest(load_in_4bit=load_in_4bit), Path("reports"))


def home(profile: Profile) -> str:
    return "cuda:0" if profile.needs_gpu else profile.device


def tensor(profile: Profile, name: str, dtype: str, **changes: object) -> TensorFacts:
    made = TensorFacts(name, "parameter", "other", dtype, home(profile), 4)
    return replace(made, **changes)  # type: ignore[arg-type]


def layer(profile: Profile, **changes: object) -> PackedLayer:
    dtype = profile.quant_dtypes[0]
    made = PackedLayer(
        name=LAYER,
        linear=True,
        weight_dtype="uint8",
        numel=8,
        features=16,
        quant_storage="uint8",
        compute_dtype=dtype,
        state=QuantState(dtype, "nf4", 64, nested=True, absmax_dtype="uint8", shape=(4, 4)),
        projection=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def healthy(profile: Profile) -> Census:
    return Census(
        tensors=(
            tensor(profile, "model.embed_tokens.weight", profile.compute_dtype),
            tensor(profile, "model.norm.weight", "float32", category="norm"),
            tensor(profile, f"{LAYER}.weight", "uint8", category="packed"),
            tensor(profile, f"{LAYER}.lora_A.weight", "float32", category="lora"),
            tensor(profile, "model.bn.num_batches_tracked", "int64", kind="buffer"),
        ),
        packed=(layer(profile),),
        fates=(PackedFate(f"{LAYER}.weight", "linear4bit", nested=True, projection=True),),
        checkpoint_packs=True,
        model_dtype=profile.compute_dtype,
        families=("llama",),
        force_float32=("gemma3n", "gemma3,"),
    )


def broken(census: Census, plan: Plan) -> dict[str, str]:
    """Checks that block, and what they say."""
    found = {check.id: check.judge(census, plan) for check in precision.CHECKS}
    return {name: each.reason for name, each in found.items() if each.status.blocks}


def state_of(profile: Profile, **changes: object) -> QuantState:
    state = layer(profile).state
    assert state is not None
    return replace(state, **changes)  # type: ignore[arg-type]
