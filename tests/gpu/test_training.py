"""Training steps, headroom, memory and a generation on this device, healthy and broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.checks import numerics
from app.exits import ExitCode
from app.facts.numerics import NumericsFacts
from tests.gpu.models import Bare, adapted, bare
from tests.gpu.subject import Subject
from tests.gpu.verdicts import amiss, exits
from tests.tiny_models import Kind

pytestmark = pytest.mark.stack

# Packed in the file and packed here; tied embeddings and biases, and nothing packed at all.
MODELS: Mapping[Kind, bool] = {
    "gemma3n-nf4": True,
    "llama-nf4": True,
    "llama-bf16": True,
    "qwen-bf16": False,
}


def proven(loaded: Bare) -> NumericsFacts:
    from app.engine import numerics as engine

    return engine.run(loaded.model, loaded.tokenizer, loaded.plan, loaded.checkpoint)


def ready(kind: Kind, subject: Subject, *, load_in_4bit: bool = True) -> Bare:
    loaded = bare(kind, subject.profile, load_in_4bit=load_in_4bit)
    return replace(loaded, model=adapted(loaded))


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_trains_as_this_profiles_trainer_would(
    kind: Kind, subject: Subject, told: list[str]
) -> None:
    """Every check of the stage passes: numbers, gradients, memory's forecast, no trace left."""
    loaded = ready(kind, subject, load_in_4bit=MODELS[kind])
    facts = proven(loaded)
    assert amiss(numerics.CHECKS, facts, loaded.plan) == {}
    steps, room, said = facts.steps, facts.headroom, facts.generation
    assert steps is not None
    assert room is not None
    assert said is not None
    assert len(steps.losses) == loaded.plan.steps
    assert said.tokens
    assert all(map(math.isfinite, said.largest))
    assert room.forward
    assert room.backward
    worst = min((*room.forward, *room.backward), key=lambda each: each.bits)
    assert math.isfinite(worst.value)
    memory = steps.memory
    told.append(
        f"{kind}: {steps.arithmetic}; {steps.tokens_per_s or 0:.0f} tokens/s; peak "
        f"{memory.peak} bytes, forecast {memory.low} to {memory.high}; {worst.bits:.1f} bits below "
        f"float16's largest number in {worst.name} ({worst.module_class})"
    )


def _infinite_weight(model: Any) -> None:
    import torch

    norm = model.get_base_model().model.layers[1].input_layernorm
    with torch.no_grad():
        norm.weight[3] = math.inf


def _infinite_scale(model: Any) -> None:
    model.get_base_model().model.layers[0].mlp.up_proj.weight.quant_state.state2.absmax[0] = (
        math.nan
    )


def _loss(model: Any) -> None:
    layer = model.get_base_model().model.layers[1]
    layer.register_forward_hook(lambda _module, _inputs, output: output * math.nan)


def _gradient(model: Any) -> None:
    from app.engine.adapter import lora_parameters

    pair = lora_parameters(model)["model.layers.1.mlp.up_proj"]
    pair[1].register_hook(lambda gradient: gradient * math.nan)


def _cut(model: Any) -> None:
    layer = model.get_base_model().model.layers[0]
    layer.register_forward_hook(lambda _module, _inputs, output: output.detach())


def _moved(model: Any) -> None:
    norm = model.get_base_model().model.norm

    def write(module: Any, _inputs: Any) -> None:
        if module.training:
            module.weight.data.mul_(1.01)

    norm.register_forward_pre_hook(write)


# What is broken, and the check that must name it with its exit status.
BROKEN: Mapping[str, tuple[Callable[[Any], None], str, ExitCode]] = {
    "an infinite weight": (_infinite_weight, "weights_finite", ExitCode.NUMERICS),
    "a scale that is no number": (_infinite_scale, "weights_finite", ExitCode.NUMERICS),
    "a loss that is no number": (_loss, "loss_finite", ExitCode.NUMERICS),
    "a gradient that is no number": (_gradient, "gradients_finite", ExitCode.NUMERICS),
    "a layer without gradient": (_cut, "gradient_reaches_every_pair", ExitCode.PRECISION),
    "a base that moves": (_moved, "nothing_else_moved", ExitCode.PRECISION),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_on_the_device_is_named(case: str, subject: Subject) -> None:
    loaded = ready("llama-nf4", subject)
    breaking, check, code = BROKEN[case]
    breaking(loaded.model)
    found = exits(numerics.CHECKS, proven(loaded), loaded.plan)
    assert found[f"numerics.{check}"] == code
