"""Fingerprints of real tiny models: what moves them, and what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from app.checks.fingerprint import CHECKS
from app.facts.fingerprint import FingerprintFacts
from app.outcome import Fault, Status
from app.plan import Plan
from tests.stack_models import adapted, failing, load, plan_for
from tests.tiny_models import Kind

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parent.parent
PLAN = plan_for("gemma3n-nf4")


def take(model: Any, plan: Plan = PLAN) -> FingerprintFacts:
    from app.engine import fingerprint

    return fingerprint.take(model, plan)


def both(facts: FingerprintFacts) -> tuple[str, str]:
    return facts.weights, facts.logits


@contextmanager
def flipped(tensor: torch.Tensor, bit: int = 0, place: int = 0) -> Iterator[None]:
    """One bit of one byte, in place."""
    import torch

    raw = tensor.detach().view(-1).view(torch.uint8)
    raw[place] ^= 1 << bit
    try:
        yield
    finally:
        raw[place] ^= 1 << bit


@pytest.fixture(scope="module")
def gemma() -> tuple[Any, Any]:
    return adapted(PLAN)


@pytest.fixture(scope="module")
def healthy(gemma: tuple[Any, Any]) -> FingerprintFacts:
    return take(gemma[0])


def base(model: Any) -> Any:
    return model.get_base_model().model


def up_proj(model: Any) -> Any:
    return base(model).language_model.layers[0].mlp.up_proj.weight


def state(model: Any) -> Any:
    return up_proj(model).quant_state


TENSORS: dict[str, Callable[[Any], Any]] = {
    "a packed weight": up_proj,
    "its scales": lambda model: state(model).absmax,
    "the scales of its scales": lambda model: state(model).state2.absmax,
    "its code": lambda model: state(model).code,
    "the code of its scales": lambda model: state(model).state2.code,
    "its offset": lambda model: state(model).offset,
    "a norm": lambda model: base(model).language_model.norm.weight,
    "the embedding": lambda model: base(model).language_model.embed_tokens.weight,
    "a persistent buffer": lambda model: base(model).vision_tower.timm_model.bn1.running_var,
    "the audio tower": lambda model: (
        base(model).audio_tower.conformer[0].lconv1d.linear_start.weight
    ),
}


@pytest.mark.parametrize("what", TENSORS)
def test_any_flipped_bit_is_another_digest_of_the_weights(
    gemma: tuple[Any, Any], healthy: FingerprintFacts, what: str
) -> None:
    from app.engine.weights import digest

    model, _ = gemma
    tensor = TENSORS[what](model)
    seen = {healthy.weights}
    places = [(bit, place) for bit in (0, 7) for place in (0, tensor.nbytes - 1)]
    for bit, place in places:
        with flipped(tensor, bit, place):
            seen.add(digest(model)[0])
    assert len(seen) == 1 + len(places)
    assert digest(model)[0] == healthy.weights


@pytest.mark.parametrize(
    "what", ["quant_type", "blocksize", "dtype", "shape", "state2.blocksize", "state2.dtype"]
)
def test_how_a_weight_is_unpacked_is_part_of_the_digest(
    gemma: tuple[Any, Any], healthy: FingerprintFacts, what: str
) -> None:
    from app.engine.weights import digest

    model, _ = gemma
    holder = state(model).state2 if what.startswith("state2") else state(model)
    name = what.removeprefix("state2.")
    kept = getattr(holder, name)
    setattr(holder, name, "something else")
    try:
        assert digest(model)[0] != healthy.weights
    finally:
        setattr(holder, name, kept)
    assert digest(model)[0] == healthy.weights


def test_exchanged_rows_are_another_digest(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    import torch

    from app.engine.weights import digest

    model, _ = gemma
    rows = base(model).language_model.embed_tokens.weight.data
    kept = rows[:2].clone()
    rows[:2] = torch.flip(kept, (0,))
    try:
        assert digest(model)[0] != healthy.weights
    finally:
        rows[:2] = kept


@pytest.mark.parametrize("kind", ["gemma3n-nf4", "llama-nf4", "qwen3moe-bf16"])
def test_two_processes_have_equal_fingerprints(kind: Kind) -> None:
    """The child has torch's own number of threads, this process one."""
    code = (
        "import json, sys, torch\n"
        "from tests.stack_models import adapted, plan_for\n"
        "plan = plan_for(sys.argv[1])\n"
        "model, _ = adapted(plan)\n"
        "torch.set_num_threads(2)\n"
        "from app.engine.fingerprint import take\n"
        "facts = take(model, plan)\n"
        "print(json.dumps([facts.weights, facts.logits, facts.key]))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, kind], cwd=ROOT, capture_output=True, text=True, check=True
    )
    plan = plan_for(kind)
    facts = take(adapted(plan)[0], plan)
    assert json.loads(child.stdout.splitlines()[-1]) == [facts.weights, facts.logits, facts.key]
    assert failing(CHECKS, facts, plan) == {}


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_number_of_threads_does_not_matter_and_is_put_back(
    gemma: tuple[Any, Any], healthy: FingerprintFacts, n_threads: int
) -> None:
    import torch

    torch.set_num_threads(n_threads)
    try:
        facts = take(gemma[0])
        assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(1)
    assert (both(facts), facts.key, facts.threads) == (both(healthy), healthy.key, 1)


