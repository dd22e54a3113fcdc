"""The training batch: what the tokenizer has, and what is done where it has not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from app.plan import Plan
from tests.stack_models import load, plan_for

pytestmark = pytest.mark.stack
TEXT = {"text"}
IMAGE = {"text", "image"}


@pytest.fixture(scope="module")
def gemma() -> tuple[Any, Any, Plan]:
    plan = plan_for("gemma3n-nf4")
    return *load(plan), plan


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Any, Plan]:
    plan = plan_for("llama-nf4")
    return *load(plan), plan


def test_the_chat_is_cut_to_the_batchs_length_and_starts_a_turn(
    llama: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = llama
    from app.engine.batch import make

    batch = make(model, tokenizer, plan, TEXT)
    assert (batch.n_tokens, batch.modalities, batch.notes) == (256, ("text",), ())
    assert batch.n_supervised == 255
    start = tokenizer.decode(batch.inputs["input_ids"][0, :2])
    assert start == "<s><|user|>"


def test_a_short_context_bounds_it(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    from app.engine.batch import make

    short = replace(plan, request=replace(plan.request, max_seq_length=32))
    assert make(model, tokenizer, short, TEXT).n_tokens == 32


def at_length(plan: Plan, tokens: int, step_tokens: int | None = None) -> Plan:
    """As a profile whose steps have the length that is asked for, or this one."""
    profile = replace(plan.profile, step_tokens=step_tokens)
    return replace(plan, profile=profile, request=replace(plan.request, max_seq_length=tokens))


@pytest.mark.parametrize(
    ("asked", "step_tokens", "expected"),
    [(1500, None, 1500), (1500, 700, 700), (500, 700, 500), (99999, None, 2048)],
)
def test_its_length_is_the_longest_that_profile_request_and_model_allow(
    llama: tuple[Any, Any, Plan], asked: int, step_tokens: int | None, expected: int
) -> None:
    model, tokenizer, plan = llama
    from app.engine.batch import make

    batch = make(model, tokenizer, at_length(plan, asked, step_tokens), TEXT)
    assert (batch.n_tokens, batch.notes) == (expected, ())


def test_a_long_batch_has_the_media_and_an_answer_that_fills_it(
    gemma: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = gemma
    from app.engine.batch import make

    batch = make(model, tokenizer, at_length(plan, 900), {"text", "image", "audio"})
    assert (batch.n_tokens, batch.modalities, batch.notes) == (900, ("text", "image", "audio"), ())
    ids = batch.inputs["input_ids"]
    assert int((ids == model.config.image_token_id).sum()) == 4
    assert ids.shape == batch.inputs["labels"].shape == batch.inputs["attention_mask"].shape


def test_a_prompt_ends_where_the_template_opens_the_answer(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    from app.engine.batch import prompt

    inputs, note = prompt(model, tokenizer, plan)
    assert note == ""
    assert tokenizer.decode(inputs["input_ids"][0]).endswith("<|assistant|>")
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape


def test_a_prompt_of_another_models_tokenizer_is_seeded_ids(
    llama: tuple[Any, Any, Plan], gemma: tuple[Any, Any, Plan]
) -> None:
    model, _, plan = llama
    from app.engine.batch import prompt

    inputs, note = prompt(model, gemma[1], plan)
    assert int(inputs["input_ids"].max()) < model.get_input_embeddings().weight.shape[0]
    assert "exceed" in note


def test_it_is_the_same_each_time_and_draws_from_no_global_generator(
    gemma: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = gemma
    import torch

    from app.engine.batch import make

    states = random.getstate(), bytes(torch.get_rng_state().numpy())
    first, second = (make(model, tokenizer, plan, IMAGE) for _ in range(2))
    assert states == (random.getstate(), bytes(torch.get_rng_state().numpy()))
    assert first.inputs.keys() == second.inputs.keys()
    assert all(torch.equal(value, second.inputs[name]) for name, value in first.inputs.items())


def test_an_image_is_in_it_and_its_tokens_are_no_target(gemma: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = gemma
    from app.engine.batch import make

    batch = make(model, tokenizer, plan, IMAGE)
    assert batch.modalities == ("text", "image")
    assert batch.inputs["pixel_values"].dtype == model.dtype
    ids, labels = batch.inputs["input_ids"], batch.inputs["labels"]
    assert int((ids == model.config.image_token_id).sum()) == 4
    assert not (labels == model.config.image_token_id).any()
    assert not (labels == model.config.boi_token_id).any()
    assert (labels != -100).any()


@pytest.mark.parametrize("wanted", [IMAGE, {"text", "audio"}])
def test_a_modality_without_a_processor_is_left_out_with_a_note(
    gemma: tuple[Any, Any, Plan], wanted: set[str]
) -> None:
    model, tokenizer, plan = gemma
    from app.engine.batch import make

    batch = make(model, tokenizer, replace(plan, resolved=None), wanted)
    assert batch.modalities == ("text",)
    assert "processor has no" in batch.notes[0]


def test_an_image_that_does_not_fit_is_left_out_with_a_note(gemma: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = gemma
    from app.engine.batch import make

    tight = replace(plan, request=replace(plan.request, max_seq_length=64))
    batch = make(model, tokenizer, tight, IMAGE)
    assert (batch.modalities, batch.n_tokens) == (("text",), 64)
    assert "needs more than 64 tokens" in batch.notes[0]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "the tokenizer has no chat template"),
        ("{{ raise_exception('no') }}", "the chat template fails: TemplateError"),
        ("{% for x in range(10**12) %}{% endfor %}", "the chat template fails: OverflowError"),
        ("{{ 1 / 0 }}", "the chat template fails: ZeroDivisionError"),
        ("{{ messages + 1 }}", "the chat template fails: TypeError"),
        ("{% if %}", "the chat template fails: TemplateSyntaxError"),
        ("hello", "the chat template drops what is said"),
    ],
)
def test_without_a_usable_template_it_is_plain_text(
    llama: tuple[Any, Any, Plan], template: str | None, why: str
) -> None:
    model, tokenizer, plan = llama
    from app.engine.batch import make

    kept, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        batch = make(model, tokenizer, plan, TEXT)
    finally:
        tokenizer.chat_template = kept
    assert batch.n_tokens == 256
    assert batch.notes[0].startswith(f"plain text, no chat: {why}")


def test_an_error_outside_the_template_is_no_matter_of_the_templates() -> None:
    from app.engine.chat import chat

    class Broken:
        chat_template = "{{ messages }}"

        def apply_chat_template(self, *_args: Any, **_options: Any) -> str:
            raise TypeError

    with pytest.raises(TypeError):
        chat(Broken(), 1)


@pytest.mark.parametrize(("n", "why"), [(0, "are 0"), (1, "are 1"), (2, "")])
def test_a_tokenizer_that_makes_nothing_of_a_text_is_not_trained_on(n: int, why: str) -> None:
    import torch

    from app.engine.batch import _unusable

    ids = torch.zeros((1, n), dtype=torch.long)
    assert _unusable(ids, 8).startswith(why)
    assert _unusable(ids, 8, frozenset({0}))


def test_ids_beyond_the_embeddings_are_replaced(
    llama: tuple[Any, Any, Plan], gemma: tuple[Any, Any, Plan]
) -> None:
    """A tokenizer of another model: on a GPU it would be a device-side assert."""
    model, _, plan = llama
    from app.engine.batch import make

    batch = make(model, gemma[1], plan, TEXT)
    assert int(batch.inputs["input_ids"].max()) < model.get_input_embeddings().weight.shape[0]
    assert "exceed" in batch.notes[-1]
