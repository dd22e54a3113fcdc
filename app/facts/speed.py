"""Facts of the speed of the arithmetic, as short measurements. Operations and bytes per second."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedFacts:
    """A matrix product and a copy in the compute dtype, the product in float32 beside it.

    `slice` marks a part of a card (MIG), of which nothing is promised.
    """

    device: str
    dtype: str
    side: int  # of the square matrices
    matmul_flops: float
    float32_flops: float
    copy_bytes: float
    slice: bool = False
    seconds: float = 0.0
