"""Whether gradient checkpointing is really on: does a layer run again for its gradients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from app.engine.packed import base_model
from app.facts.numerics import Recomputed

# Up to the first number of a path: a layer of the stack that the pair stands in.
_LAYER = re.compile(r"(?:.*?\.)?\d+(?=\.)")
# Unsloth puts it in the place of torch's for "unsloth" (unsloth_zoo/gradient_checkpointing.py).
_OFFLOADING = "unsloth_checkpoint"


class Runs:
    """Counts the layers that run during a backward pass; `in_backward` is set by who starts it.

    Flags tell what was asked for, and each family and each version of Unsloth reads others.
    """

    def __init__(self, model: nn.Module, pairs: Iterable[str]) -> None:
        found = {match[0] for name in pairs if (match := _LAYER.match(name))}
        self._layers = {name: base_model(model).get_submodule(name) for name in sorted(found)}
        self._again: set[str] = set()
        self.in_backward = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hooks that leave inputs and outputs alone, for the time of the block."""

        def note(name: str, *_unused: object) -> None:
            if self.in_backward:
                self._again.add(name)

        handles = [
            layer.register_forward_pre_hook(partial(note, name))
            for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def facts(self) -> Recomputed:
        """What was seen so far."""
        functions = {_function(layer) for layer in self._layers.values()}
        offloaded = bool(self._again) and _OFFLOADING in functions
        return Recomputed(len(self._layers), len(self._again), offloaded)


def _function(layer: Any) -> str:
    """The name of the function by which transformers checkpoints a layer."""
    function = getattr(layer, "_gradient_checkpointing_func", None)
    return getattr(getattr(function, "func", function), "__name__", "")
