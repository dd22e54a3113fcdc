"""The largest activations and gradients: exact on a model made by hand, harmless on real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan, nan
from types import SimpleNamespace
from typing import Any

import pytest

from app.checks import _headroom
from app.facts.adapter import needed
from app.facts.headroom import HeadroomFacts, Largest
from app.facts.numerics import NumericsFacts, WeightFacts
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import V100
from tests.stack_models import adapted, failing, plan_for
from tests.tiny_models import Kind

pytestmark = pytest.mark.stack

Body = Callable[[Any, Any], Any]  # module and the batch's hidden state -> what the loss sums


def judged(room: HeadroomFacts, plan: Plan) -> dict[str, Finding]:
    weights = WeightFacts(largest_magnitude=1.0, largest_name="w")
    return failing(_headroom.CHECKS, NumericsFacts(weights, headroom=room), plan)


def made_by_hand(body: Body, width: int = 2, **parts: Any) -> Any:
    """A model whose forward is `body`, and whose loss is the sum of what that returns."""
    import torch

    class Made(torch.nn.Module):
        def forward(self, x: Any, labels: Any, use_cache: bool) -> Any:
            del labels, use_cache
            return SimpleNamespace(loss=body(self, x * self.scale).sum())

    model = Made()
    model.scale = torch.nn.Parameter(torch.ones(width))
    for name, part in parts.items():
        setattr(model, name, part)
    return model.train()


def linear(weight: float, width: int = 2) -> Any:
    """A diagonal product with one weight."""
    import torch

    made = torch.nn.Linear(width, width, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.eye(width) * weight)
    return made


def measured(model: Any, x: list[list[float]], autocast: Any = None) -> HeadroomFacts:
    import torch

    from app.engine.arithmetic import Arithmetic
    from app.engine.batch import Batch
    from app.engine.headroom import measure

    inputs = {"x": torch.tensor(x), "labels": torch.zeros(1)}
    return measure(model, Batch(inputs, 1, 1, ("text",), ()), Arithmetic(autocast, "a test's"))


def values(found: tuple[Largest, ...]) -> dict[str, tuple[str, float]]:
    return {each.module_class: (each.name, each.value) for each in found}


def test_the_largest_of_each_class_is_told_with_its_module() -> None:
    model = made_by_hand(lambda m, x: m.b(m.a(x)), a=linear(-7.0), b=linear(0.5))
    found = measured(model, [[1.0, -2.0]])
    assert values(found.forward) == {"Linear input": ("a", 2.0), "Linear": ("a", 14.0)}
    assert values(found.backward) == {"Linear": ("b", 1.0), "Linear input": ("a", 3.5)}
    assert found.n_modules == 2


def test_a_product_outside_any_module_is_told_as_an_input() -> None:
    """As in an MLP: what is multiplied there is larger than all that modules put out."""
    model = made_by_hand(lambda m, x: m.down(m.gate(x) * m.up(x)), gate=linear(100.0),
                         up=linear(200.0), down=linear(0.001))  # fmt: skip
    found = values(measured(model, [[1.0, 2.0]]).forward)
    assert found["Linear input"] == ("down", 80000.0)
    assert found["Linear"] == ("up", 400.0)


def test_a_wrapper_that_hands_on_does_not_count_again() -> None:
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(3.0)

        def forward(self, x: Any) -> dict[str, Any]:
            hidden = self.inner(x)
            return {"hidden": (hidden, None), "more": [hidden + 1], "loss": x.sum() * 1e9}

    model = made_by_hand(lambda m, x: m.same(m.w(x)["hidden"][0]), w=Wrapper(),
                         same=torch.nn.Identity())  # fmt: skip
    found = measured(model, [[1.0, 2.0]])
    assert values(found.forward) == {
        "Wrapper input": ("w", 2.0),
        "Linear": ("w.inner", 6.0),
        "Wrapper": ("w", 7.0),  # what it adds, and no loss, which has no shape
    }


def test_what_is_changed_in_place_is_met_again() -> None:
    import torch

    class Doubled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mul_(2.0)

    model = made_by_hand(lambda m, x: m.twice(m.a(x)), a=linear(3.0), twice=Doubled())
    found = values(measured(model, [[1.0, 2.0]]).forward)
    assert found["Linear"] == ("a", 6.0)
    assert found["Doubled"] == ("twice", 12.0)


def test_a_module_that_runs_twice_is_told_by_the_larger_value() -> None:
    model = made_by_hand(lambda m, x: m.a(x * 10.0) + m.a(x), a=linear(3.0))
    found = measured(model, [[1.0, 2.0]])
    assert values(found.forward) == {"Linear input": ("a", 20.0), "Linear": ("a", 60.0)}


def test_a_value_that_was_no_number_stays_so_when_the_module_runs_again() -> None:
    model = made_by_hand(lambda m, x: m.a(m.a(x * nan) * 0 + 1), a=linear(3.0))
    assert isnan(values(measured(model, [[1.0, 2.0]]).forward)["Linear"][1])
    model = made_by_hand(lambda m, x: m.a(x) + m.a(x * nan).nan_to_num(0.0), a=linear(3.0))
    assert isnan(values(measured(model, [[1.0, 2.0]]).forward)["Linear"][1])


def test_experts_without_a_token_masks_and_modules_called_by_method_do_no_harm() -> None:
    import torch

    class Masked(torch.nn.Module):
        def forward(self, x: Any, *, mask: Any, codes: Any) -> Any:
            return x + mask.clamp(min=0), codes

        def by_method(self, x: Any) -> Any:
            return x * 1e9

    def body(m: Any, x: Any) -> Any:
        m.expert(x[:0])
        with torch.inference_mode():
            m.expert(torch.full((1, 2), 1e9))
        mask = torch.full_like(x, -inf).detach()
        codes = torch.ones(2, dtype=torch.float8_e4m3fn)
        return m.masked.by_method(m.masked(x, mask=mask, codes=codes)[0])

    found = measured(made_by_hand(body, expert=linear(1.0), masked=Masked()), [[1.0, 2.0]])
    assert values(found.forward) == {"Masked input": ("masked", 2.0), "Masked": ("masked", 2.0)}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_are_seen_forward_and_backward(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def plain(m: Any, x: Any) -> Any:
        return m.down(m.up(x) * m.up(x))

    def body(m: Any, x: Any) -> Any:
        return checkpoint(lambda y: plain(m, y), x, use_reentrant=reentrant)

    parts = {"up": linear(5.0), "down": linear(2.0)}
    again = measured(made_by_hand(body, **parts), [[1.0, 2.0]])
    once = measured(made_by_hand(plain, **parts), [[1.0, 2.0]])
    assert values(again.forward) == values(once.forward)
    assert values(again.backward) == values(once.backward)


def test_a_compiled_module_is_seen_from_outside_and_keeps_no_hook() -> None:
    """Unsloth compiles whole graphs, which cannot be broken for a hook."""
    import torch

    torch._dynamo.reset()
    inner = torch.nn.Sequential(linear(3.0), linear(2.0))
    compiled = torch.compile(inner, backend="eager", fullgraph=True)
    model = made_by_hand(lambda m, x: m.compiled(x), compiled=compiled)
    found = values(measured(model, [[1.0, 2.0]]).forward)
    assert max(size for _, size in found.values()) == 12.0
    with torch.no_grad():
        model.compiled._orig_mod[0].weight.mul_(nan)
    assert isnan(model(torch.ones(1, 2), None, use_cache=False).loss.item())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_told_in_the_dtype_that_holds_them(dtype: str) -> None:
    import torch

    model = made_by_hand(lambda m, x: m.b(m.a(x)), a=linear(300.0), b=linear(300.0))
    found = measured(model, [[1.0, 2.0]], getattr(torch, dtype))
    assert {(each.module_class, each.dtype) for each in found.forward} == {
        ("Linear", dtype),
        ("Linear input", "float32"),
    }
    largest = next(each for each in found.forward if each.module_class == "Linear")
    assert largest.name == "b"
    assert largest.value == (inf if dtype == "float16" else 180224.0)  # 300 * 600, 8 bits of it


def test_an_overflow_in_float16_fails_with_80_and_its_module() -> None:
    import torch

    plan = replace(plan_for("llama-nf4"), profile=V100)
    model = made_by_hand(lambda m, x: m.b(m.a(x)), a=linear(300.0), b=linear(300.0))
    found = judged(measured(model, [[1.0, 2.0]], torch.float16), plan)
    assert found["numerics.headroom_finite"].fault is Fault.NUMERICS
    assert "first in Linear (b)" in found["numerics.headroom_finite"].reason


def test_little_room_in_float16_warns() -> None:
    import torch

    plan = replace(plan_for("llama-nf4"), profile=V100)
    model = made_by_hand(lambda m, x: m.b(m.a(x)), a=linear(100.0), b=linear(100.0))
    found = judged(measured(model, [[1.0, 2.0]], torch.float16), plan)
    assert {name: each.status for name, each in found.items()} == {"numerics.headroom": Status.WARN}


def ready(kind: Kind, **request: Any) -> tuple[Any, Any, Plan]:
    """A real model in training mode, one batch, and the plan."""
    from app.engine.adapter import gather
    from app.engine.batch import make

    plan = plan_for(kind, **request)
    model, tokenizer = adapted(plan)
    batch = make(model, tokenizer, plan, needed(gather(model).pairs).values())
    return model.train(), batch, plan


def gradients(model: Any) -> dict[str, bytes]:
    """Bytes of every gradient, which is then let go."""
    import torch

    found = {
        name: bytes(p.grad.reshape(-1).view(torch.uint8).numpy())
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("autocast", [None, "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("gemma3n-nf4", {"use_gradient_checkpointing": "unsloth"}),
        ("llama-nf4", {"use_gradient_checkpointing": True, "lora_dropout": 0.1}),
        ("qwen3moe-bf16", {"use_gradient_checkpointing": False, "load_in_4bit": False}),
    ],
    ids=str,
)
def test_loss_and_gradients_are_the_same_bits_with_the_hooks(
    kind: Kind, request_: dict[str, Any], autocast: str | None
) -> None:
    import torch

    from app.engine.arithmetic import Arithmetic
    from app.engine.headroom import measure
    from app.engine.steps import loss_of

    model, batch, plan = ready(kind, **request_)
    how = Arithmetic(getattr(torch, autocast) if autocast else None, "a test's")
    losses: list[float] = []
    model.get_base_model().register_forward_hook(
        lambda _module, _inputs, output: losses.append(output.loss.item())
    )
    torch.manual_seed(1)
    loss_of(model, batch, how).backward()
    plain = gradients(model)
    torch.manual_seed(1)
    found = measure(model, batch, how)
    assert gradients(model) == plain
    assert plain
    assert losses[0] == losses[1]
    assert judged(found, plan) == {}
    dtypes = {each.dtype for each in found.forward}
    assert (autocast or "float32") in dtypes
    assert found.backward


def test_no_hook_is_left() -> None:
    """Nor one on a parameter that a module puts out."""
    import torch

    from app.engine.arithmetic import Arithmetic
    from app.engine.headroom import measure

    def hooks(model: Any) -> list[int]:
        return [
            *(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
            *(len(p._backward_hooks or ()) for p in model.parameters()),
        ]

    model, batch, _ = ready("llama-nf4")
    before = hooks(model)
    measure(model, batch, Arithmetic(None, "a test's"))
    assert hooks(model) == before

    class Prompt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((2,), 9.0))

        def forward(self) -> Any:
            return self.weight

    model = made_by_hand(lambda m, x: x * m.prompt(), prompt=Prompt())
    found = measured(model, [[1.0, 2.0]])
    assert values(found.forward) == {"Prompt": ("prompt", 9.0)}
    assert values(found.backward) == {"Prompt": ("prompt", 2.0)}
    assert not any(hooks(model))


def broken_at(index: int, breaking: Callable[[Any], Any]) -> dict[str, Finding]:
    """What is said of a real model whose layer puts out something else."""
    from app.engine.arithmetic import Arithmetic
    from app.engine.headroom import measure

    model, batch, plan = ready("llama-nf4", use_gradient_checkpointing=False)
    layer = model.get_base_model().model.layers[index]
    layer.register_forward_hook(lambda _module, _inputs, output: breaking(output))
    return judged(measure(model, batch, Arithmetic(None, "a test's")), plan)


@pytest.mark.parametrize("factor", [nan, inf])
def test_an_activation_that_is_no_number_is_named_where_it_begins(factor: float) -> None:
    found = broken_at(0, lambda output: output * factor)["numerics.headroom_finite"]
    assert (found.status, found.fault) == (Status.FAIL, Fault.NUMERICS)
    assert "first in LlamaDecoderLayer (model.layers.0)" in found.reason


def test_a_gradient_that_is_no_number_is_named_where_it_begins() -> None:
    def breaking(output: Any) -> Any:
        changed = output * 1.0
        changed.register_hook(lambda gradient: gradient * nan)
        return changed

    found = broken_at(0, breaking)["numerics.headroom_finite"]
    assert (found.status, found.fault) == (Status.FAIL, Fault.NUMERICS)
    assert "a gradient is not finite, first behind" in found.reason
    assert "(model.layers.0)" in found.reason


def test_compiled_layers_are_looked_into() -> None:
    """As Unsloth compiles every layer on a GPU; hooks that come later are not asked by them."""
    import torch

    layer = torch.nn.Sequential(linear(2.0), linear(300.0))
    compiled = torch.compile(layer.forward, backend="eager")
    model = made_by_hand(lambda _, x: compiled(x), layer=layer)
    model(torch.ones(1, 2), labels=None, use_cache=False)  # what the steps have compiled
    found = measured(model, [[1.0, 2.0]])
    assert values(found.forward)["Linear"] == ("layer.1", 1200.0)


def test_of_a_long_text_the_beginning_is_measured() -> None:
    import torch

    from app.engine.batch import Batch, shortened

    ids = torch.arange(20).reshape(2, 10)
    batch = Batch({"input_ids": ids, "labels": ids}, 10, 9, ("text",), ())
    short = shortened(batch, 4)
    assert (short.n_tokens, short.inputs["labels"].tolist()) == (4, ids[:, :4].tolist())
    assert shortened(batch, 10) is batch
    media = replace(batch, modalities=("text", "image"))
    assert shortened(media, 4) is media
