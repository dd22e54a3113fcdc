"""Training steps on real tiny models: what they show, and that they leave no trace."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.checks import Check
from app.checks.numerics import CHECKS, section
from app.errors import BootError
from app.facts.adapter import Pair, needed
from app.facts.checkpoint import QuantData
from app.facts.numerics import NumericsFacts
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.probes.safetensors import read_checkpoint
from app.profiles import CPU, V100, Profile
from app.sections_numerics import Steps
from tests import stack_models
from tests.stack_models import adapted, load, plan_for
from tests.tiny_models import Kind

pytestmark = pytest.mark.stack


def run(model: Any, tokenizer: Any, plan: Plan) -> NumericsFacts:
    from app.engine import numerics

    return numerics.run(model, tokenizer, plan)


def failing(checks: tuple[Check[Any], ...], facts: Any, plan: Plan) -> dict[str, Finding]:
    """What does not pass, but for the forecast: these runs are not given a checkpoint's headers."""
    found = stack_models.failing(checks, facts, plan)
    return {name: each for name, each in found.items() if name != "numerics.memory_as_forecast"}


def everything(model: Any) -> dict[str, Any]:
    """The bytes and flags of a model, and the state of every generator."""
    import torch

    from app.engine.weights import _scales

    found: dict[str, Any] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = (
            tensor.data_ptr(),
            bytes(tensor.detach().reshape(-1).view(torch.uint8).numpy()),
        )
    for name, parameter in model.named_parameters():
        found[f"{name} flags"] = (parameter.requires_grad, parameter.grad is None)
        found |= {
            scale: bytes(t.reshape(-1).view(torch.uint8).numpy())
            for scale, t in _scales(name, parameter)
        }
    found |= {f"{name} mode": module.training for name, module in model.named_modules()}
    found["use_cache"] = model.config.get_text_config().use_cache
    found["torch"] = bytes(torch.get_rng_state().numpy())
    found["numpy"] = str(np.random.get_state())  # noqa: NPY002
    found["python"] = random.getstate()
    return found


@pytest.mark.parametrize(
    ("kind", "flags", "modalities"),
    [
        ("gemma3n-nf4", {}, ("text",)),
        ("gemma3n-nf4", {"finetune_vision_layers": True}, ("text", "image")),
        ("gemma3n-nf4", {"finetune_vision_layers": True, "finetune_language_layers": False},
         ("text", "image")),
        ("gemma3n-nf4", {"use_gradient_checkpointing": False}, ("text",)),
        ("gemma3n-bf16", {}, ("text",)),
        ("llama-nf4", {}, ("text",)),
        ("qwen-bf16", {"load_in_4bit": False}, ("text",)),
    ],
    ids=str,
)  # fmt: skip
def test_a_real_model_trains_and_is_left_as_it_was(
    kind: Kind, flags: dict[str, Any], modalities: tuple[str, ...]
) -> None:
    plan = plan_for(kind, **flags)
    model, tokenizer = adapted(plan)
    before = everything(model)
    facts = run(model, tokenizer, plan)
    after = everything(model)
    assert {name for name, value in before.items() if after[name] != value} == set()
    found = {name: each.reason for name, each in failing(CHECKS, facts, plan).items()}
    layers = plan.request.finetune_language_layers
    without = {"numerics.gradient_checkpointing": "no pair stands in a numbered layer"}
    assert found == ({} if layers else without)
    steps = facts.steps
    assert steps is not None
    assert (steps.modalities, steps.notes) == (modalities, ())
    assert steps.base_loss == steps.start_loss
    assert all(pair.a and pair.b for pair in steps.pairs)
    assert steps.tokens_per_s is not None
    asked = layers and plan.request.use_gradient_checkpointing is not False
    assert bool(steps.recomputed.n_again) is asked
    assert facts.generation is not None
    assert 1 <= len(facts.generation.tokens) <= 8
    made = section(facts)["steps"]
    assert isinstance(made, Steps)
    assert made.n_pairs_with_gradient == made.n_pairs > 0


