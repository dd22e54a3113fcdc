"""When the current stage, and the whole guard, must have ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.limits import NEVER, Limits


class Deadlines:
    """Runs from its making; `begin` starts the time of a stage."""

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._stage = ""
        self._stage_end = NEVER
        self._total_end = now() + limits.total

    def begin(self, stage: str) -> None:
        """The time of this stage starts."""
        self._stage, self._stage_end = stage, self._now() + self._limits.of(stage)

    def begin_job(self) -> None:
        """The guard is over, and with it its deadlines."""
        self.begin("job")
        self._total_end = NEVER

    def left(self) -> float:
        """Seconds to the next deadline; not positive when it has passed."""
        return min(self._stage_end, self._total_end) - self._now()

    def named(self) -> str:
        """The setting of the next deadline, and its value in seconds."""
        if self._total_end < self._stage_end:
            return f"BOOT_TOTAL_TIMEOUT_S={self._limits.total:g}"
        return f"BOOT_{self._stage.upper()}_TIMEOUT_S={self._limits.of(self._stage):g}"
