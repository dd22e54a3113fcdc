"""Leaves a model as it was: what steps and a generation touch is put back, bit for bit, in place.

`preserved` puts it back, `condition` tells what there is, so that the two need not be believed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from app.engine.weights import byte_sums
from app.facts.names import origin_name

_CONFIGS = ("config", "generation_config")
# Unsloth's generate leaves this on a model, for whose cached forwards it then takes another path.
_FOR_GENERATION = "_flag_for_generation"
# What of torch's own state a library may set for itself and forget to put back.
_GLOBALS: tuple[Callable[[], object], ...] = (
    *(torch.get_num_threads, torch.get_default_dtype, torch.is_grad_enabled),
    *(torch.are_deterministic_algorithms_enabled, torch.get_float32_matmul_precision),
)
_PLAIN = (bool, int, float, str, type(None))


@contextmanager
def preserved(model: nn.Module, trained: list[nn.Parameter]) -> Iterator[Callable[[], None]]:
    """Restores `trained`, gradients, flags, buffers, modes, configurations and all RNGs.

    Yields a function that puts the values of `trained` back before that. Parameters keep their
    storage, so that a caller's references stay good. The base's parameters are not copied
    (gigabytes); the caller compares their checksums instead.
    """
    values = [parameter.detach().clone() for parameter in trained]
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    # Modes, gradient checkpointing, PEFT's switched off layers, lengths that caches are made for.
    # Types are left out: the census after the steps shall see what became of them.
    flags = [(vars(module), _plain(module)) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    ]
    configs = [(vars(config), dict(vars(config))) for config in _configs(model)]
    sides = [(each, each.padding_side) for each in _tokenizers(model)]
    generators = _generators()

    @torch.no_grad()
    def put_back() -> None:
        for parameter, value in zip(trained, values, strict=True):
            parameter.copy_(value)

    try:
        yield put_back
    finally:
        put_back()
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                with torch.inference_mode(buffer.is_inference()):  # else it must not be written to
                    buffer.copy_(value)
                module._buffers[name] = buffer
        for parameter, requires_grad, grad in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        for now, before in (*flags, *configs):
            now.update(before)
        for now, before in flags:
            if _FOR_GENERATION not in before:
                now.pop(_FOR_GENERATION, None)
        for tokenizer, side in sides:
            tokenizer.padding_side = side
        _restore(generators)


@contextmanager
def adapter_off(model: Any) -> Iterator[None]:
    """The base alone, where there is an adapter.

    PEFT's own switch lets every layer and pair take part again when it ends, also one that did not
    before: both are put back.
    """
    if not hasattr(model, "disable_adapter"):
        yield
        return
    layers = [each for each in model.modules() if hasattr(each, "_disable_adapters")]
    switched = [(layer, layer._disable_adapters) for layer in layers]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with model.disable_adapter():
        yield
    for layer, off in switched:
        layer._disable_adapters = off
    for parameter, requires_grad in trained:
        parameter.requires_grad_(requires_grad)


def condition(model: nn.Module, trained: list[nn.Parameter]) -> dict[str, object]:
    """What `preserved` answers for, by name; two are compared with `differing`.

    Bytes are told by sums, with one wait per device.
    """
    ours = {id(parameter) for parameter in trained}
    found: dict[str, object] = {}
    summed: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        origin, grad = origin_name(name), parameter.grad
        found[f"requires_grad of {origin}"] = parameter.requires_grad
        found[f"gradient of {origin}"] = None if grad is None else id(grad)
        if id(parameter) in ours:
            found[f"storage of {origin}"] = parameter.data_ptr()
            summed[origin] = parameter
    for path, module in model.named_modules():
        origin = origin_name(path)
        found |= {f"{key} of {origin}": value for key, value in _plain(module).items()}
        found[f"{_FOR_GENERATION} of {origin}"] = _FOR_GENERATION in vars(module)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                summed[f"{origin}.{key}"] = buffer
    for config in _configs(model):
        origin = f"{type(config).__name__} {id(config):x}"
        found |= {f"{key} of {origin}": value for key, value in _plain(config).items()}
    found |= {f"padding_side of {type(t).__name__}": t.padding_side for t in _tokenizers(model)}
    found |= {f"torch.{ask.__name__}()": ask() for ask in _GLOBALS}
    found |= {f"bytes of {name}": total for name, total in byte_sums(summed).items()}
    names = ("Python", "numpy", "torch", "CUDA")
    for name, state in zip(names, _generators(), strict=True):
        found[f"generator of {name}"] = _digest(state)
    return found


def differing(before: dict[str, object], after: dict[str, object]) -> tuple[str, ...]:
    """Names of what was there before and is another now. What a library adds is left to it."""

    def same(name: str, value: object) -> bool:  # also a NaN that is itself
        return name in after and (after[name] is value or after[name] == value)

    return tuple(name for name, value in before.items() if not same(name, value))


def _plain(holder: object) -> dict[str, Any]:
    """Attributes of an object that are values and no parts of it."""
    return {name: value for name, value in vars(holder).items() if isinstance(value, _PLAIN)}


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration object of the model and of its parts, each once."""
    found: dict[int, Any] = {}
    pending = [getattr(module, name, None) for module in model.modules() for name in _CONFIGS]
    while pending:
        holder = pending.pop()
        if hasattr(holder, "to_diff_dict") and id(holder) not in found:
            found[id(holder)] = holder
            pending += vars(holder).values()
    return list(found.values())


def _tokenizers(model: nn.Module) -> list[Any]:
    """Unsloth keeps the tokenizer on the model and turns its padding around to generate."""
    found = [vars(module).get("_saved_temp_tokenizer") for module in model.modules()]
    unique = {id(each): each for each in found if hasattr(each, "padding_side")}
    return list(unique.values())


def _generators() -> tuple[Any, ...]:
    cuda = _cuda_states()
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def _digest(state: Any) -> int:
    """One number of a generator's state, which is tensors, arrays and tuples of numbers."""
    if isinstance(state, torch.Tensor):
        return hash(state.numpy().tobytes())
    if isinstance(state, np.ndarray):
        return hash(state.tobytes())
    return hash(tuple(map(_digest, state))) if isinstance(state, tuple | list) else hash(state)


def _cuda_states() -> list[torch.Tensor]:
    """Of every device, once there is a context; asking must not create one."""
    ready: bool = torch.cuda.is_initialized()
    return torch.cuda.get_rng_state_all() if ready else []


def _restore(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002 - the global generator is what a trainer uses
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
