"""The report's forecast of memory, in bytes, made before anything is loaded."""

from __future__ import annotations

from pydantic import Field

from app.facts.memory_part import PhaseT, PlaceT
from app.sections import Section


class ForecastPart(Section):
    """One thing that takes memory: surely, and at most; `basis` says how it was found."""

    name: str
    place: PlaceT
    phase: PhaseT
    low_bytes: int
    high_bytes: int
    basis: str


class ForecastPool(Section):
    """Memory that there is; None where it could not be read."""

    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    low_bytes: int  # taken of it, surely
    high_bytes: int  # taken of it, at most


class Forecast(Section):
    """What loading and training are expected to take, in parts, against what there is.

    On a rehearsal the device is the host. `n_tokens` is the length of the one sequence in a batch.
    Parts of the phases `loss` and `backward` of a step do not coincide.
    """

    device: ForecastPool
    host: ForecastPool
    device_is_host: bool = False
    n_tokens: int
    fitting_tokens: int | None = None  # a shorter length that fits what is free
    no_training: str = ""  # why the parts hold no training
    parts: list[ForecastPart] = Field(default_factory=list)
