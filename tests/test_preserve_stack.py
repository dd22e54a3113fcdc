"""What the steps touch is put back, and the look that says so sees each of those things."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.plan import Plan
from tests.shadow_cuda import in_own_process
from tests.stack_models import adapted, plan_for

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Any, Plan]:
    plan = plan_for("llama-nf4")
    return *adapted(plan), plan


def trained_of(model: Any) -> list[Any]:
    from app.engine.adapter import lora_parameters

    return [matrix for pair in lora_parameters(model).values() for matrix in pair]


def _adapter(model: Any) -> None:
    trained_of(model)[3].data.view(-1)[1] += 1e-6


def _frozen(model: Any) -> None:
    trained_of(model)[3].requires_grad_(requires_grad=False)


def _gradient(model: Any) -> None:
    trained_of(model)[3].grad = trained_of(model)[3].detach().clone()


def _mode(model: Any) -> None:
    norm = model.get_base_model().model.norm
    norm.training = not norm.training


def _checkpointing(model: Any) -> None:
    model.get_base_model().model.layers[1].gradient_checkpointing = False


def _buffer(model: Any) -> None:
    model.get_base_model().model.rotary_emb.inv_freq.mul_(2)


def _other_buffer(model: Any) -> None:
    rotary = model.get_base_model().model.rotary_emb
    rotary.register_buffer("inv_freq", rotary.inv_freq * 2, persistent=False)


def _switched_off(model: Any) -> None:
    model.get_base_model().model.layers[0].mlp.up_proj._disable_adapters = True


def _length(model: Any) -> None:
    """A rotary embedding that has grown its table, which its buffer goes with."""
    model.get_base_model().model.rotary_emb.max_seq_len_cached = 99999


def _cache(model: Any) -> None:
    config = model.config.get_text_config()
    config.use_cache = not config.use_cache


def _no_cache(model: Any) -> None:
    """As Unsloth's `restore_use_cache` does with a configuration that had none."""
    del vars(model.config)["use_cache"]


def _generation_config(model: Any) -> None:
    model.generation_config.max_length = 7


def _padding(model: Any) -> None:
    tokenizer = model.get_base_model()._saved_temp_tokenizer
    tokenizer.padding_side = "left" if tokenizer.padding_side == "right" else "right"


def _flag(model: Any) -> None:
    model.get_base_model()._flag_for_generation = True


def _python(_model: Any) -> None:
    random.random()  # noqa: S311 - the state is what counts


def _numpy(_model: Any) -> None:
    np.random.rand()  # noqa: NPY002 - the global generator is what a trainer uses


def _torch(_model: Any) -> None:
    import torch

    torch.rand(1)


TOUCHED: dict[str, Callable[[Any], None]] = {
    "bytes of": _adapter,
    "requires_grad of": _frozen,
    "gradient of": _gradient,
    "training of model.norm": _mode,
    "gradient_checkpointing of model.layers.1": _checkpointing,
    "bytes of model.rotary_emb.inv_freq": _buffer,
    "bytes of model.rotary_emb.inv_freq ": _other_buffer,
    "_disable_adapters of model.layers.0.mlp.up_proj": _switched_off,
    "max_seq_len_cached of model.rotary_emb": _length,
    "use_cache of LlamaConfig": _cache,
    "use_cache of LlamaConfig ": _no_cache,
    "max_length of GenerationConfig": _generation_config,
    "padding_side of": _padding,
    "_flag_for_generation of": _flag,
    "generator of Python": _python,
    "generator of numpy": _numpy,
    "generator of torch": _torch,
}


@pytest.mark.parametrize("name", TOUCHED)
def test_each_thing_is_seen_and_put_back(llama: tuple[Any, Any, Plan], name: str) -> None:
    model = llama[0]
    from app.engine.preserve import condition, differing, preserved

    trained = trained_of(model)
    before = condition(model, trained)
    with preserved(model, trained):
        TOUCHED[name](model)
        seen = differing(before, condition(model, trained))
    assert seen
    assert all(each.startswith(name.strip()) for each in seen)
    assert differing(before, condition(model, trained)) == ()


def test_a_look_finds_nothing_where_nothing_was_done(llama: tuple[Any, Any, Plan]) -> None:
    model = llama[0]
    from app.engine.preserve import condition, differing

    trained = trained_of(model)
    assert differing(condition(model, trained), condition(model, trained)) == ()


@pytest.mark.slow
def test_unsloths_turn_to_inference_is_taken_back() -> None:
    """Its generate on a GPU turns the model around and leaves it so. The real code, on the host."""
    changed, left = in_own_process("shadow_inference", "v100")
    told = {name.partition(" of ")[0] for name in changed}
    assert told >= {"training", "gradient_checkpointing", "_flag_for_generation", "use_cache"}
    assert left == []


def test_the_type_that_a_layer_computes_in_is_left_to_the_census(
    llama: tuple[Any, Any, Plan],
) -> None:
    """bitsandbytes may change it in a forward pass; put back, no census would see it."""
    model = llama[0]
    import torch

    from app.engine.preserve import preserved

    layer = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    kept = layer.compute_dtype
    try:
        with preserved(model, trained_of(model)):
            layer.compute_dtype = torch.float64
        assert layer.compute_dtype is torch.float64
    finally:
        layer.compute_dtype = kept


def test_the_adapter_can_be_put_back_before_the_rest(llama: tuple[Any, Any, Plan]) -> None:
    model = llama[0]
    import torch

    from app.engine.preserve import preserved

    trained = trained_of(model)
    first = trained[0].detach().clone()
    with preserved(model, trained) as put_back:
        with torch.no_grad():
            trained[0].fill_(float("nan"))
        put_back()
        assert torch.equal(trained[0], first)
