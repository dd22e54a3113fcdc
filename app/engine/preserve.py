"""Leaves a model as it was: what training steps touch is put back, bit for bit, in place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

_CONFIGS = ("config", "generation_config")


@contextmanager
def preserved(model: nn.Module, trained: list[nn.Parameter]) -> Iterator[None]:
    """Restores `trained`, gradients, flags, buffers, training mode, `use_cache` and all RNGs.

    Also which layers' adapters are switched off.
    Parameters keep their storage, so that a caller's references stay good. The base's parameters
    are not copied (gigabytes); the caller compares their checksums instead.
    """
    values = [parameter.detach().clone() for parameter in trained]
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    ]
    # PEFT's `disable_adapter()` switches every layer on when it ends, also one that was off before.
    switched = [
        (module, module._disable_adapters)
        for module in model.modules()
        if isinstance(getattr(module, "_disable_adapters", None), bool)
    ]
    use_cache = [(holder, holder.use_cache) for holder in _configs(model)]
    generators = _generators()
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(trained, values, strict=True):
                parameter.copy_(value)
            for module, name, buffer, value in buffers:
                buffer.copy_(value)
                module._buffers[name] = buffer
        for parameter, requires_grad, grad in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        for module, training in modes:
            module.training = training
        for layer, off in switched:
            layer._disable_adapters = off
        for holder, value in use_cache:
            holder.use_cache = value
        _restore(generators)


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration object of the model that says `use_cache`, each once."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for name in _CONFIGS:
            holder = getattr(module, name, None)
            if hasattr(holder, "use_cache"):
                found[id(holder)] = holder
    return list(found.values())


def _generators() -> tuple[Any, ...]:
    cuda = _cuda_states()
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


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
