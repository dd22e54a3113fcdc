"""What loading and training will take of memory, computed from headers and settings alone."""

from __future__ import annotations

from dataclasses import dataclass

from app.facts.checkpoint import CheckpointFacts
from app.facts.gpu import GpuFacts
from app.facts.host import MemoryFacts
from app.plan import Plan


@dataclass(frozen=True, slots=True)
class ForecastFacts:
    """Bytes. `problem` says why there is no forecast, and is empty where there is one."""

    problem: str = ""
    device_bytes: int = 0
    host_bytes: int = 0


def make_forecast(
    plan: Plan, checkpoint: CheckpointFacts, gpu: GpuFacts | None, memory: MemoryFacts
) -> ForecastFacts:
    """The need against what there is."""
    del plan, checkpoint, gpu, memory
    return ForecastFacts(problem="not built yet")
