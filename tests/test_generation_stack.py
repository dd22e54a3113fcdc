"""Greedy tokens of real tiny models: healthy, broken, and where a model cannot generate at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.checks.numerics import CHECKS
from app.facts.numerics import NumericsFacts
from app.outcome import Fault, Status
from app.plan import Plan
from tests.stack_models import adapted, failing, plan_for

pytestmark = pytest.mark.stack


@pytest.fixture
def llama() -> tuple[Any, Any, Plan]:
    plan = plan_for("llama-nf4")
    return *adapted(plan), plan


def run(model: Any, tokenizer: Any, plan: Plan) -> NumericsFacts:
    from app.engine import numerics

    return numerics.run(model, tokenizer, plan)


def broken(facts: NumericsFacts, plan: Plan) -> dict[str, tuple[Status, Fault | None]]:
    found = failing(CHECKS, facts, plan).items()
    return {n: (f.status, f.fault) for n, f in found if n != "numerics.memory_as_forecast"}


def test_a_row_that_is_no_number_with_the_cache_alone_is_caught(
    llama: tuple[Any, Any, Plan],
) -> None:
    """The path of single tokens is another one than the training's."""
    model, tokenizer, plan = llama

    def single(_module: Any, inputs: Any, output: Any) -> Any:
        return output * float("nan") if inputs[0].shape[1] == 1 and not _module.training else output

    model.get_base_model().model.layers[1].mlp.register_forward_hook(single)
    facts = run(model, tokenizer, plan)
    assert broken(facts, plan) == {"numerics.generation": (Status.FAIL, Fault.NUMERICS)}


def test_a_cache_is_used(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    from app.engine.arithmetic import arithmetic
    from app.engine.generation import generate

    rows: list[int] = []
    model.get_base_model().lm_head.register_forward_pre_hook(
        lambda _module, inputs: rows.append(inputs[0].shape[1])
    )
    said = generate(model, tokenizer, plan, arithmetic(model, plan))
    assert len(said.tokens) == len(said.largest) == len(rows)
    assert set(rows[1:]) <= {1}


@pytest.mark.parametrize(
    "asked",
    [
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4, "num_return_sequences": 2},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"stop_strings": ["abc"]},
    ],
    ids=["samples", "beams", "contrastive search", "stop strings"],
)
def test_it_is_greedy_whatever_the_checkpoint_asks_for(
    llama: tuple[Any, Any, Plan], asked: dict[str, Any]
) -> None:
    """transformers 5.17 refuses all but the beams, each for another reason."""
    model, tokenizer, plan = llama
    from app.engine.arithmetic import arithmetic
    from app.engine.generation import generate

    how = arithmetic(model, plan)
    usual = generate(model, tokenizer, plan, how)
    rows: list[int] = []
    model.get_base_model().lm_head.register_forward_pre_hook(
        lambda _module, inputs: rows.append(inputs[0].shape[0])
    )
    for name, value in asked.items():
        setattr(model.generation_config, name, value)
    said = generate(model, tokenizer, plan, how)
    assert (said.problem, said.tokens, set(rows)) == ("", usual.tokens, {1})


def raising(model: Any, error: Exception) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise error

    model.generate = refuse


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("no cache"),
        TypeError("unexpected argument"),
        AttributeError("no prepare_inputs_for_generation"),
        KeyError("past_key_values"),
        AssertionError("batch"),
    ],
)
def test_a_model_that_cannot_generate_is_trained_all_the_same(
    llama: tuple[Any, Any, Plan], error: Exception
) -> None:
    model, tokenizer, plan = llama
    raising(model, error)
    facts = run(model, tokenizer, plan)
    assert broken(facts, plan) == {"numerics.generation": (Status.WARN, None)}
    assert facts.generation is not None
    assert type(error).__name__ in facts.generation.problem


def test_a_device_that_fails_or_is_full_while_generating_goes_on_as_it_is(
    llama: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = llama
    import torch

    raising(model, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="CUDA error"):
        run(model, tokenizer, plan)
    raising(model, torch.OutOfMemoryError("out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        run(model, tokenizer, plan)


def test_broken_steps_are_not_followed_by_a_generation(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    model.get_base_model().model.norm.register_forward_hook(
        lambda _module, _inputs, output: output * float("inf")
    )
    facts = run(model, tokenizer, plan)
    assert facts.generation is None
    assert broken(facts, plan)["numerics.generation"][0] is Status.SKIP


def test_without_a_chat_template_it_says_plain_text(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    tokenizer.chat_template = None
    facts = run(model, tokenizer, plan)
    assert facts.generation is not None
    assert facts.generation.note == "plain text, no chat: the tokenizer has no chat template"
    assert 1 <= len(facts.generation.tokens) <= 8


def test_the_tokens_are_those_of_the_trained_adapter(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    from app.engine.arithmetic import arithmetic
    from app.engine.generation import generate

    before = generate(model, tokenizer, plan, arithmetic(model, plan))
    after = run(model, tokenizer, replace(plan, steps=3)).generation
    assert after is not None
    assert before.largest != after.largest
