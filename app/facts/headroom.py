"""Facts of the room below float16's largest number: activations and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOAT16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest magnitude that modules of one class put out, or got as a gradient, in one dtype.

    `module_class` ends in ` input` for what went into a module and no module put out: products and
    sums between them. `name` is the module where it was seen; where values were not finite, the
    first such one.
    """

    module_class: str
    name: str
    value: float
    dtype: str = "float32"  # of the activation, and so of its gradient

    @property
    def bits(self) -> float:
        """Powers of two between it and float16's largest number; negative above that."""
        if math.isnan(self.value):
            return -math.inf
        return math.log2(FLOAT16_MAX) - math.log2(self.value) if self.value else math.inf


@dataclass(frozen=True, slots=True)
class HeadroomFacts:
    """Per module class and dtype, in one forward and one backward pass of the trained adapter.

    Each in the order in which the values were met, so that the first that is not finite is where it
    began. Gradients are those of the loss as it is, without a gradient scaler's factor.
    """

    forward: tuple[Largest, ...] = ()
    backward: tuple[Largest, ...] = ()
    n_modules: int = 0
    seconds: float = 0.0
