"""What computes wrongly though the model in memory is right: hooks, kernels, libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broken_memory import INF, LAYER, NAN, Break, pair, part

STACK = "model.language_model.layers.1"


def detached(model: Any) -> None:
    """The graph is cut behind a layer: what stands before it gets no gradient."""
    part(model, "model.language_model.layers.0.mlp").register_forward_hook(
        lambda _m, _i, output: output.detach()
    )


def output(number: float, path: str = STACK) -> Break:
    """One activation of a layer's output becomes this number, wherever it runs."""

    def breaks(model: Any) -> None:
        import torch

        def hook(_module: Any, _inputs: Any, found: Any) -> Any:
            first = found[0] if isinstance(found, tuple) else found
            bad = torch.zeros_like(first).index_fill(-1, torch.tensor([0]), number)
            spoilt = first + bad
            return (spoilt, *found[1:]) if isinstance(found, tuple) else spoilt

        part(model, path).register_forward_hook(hook)

    return breaks


def hidden_overflow(model: Any) -> None:
    """An activation overflows, and the next module hides it: neither loss nor gradient shows it."""
    import torch

    layer = part(model, STACK)

    def overflow(_module: Any, _inputs: Any, found: Any) -> Any:
        return found + torch.zeros_like(found).index_fill(-1, torch.tensor([0]), INF)

    def hide(_module: Any, inputs: Any) -> Any:
        return (inputs[0].masked_fill(torch.isinf(inputs[0]), 0.0),)

    layer.mlp.register_forward_hook(overflow)
    layer.post_feedforward_layernorm.register_forward_pre_hook(hide)


def gradient(number: float) -> Break:
    """The gradient of one pair, on its way back."""

    def breaks(model: Any) -> None:
        pair(model).lora_B["default"].weight.register_hook(lambda found: found * number)

    return breaks


def all_gradients(number: float) -> Break:
    """Every pair's gradient, times a number."""

    def breaks(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.register_hook(lambda found: found * number)

    return breaks


def loss(number: float) -> Break:
    """The loss itself."""

    def breaks(model: Any) -> None:
        def hook(_module: Any, _inputs: Any, found: Any) -> Any:
            if found.loss is not None:
                found.loss = found.loss * number
            return found

        model.get_base_model().register_forward_hook(hook)

    return breaks


def no_loss(model: Any) -> None:
    """A forward that ignores labels."""

    def hook(_module: Any, _inputs: Any, found: Any) -> Any:
        found.loss = None
        return found

    model.get_base_model().register_forward_hook(hook)


def single_row(model: Any) -> None:
    """The path of one row alone, which only a generation takes."""

    def hook(_module: Any, _inputs: Any, found: Any) -> Any:
        return found * NAN if found.shape[1] == 1 else found

    part(model, f"{STACK}.mlp").register_forward_hook(hook)


def no_generation(model: Any) -> None:
    """A class that cannot generate."""

    def generate(*_arguments: Any, **_named: Any) -> Any:
        raise ValueError("this model class has no generate")

    vars(model)["generate"] = generate


def last_bit(model: Any) -> None:
    """The head's last bits differ from pass to pass, far below what a loss shows."""
    import torch

    calls = iter(range(1000))

    def hook(_module: Any, _inputs: Any, found: Any) -> Any:
        return torch.nextafter(found, torch.full_like(found, INF)) if next(calls) % 2 else found

    part(model, "lm_head").register_forward_hook(hook)


def while_training(act: Callable[[Any, Any], None], path: str = LAYER) -> Break:
    """What a library does to a layer during a training pass."""

    def breaks(model: Any) -> None:
        layer = pair(model, path)

        def hook(module: Any, _inputs: Any) -> None:
            if module.training:
                act(model, module)

        layer.register_forward_pre_hook(hook)

    return breaks


def write_base(_model: Any, layer: Any) -> None:
    """Past the version counter, into a packed weight."""
    layer.base_layer.weight.data.view(-1)[7] += 1


def cast_adapter(_model: Any, layer: Any) -> None:
    """As a trainer's preparation for 16 bits does it."""
    import torch

    for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        matrix.data = matrix.data.to(torch.bfloat16)


def move_adapter(_model: Any, layer: Any) -> None:
    """New storage for an adapter's matrix: whoever holds the old one is left behind."""
    matrix = layer.lora_A["default"].weight
    # Held, or the allocator may give the old place to a later copy.
    vars(layer).setdefault("_held", []).append(matrix.data)
    matrix.data = matrix.data.clone()


def freeze_adapter(_model: Any, layer: Any) -> None:
    """As a library that sets what trains, and forgets one layer."""
    for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        matrix.requires_grad_(requires_grad=False)


def no_checkpointing(model: Any) -> None:
    """Gradient checkpointing, switched off by who knows better."""
    model.get_base_model().gradient_checkpointing_disable()


def narrower(model: Any) -> None:
    """A layer whose output does not fit the next one's input."""
    part(model, f"{STACK}.mlp").register_forward_hook(lambda _m, _i, found: found[..., :-1])


def illegal_access(model: Any) -> None:
    """What the driver says in the middle of a step, by torch's class and number for it."""
    import torch

    def hook(*_unused: Any) -> None:
        error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        error.error_code = 700  # type: ignore[attr-defined]
        raise error

    part(model, STACK).register_forward_pre_hook(hook)


def no_memory(model: Any) -> None:
    """A step that does not fit."""
    import torch

    def hook(module: Any, *_unused: Any) -> None:
        if module.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    part(model, STACK).register_forward_pre_hook(hook)


# Kernels: what torch and bitsandbytes hand to the device, replaced at the place where they do.
DEQUANTISE = "torch:ops.bitsandbytes.dequantize_4bit.default"
PRODUCT = "torch:ops.bitsandbytes.gemm_4bit.default"
BACKWARD = "bitsandbytes.autograd._functions:MatMul4Bit.backward"


def off(by: float) -> Callable[[Any], Any]:
    """A kernel whose results are all too large by this share."""
    return lambda usual: lambda *a, **k: usual(*a, **k) * (1 + by)


def backward_off(by: float) -> Callable[[Any], Any]:
    """The gradient that a packed layer hands back, too large by this share."""

    def make(usual: Any) -> Any:
        def backward(*arguments: Any) -> Any:
            return tuple(each if each is None else each * (1 + by) for each in usual(*arguments))

        return backward

    return make


def one_wrong(least: int = 0) -> Callable[[Any], Any]:
    """A kernel that computes one value wrongly, where there are more than so many."""

    def make(usual: Any) -> Any:
        def kernel(*arguments: Any, **named: Any) -> Any:
            found = usual(*arguments, **named)
            if found.is_floating_point() and found.numel() > least:
                found.view(-1)[-1] += 0.25
            return found

        return kernel

    return make


def raising(error: Exception) -> Callable[[Any], Any]:
    """A kernel that raises."""

    def make(_usual: Any) -> Any:
        def kernel(*_arguments: Any, **_named: Any) -> Any:
            raise error

        return kernel

    return make