def test_one_step_is_enough_for_everything_but_a_falling_loss() -> None:
    plan = replace(plan_for("gemma3n-nf4"), steps=1)
    facts = run(*adapted(plan), plan)
    found = {name: each.status for name, each in failing(CHECKS, facts, plan).items()}
    assert found == {"numerics.loss_falls": Status.SKIP}
    assert facts.steps is not None
    assert facts.steps.tokens_per_s is not None


def test_checkpointing_that_is_asked_for_and_off_warns(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    model.get_base_model().gradient_checkpointing_disable()
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert {name: each.status for name, each in found.items()} == {
        "numerics.gradient_checkpointing": Status.WARN
    }


def test_a_flag_that_nothing_reads_does_not_pass_for_checkpointing(
    llama: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = llama
    for each in model.get_base_model().model.layers:
        each._gradient_checkpointing_func = lambda function, *inputs: function(*inputs)
    assert model.is_gradient_checkpointing
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert set(found) == {"numerics.gradient_checkpointing"}


def test_an_adapter_that_moves_to_other_storage_is_not_as_it_was(
    llama: tuple[Any, Any, Plan],
) -> None:
    """An optimizer that a job made before would train what nobody reads any more."""
    model, tokenizer, plan = llama
    from app.engine.adapter import lora_parameters

    matrix = lora_parameters(model)["model.layers.1.mlp.up_proj"][1]

    def move(module: Any, _inputs: Any) -> None:
        if module.training:
            matrix.data = matrix.data.clone()

    layer(model, 1).register_forward_pre_hook(move)
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert set(found) == {"numerics.left_as_found"}
    assert "storage of model.layers.1.mlp.up_proj.lora_B" in found["numerics.left_as_found"].reason


def test_the_peak_stands_beside_the_forecast_of_the_same_length() -> None:
    from app.engine import memory_use
    from app.facts.numerics import MemoryUse

    plan = plan_for("gemma3n-nf4")
    assert plan.resolved is not None
    checkpoint = read_checkpoint(plan.resolved.folder)
    model, tokenizer = adapted(plan)
    from app.engine import numerics

    facts = numerics.run(model, tokenizer, plan, checkpoint)
    assert facts.steps is not None
    memory = facts.steps.memory
    assert memory.peak is not None
    assert memory.low is not None
    assert memory.high is not None
    assert 0 < memory.low < memory.high
    longer = memory_use.against_forecast(MemoryUse(), plan, checkpoint, 4096)
    assert longer.high is not None
    assert longer.high > memory.high


def test_packed_weights_without_their_shapes_are_no_ground_for_a_forecast() -> None:
    from app.engine import memory_use
    from app.facts.numerics import MemoryUse

    plan = plan_for("gemma3n-nf4")
    assert plan.resolved is not None
    bare = replace(read_checkpoint(plan.resolved.folder), quant=QuantData())
    found = memory_use.against_forecast(MemoryUse(), plan, bare, 256)
    assert (found.low, found.no_forecast) == (
        None,
        "the shapes of the packed weights were not read",
    )


def test_what_libraries_may_keep_grows_with_the_largest_packed_weight() -> None:
    from app.engine.memory_use import workspace

    plan = plan_for("llama-nf4")
    packed, _ = load(plan)
    plain, _ = load(plan_for("llama-bf16", load_in_4bit=False))
    assert workspace(packed, plan) - workspace(plain, plan) == 2 * 4 * max(
        state.shape.numel()
        for state in (getattr(p, "quant_state", None) for p in packed.parameters())
        if state is not None
    )


def test_a_step_that_does_not_fit_is_left_to_the_devices_own_account(
    llama: tuple[Any, Any, Plan],
) -> None:
    """`app.work` has it say need against free: 75 where others hold the memory, else 79."""
    import torch

    model, tokenizer, plan = llama

    def full(_module: Any, _inputs: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    layer(model, 0).register_forward_pre_hook(full)
    with pytest.raises(torch.OutOfMemoryError):
        run(model, tokenizer, plan)


def test_the_steps_repeat_bit_for_bit() -> None:
    plan = plan_for("gemma3n-nf4")
    model, tokenizer = adapted(plan)
    first, second = (run(model, tokenizer, plan).steps for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.losses, first.gradient_norms) == (second.losses, second.gradient_norms)


@pytest.mark.parametrize(
    ("dtype", "forced", "words"),
    [
        ("bfloat16", False, "bfloat16 autocast"),
        ("float16", False, "float16 autocast with a gradient scaler"),
        ("float16", True, "forced float32"),
    ],
)
def test_the_steps_compute_as_the_profiles_trainer_would(
    dtype: str, forced: bool, words: str
) -> None:
    plan = plan_for("llama-nf4")
    plan = replace(plan, profile=replace(plan.profile, compute_dtype=dtype))
    model, tokenizer = adapted(plan)
    model._unsloth_forced_float32 = forced
    facts = run(model, tokenizer, plan)
    assert facts.steps is not None
    assert words in facts.steps.arithmetic
    assert failing(CHECKS, facts, plan) == {}
    assert len(facts.steps.losses) == 3


def test_audio_pairs_train_on_audio_and_are_skipped_without_a_processor() -> None:
    plan = plan_for("gemma3n-nf4")
    model, tokenizer = load(plan)
    import unsloth

    from app.engine.arguments import adapter_arguments

    model = unsloth.FastModel.get_peft_model(model, **adapter_arguments(plan.request))
    heard = run(model, tokenizer, plan)
    assert heard.steps is not None
    assert heard.steps.modalities == ("text", "audio")
    assert failing(CHECKS, heard, plan) == {}
    deaf = run(model, tokenizer, replace(plan, resolved=None))
    assert {name: f.status for name, f in failing(CHECKS, deaf, plan).items()} == {
        "numerics.batch": Status.WARN
    }
    check = next(check for check in CHECKS if check.id == "numerics.gradient_reaches_every_pair")
    assert "6 pairs not judged" in (reason := check.judge(deaf, plan).reason)
    assert "the batch holds no audio" in reason


@pytest.fixture
def llama() -> tuple[Any, Any, Plan]:
    plan = plan_for("llama-nf4")
    return *adapted(plan), plan


def layer(model: Any, index: int) -> Any:
    return model.get_base_model().model.layers[index]


def test_pairs_behind_a_cut_graph_are_named(llama: tuple[Any, Any, Plan]) -> None:
    """As with reentrant checkpointing of inputs without gradient: no error and no training."""
    model, tokenizer, plan = llama
    layer(model, 0).register_forward_hook(lambda _m, _i, output: output.detach())
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert set(found) == {"numerics.gradient_reaches_every_pair"}
    reason = found["numerics.gradient_reaches_every_pair"].reason
    assert "no gradient reaches 7 LoRA pairs" in reason
    assert "model.layers.0.self_attn.q_proj" in reason
    assert "model.layers.1." not in reason


def test_a_loss_outside_the_graph_is_caught(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    model.get_base_model().lm_head.register_forward_hook(lambda _m, _i, output: output.detach())
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert found["numerics.gradient_reaches_every_pair"].status is Status.FAIL
    assert found["numerics.loss_falls"].status is Status.SKIP


def test_a_loss_that_is_no_number_is_caught(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    layer(model, 1).register_forward_hook(lambda _m, _i, output: output * float("nan"))
    facts = run(model, tokenizer, plan)
    found = failing(CHECKS, facts, plan)
    failed = {name for name, each in found.items() if each.status is Status.FAIL}
    assert failed == {"numerics.loss_finite", "numerics.headroom_finite"}
    assert found["numerics.loss_finite"].fault in (None, Fault.NUMERICS)
    assert "steps" in section(facts)


def test_one_gradient_that_is_no_number_is_named(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    from app.engine.adapter import lora_parameters

    name = "model.layers.1.mlp.up_proj"
    lora_parameters(model)[name][1].register_hook(lambda gradient: gradient * float("nan"))
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert f"{name}.lora_B" in found["numerics.gradients_finite"].reason
    # The headroom is looked at with the adapter put back: what the steps broke is not told twice.
    assert set(found) == {
        *("numerics.gradients_finite", "numerics.loss_finite"),
        *("numerics.loss_falls", "numerics.generation"),
    }


@pytest.mark.parametrize(("n_bad", "n_skipped"), [(2, 2), (99, 8)])
def test_the_scaler_may_look_for_its_scale_and_not_for_ever(
    llama: tuple[Any, Any, Plan], n_bad: int, n_skipped: int
) -> None:
    """A step thrown away for its scale is part of float16 training; a ninth one is a fault."""
    model, tokenizer, plan = llama
    plan = replace(plan, profile=replace(plan.profile, compute_dtype="float16"))
    from app.engine.adapter import lora_parameters

    calls = iter(range(1000))

    def overflow(gradient: Any) -> Any:
        return gradient * float("inf") if next(calls) < n_bad else gradient

    lora_parameters(model)["model.layers.1.mlp.up_proj"][1].register_hook(overflow)
    facts = run(model, tokenizer, plan)
    assert facts.steps is not None
    assert (facts.steps.n_skipped, len(facts.steps.losses)) == (n_skipped, 3)
    assert ("numerics.gradients_finite" in failing(CHECKS, facts, plan)) is (n_bad > n_skipped)


def test_a_base_weight_that_moves_is_named_though_its_version_does_not(
    llama: tuple[Any, Any, Plan],
) -> None:
    model, tokenizer, plan = llama
    weight = model.get_base_model().model.norm.weight

    def write(module: Any, _inputs: Any) -> None:
        if module.training:
            weight.data.mul_(1.01)

    version = weight._version
    model.get_base_model().model.norm.register_forward_pre_hook(write)
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert set(found) == {"numerics.nothing_else_moved"}
    assert "model.norm.weight" in found["numerics.nothing_else_moved"].reason
    assert weight._version == version


def test_an_adapter_that_is_not_zero_differs_from_its_base(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    import torch

    from app.engine.adapter import lora_parameters

    with torch.no_grad():
        lora_parameters(model)["model.layers.0.mlp.up_proj"][1].fill_(0.05)
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert set(found) == {"numerics.adapter_starts_at_zero"}


def test_layers_that_attend_to_an_image_are_out_of_reach_without_one() -> None:
    """Mllama passes whole layers over when there is no image."""
    from app.engine.steps import _out_of_reach

    names = ("layers.0.mlp.up_proj", "layers.1.cross_attn.q_proj", "layers.1.mlp.up_proj")
    pairs = [
        Pair(name, "language", "mlp", 16, 32.0, 0.0, (16, 4), (4, 16), b_zero=True)
        for name in names
    ]
    assert list(needed(pairs).values()) == ["text", "image", "image"]
    assert set(_out_of_reach(pairs, ("text",))) == set(names[1:])
    assert _out_of_reach(pairs, ("text", "image")) == {}


def test_a_parameter_on_meta_ends_it_before_a_step(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    import torch

    norm = layer(model, 0).input_layernorm
    norm.weight = torch.nn.Parameter(norm.weight.to("meta"), requires_grad=False)
    facts = run(model, tokenizer, plan)
    assert facts.steps is None
    found = failing(CHECKS, facts, plan)["numerics.weights_finite"]
    assert "model.layers.0.input_layernorm.weight" in found.reason
    assert found.fault is Fault.PRECISION


def test_weights_that_are_not_finite_end_it_before_a_step(llama: tuple[Any, Any, Plan]) -> None:
    """nan against nan tells nothing about an adapter."""
    model, tokenizer, plan = llama
    import torch

    with torch.no_grad():
        layer(model, 0).input_layernorm.weight[0] = float("nan")
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    fails = {name for name, each in found.items() if each.status is Status.FAIL}
    assert fails == {"numerics.weights_finite"}
    assert "weights are not finite" in found["numerics.loss_finite"].reason


def test_a_step_whose_shapes_do_not_fit_breaks_the_contract(llama: tuple[Any, Any, Plan]) -> None:
    model, tokenizer, plan = llama
    layer(model, 1).register_forward_hook(lambda _m, _i, output: output[..., :-1])
    with pytest.raises(BootError, match="a training step of this model fails") as caught:
        run(model, tokenizer, plan)
    assert caught.value.finding.fault is Fault.PRECISION
    assert ".py:" in caught.value.finding.actual


def test_our_own_bugs_and_the_devices_words_go_on_as_they_are() -> None:
    import torch

    from app.engine.arithmetic import stepping

    with pytest.raises(RuntimeError, match="CUDA error"), stepping():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(AssertionError), stepping():
        raise AssertionError
    with pytest.raises(torch.OutOfMemoryError), stepping():
        raise torch.OutOfMemoryError


def test_a_layer_that_is_switched_off_is_named_and_stays_off(llama: tuple[Any, Any, Plan]) -> None:
    """PEFT's `disable_adapter()` switches all layers on when it ends."""
    model, tokenizer, plan = llama
    from app.checks.adapter import CHECKS as OF_ADAPTER
    from app.engine.adapter import gather

    layer(model, 0).mlp.up_proj._disable_adapters = True
    run(model, tokenizer, plan)
    found = failing(OF_ADAPTER, gather(model), plan)
    assert set(found) == {"adapter.attached"}
    assert "model.layers.0.mlp.up_proj" in found["adapter.attached"].reason


def test_a_pair_that_was_frozen_before_the_steps_is_not_thawed_for_them(
    llama: tuple[Any, Any, Plan],
) -> None:
    """PEFT's `disable_adapter()` lets every pair train when it ends."""
    model, tokenizer, plan = llama
    pair = layer(model, 0).mlp.up_proj
    for matrix in (pair.lora_A["default"].weight, pair.lora_B["default"].weight):
        matrix.requires_grad = False
    found = failing(CHECKS, run(model, tokenizer, plan), plan)
    assert found["numerics.gradient_reaches_every_pair"].status is Status.FAIL
    assert "model.layers.0.mlp.up_proj" in found["numerics.gradient_reaches_every_pair"].reason
    assert not pair.lora_A["default"].weight.requires_grad


@pytest.mark.parametrize(
    ("profile", "scaler", "counts"), [(V100, False, True), (V100, True, False), (CPU, False, False)]
)
def test_a_gradient_of_a_that_float16_rounded_to_zeros_has_come_through(
    llama: tuple[Any, Any, Plan], profile: Profile, *, scaler: bool, counts: bool
) -> None:
    """Without a scaler; one that is None has not."""
    import torch

    from app.engine import adapter, steps
    from app.engine.arithmetic import Arithmetic

    model, _, plan = llama
    matrices = adapter.lora_parameters(model)
    how = Arithmetic(torch.float16, "played", scaler=scaler)
    found = steps._rounded(matrices, how, replace(plan, profile=profile))
    assert found == ({id(a) for a, _ in matrices.values()} if counts else set())


def test_unsloths_fused_loss_is_given_the_scaler_for_the_steps_alone(
    llama: tuple[Any, Any, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from app.engine import numerics
    from app.engine.arithmetic import Arithmetic
    from app.engine.packed import base_model

    model, tokenizer, plan = llama
    base: Any = base_model(model)
    seen: list[bool] = []
    base.register_forward_hook(lambda *_: seen.append(hasattr(base, "accelerator_scaler")))
    how = Arithmetic(torch.float16, "played", scaler=True)
    monkeypatch.setattr(numerics, "arithmetic", lambda *_: how)
    run(model, tokenizer, plan)
    assert any(seen)
    assert not all(seen)  # the losses before, headroom and generation are without
    assert not hasattr(base, "accelerator_scaler")


def test_packed_experts_that_were_unpacked_to_bfloat16_train_in_it() -> None:
    """Mixtral's: Unsloth's CPU backend makes all the rest float32."""
    import torch

    from app.engine.arithmetic import arithmetic

    class Mixture(torch.nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 4)
            self.experts = torch.nn.Parameter(torch.zeros(2, 4, 4, dtype=dtype))

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embed

    plan = plan_for("llama-nf4")
    assert arithmetic(Mixture(torch.bfloat16), plan).autocast is torch.bfloat16
    assert arithmetic(Mixture(torch.float32), plan).autocast is None
