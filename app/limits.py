"""How long anything may take, in seconds. A leaf: imports nothing of the app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines by stage, of the whole guard and of the job; 0 in the settings is NEVER here.

    `grace` is the time from a TERM, received or sent, to the end of every process.
    """

    stages: Mapping[str, float] = field(default_factory=dict)
    total: float = NEVER
    job: float = NEVER
    grace: float = 5.0

    def of(self, stage: str) -> float:
        """The deadline of a stage, from its start."""
        if stage == "job":
            return self.job
        return self.stages.get(stage, NEVER)