def test_a_high_bit_of_a_weight_that_text_reaches_is_another_digest_of_the_logits(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    model, _ = gemma
    with flipped(up_proj(model), bit=7):
        facts = take(model)
    assert facts.logits != healthy.logits
    assert facts.logits == facts.again
    assert facts.key != healthy.key  # other weights: not to be compared
    assert both(take(model)) == both(healthy)


def test_the_audio_tower_shows_in_the_weights_only(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    model, _ = gemma
    with flipped(TENSORS["the audio tower"](model), bit=7):
        facts = take(model)
    assert (facts.logits, facts.weights == healthy.weights) == (healthy.logits, False)


def test_the_adapter_is_no_part_of_either(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    import torch

    model, _ = gemma
    matrices = {n: p for n, p in model.named_parameters() if ".lora_B." in n}
    with torch.no_grad():
        for matrix in matrices.values():
            matrix.fill_(1.0)
    try:
        assert both(take(model)) == both(healthy)
    finally:
        with torch.no_grad():
            for matrix in matrices.values():
                matrix.zero_()
    wide = replace(PLAN, request=replace(PLAN.request, lora_r=32, finetune_mlp_modules=False))
    assert both(take(adapted(wide)[0], wide)) == both(healthy)
    assert both(take(load(PLAN)[0])) == both(healthy)


def test_training_steps_change_neither(gemma: tuple[Any, Any], healthy: FingerprintFacts) -> None:
    from app.engine import numerics

    model, tokenizer = gemma
    assert numerics.run(model, tokenizer, PLAN).steps is not None
    assert both(take(model)) == both(healthy)


def test_no_trace_is_left(gemma: tuple[Any, Any]) -> None:
    from app.engine.preserve import condition, differing

    model, _ = gemma
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    layer = up_proj_layer(model)
    layer._disable_adapters = True  # one that a caller had switched off stays off
    before = condition(model, trained)
    try:
        take(model)
        assert differing(before, condition(model, trained)) == ()
    finally:
        layer._disable_adapters = False


def up_proj_layer(model: Any) -> Any:
    return base(model).language_model.layers[0].mlp.up_proj


def test_the_arithmetic_of_the_profile_is_part_of_the_key(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    plan = replace(PLAN, profile=replace(PLAN.profile, compute_dtype="bfloat16"))
    facts = take(gemma[0], plan)
    assert facts.weights == healthy.weights
    assert facts.logits != healthy.logits
    assert "bfloat16 autocast" in facts.key
    assert failing(CHECKS, facts, plan) == {}


def test_what_was_hashed_is_said_with_the_revision_where_it_is_known(
    gemma: tuple[Any, Any], healthy: FingerprintFacts
) -> None:
    assert PLAN.resolved is not None
    plan = replace(PLAN, resolved=replace(PLAN.resolved, model_id="a/b", revision="0" * 40))
    facts = take(gemma[0], plan)
    assert f"loaded from a/b at {'0' * 40}" in facts.hashed
    assert "loaded from" not in healthy.hashed
    start = f"{facts.n_tensors} tensors, {facts.n_bytes} bytes in memory"
    assert healthy.hashed.startswith(start)


def small(answer: Callable[..., Any], **config: Any) -> Any:
    """A model of one embedding whose forward is `answer(logits, **inputs)`."""
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = torch.nn.Embedding(8, 4)
            self.config = SimpleNamespace(**config)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embedding

        def forward(self, input_ids: Any, token_type_ids: Any = None, **more: Any) -> Any:
            logits = self.embedding(input_ids)
            found = answer(logits, ids=input_ids, token_type_ids=token_type_ids, **more)
            return SimpleNamespace(logits=found)

    return Small()


@pytest.mark.parametrize(
    "error",
    [ValueError("pixels, please"), TypeError("pixels, please"), IndexError("pixels, please")],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_refuses_ids_alone_is_skipped_with_its_words(error: Exception) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    facts = take(small(refuse))
    assert (facts.logits, facts.reason) == ("", f"{type(error).__name__}: pixels, please")
    assert len(facts.weights) == 64
    found = failing(CHECKS, facts, PLAN)
    assert [(name, each.status) for name, each in found.items()] == [
        ("numerics.repeatable", Status.SKIP)
    ]


def test_a_placeholder_for_logits_is_no_logits() -> None:
    facts = take(small(lambda *_, **__: "EMPTY"))
    assert (facts.logits, facts.reason) == ("", "the model returns no logits but str")


def test_what_the_device_says_goes_on() -> None:
    import torch

    for error in (
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        with pytest.raises(type(error), match="CUDA"):
            take(small(fail))
        assert torch.get_num_threads() == 1


def test_dropout_of_a_model_in_training_is_no_part_of_it() -> None:
    import torch

    model = small(lambda logits, **_: torch.nn.functional.dropout(logits, 0.5, model.training))
    assert model.training
    facts = take(model)
    assert (facts.logits, model.training) == (facts.again, True)


def test_a_device_that_does_not_repeat_itself_is_caught() -> None:
    drift = iter((0.0, 1e-6))
    facts = take(small(lambda logits, **_: logits + next(drift)))
    assert facts.logits != facts.again
    found = failing(CHECKS, facts, PLAN)["numerics.repeatable"]
    assert (found.status, found.fault or CHECKS[1].fault) == (Status.FAIL, Fault.NUMERICS)


def test_ids_that_stand_for_media_are_not_drawn_and_types_are_given_where_named() -> None:
    seen: list[dict[str, Any]] = []

    def answer(logits: Any, **inputs: Any) -> Any:
        seen.append(inputs)
        return logits

    facts = take(small(answer, image_token_id=3, audio_token_id=5))
    assert (len(seen), facts.n_tokens) == (2, 32)
    ids = set(seen[0]["ids"].flatten().tolist())
    assert ids == {0, 1, 2, 4, 6, 7}
    assert not seen[0]["token_type_ids"].any()
    assert seen[0]["use_cache"] is False


def test_a_model_with_tensors_on_meta_or_none_at_all_has_a_digest() -> None:
    import torch

    from app.engine.weights import digest

    with torch.device("meta"):
        hollow = torch.nn.Linear(2, 2)
    empty = torch.nn.Linear(0, 2, bias=False)
    none = torch.nn.Module()
    found = [digest(each) for each in (hollow, torch.nn.Linear(2, 2), empty, none)]
    assert [each[1:] for each in found] == [(2, 0), (2, 24), (1, 0), (0, 0)]
    assert len({each[0] for each in found}) == 4


def test_tied_tensors_are_summed_once() -> None:
    plan = plan_for("qwen-bf16", load_in_4bit=False)
    model = load(plan)[0]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    facts = take(model, plan)
    assert (facts.n_bytes, facts.reason) == (sum(p.nbytes for p in model.parameters()), "")
