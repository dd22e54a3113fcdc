"""What a forecast is made of: one thing that takes memory, where, when, and within which bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PlaceT = Literal["device", "host"]
# `training` is all of a step; `loss` its end of the forward pass, `backward` one layer's turn after
# it: what they hold does not coincide.
PhaseT = Literal["always", "load", "training", "loss", "backward"]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One thing that takes memory, in bytes: surely, and at most. `basis` says how it was found.

    `mapped_bytes` of the lower bound are pages of a file on the host, which can be taken back.
    """

    name: str
    low_bytes: int
    high_bytes: int
    basis: str
    place: PlaceT = "device"
    phase: PhaseT = "always"
    mapped_bytes: int = 0
