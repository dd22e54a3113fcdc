"""A model's NF4 weights where they lie, and what a kernel makes of them or why it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from app.engine.arithmetic import of_the_device
from app.facts.names import origin_name
from app.facts.words import one_line


@dataclass(frozen=True)
class Layer:
    """A packed weight: its name before PEFT, its module, its bytes as one column, its state."""

    name: str
    module: nn.Module
    packed: torch.Tensor
    state: Any

    @property
    def nested(self) -> int | None:
        """The block size of scales that are packed too, None for plain ones."""
        return int(self.state.state2.blocksize) if self.state.nested else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight when it is unpacked."""
        return tuple(self.state.shape)


def layers(model: nn.Module) -> Iterator[Layer]:
    """Every NF4 weight that is in memory, in a Linear or not, tied ones once."""
    from bitsandbytes.functional import QuantState

    seen = set()
    for path, module in model.named_modules():
        for leaf, weight in module._parameters.items():
            state = getattr(weight, "quant_state", None)
            if weight is None or not isinstance(state, QuantState) or id(weight) in seen:
                continue
            if state.quant_type == "nf4" and not weight.is_meta:
                seen.add(id(weight))
                name = origin_name(f"{path}.{leaf}" if path else leaf)
                yield Layer(name, module, weight.detach().reshape(-1, 1), state)


def tried(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor | None, str]:
    """What a kernel gives, or why it refuses. What the device itself says goes on as it is."""
    try:
        return run(), ""
    except (RuntimeError, ValueError) as error:
        if of_the_device(error):
            raise
        return None, one_line(f"{type(error).__name__}: {error}")
