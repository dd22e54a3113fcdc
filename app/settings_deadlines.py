"""The settings that bound time: a deadline for each stage, for the guard, for the job; the grace.

Imports leaves only. `app.settings_model.BootSettings` is built on this class.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from app.limits import NEVER, Limits
from app.settings_rules import seconds
from app.stages import STAGES

# The settings are judged without waiting for anything, and a job's own deadline is no guard's.
TIMED_STAGES: tuple[str, ...] = tuple(name for name in STAGES if name not in ("settings", "job"))
# A week: the longest job that clusters commonly allow. More is a slip of units (milliseconds).
_LONGEST = 7 * 24 * 3600
Deadline = Annotated[float, seconds(0, _LONGEST)]
_OF_STAGE = "Deadline of this stage, from its start."


def field_of(stage: str) -> str:
    """The field that holds the deadline of a stage."""
    return f"{stage}_timeout_s"


class DeadlineSettings(BaseSettings):
    """Seconds, 0 for no deadline.

    The defaults are to end what hangs, not what is slow: generous, so that nobody has to raise one
    on a healthy node. Those of stages that use a device are estimates, not measured on one yet.
    """

    # Hundredths of a second; a network mount that is coming back may need half a minute.
    host_timeout_s: Deadline = Field(60.0, description=_OF_STAGE)
    # An NVSwitch node answers 802 (not yet initialised) until its fabric manager is up: minutes.
    gpu_timeout_s: Deadline = Field(300.0, description=_OF_STAGE)
    # The default model is 8 GB: 18 Mbit/s still make it in the hour.
    cache_timeout_s: Deadline = Field(3600.0, description=_OF_STAGE)
    # The slowest mirrors answer within seconds; the hub's own time-outs do not bound a server that
    # accepts and says nothing.
    stall_timeout_s: Deadline = Field(
        60.0,
        description="Time without a new byte of a download, after which it is started again.",
    )
    # Headers only, but a cold network file system opens each of dozens of shards in seconds.
    checkpoint_timeout_s: Deadline = Field(600.0, description=_OF_STAGE)
    # 10 s warm; the first import writes bytecode and reads gigabytes of libraries: a minute.
    stack_timeout_s: Deadline = Field(300.0, description=_OF_STAGE)
    # Weights at 5 MB/s from a cold network disk: 8 GB in 27 minutes.
    load_timeout_s: Deadline = Field(1800.0, description=_OF_STAGE)
    # A walk over all parameters: seconds.
    precision_timeout_s: Deadline = Field(300.0, description=_OF_STAGE)
    # Seconds; another walk.
    adapter_timeout_s: Deadline = Field(300.0, description=_OF_STAGE)
    # A few steps, but the first of them compiles kernels: minutes with an empty cache.
    numerics_timeout_s: Deadline = Field(900.0, description=_OF_STAGE)
    # Waits for the slowest rank, whose node may still be pulling its image.
    collective_timeout_s: Deadline = Field(600.0, description=_OF_STAGE)
    # The cache's hour, and one for all the rest; less than the sum on purpose.
    total_timeout_s: Deadline = Field(
        7200.0, description="Deadline of everything before the job, all stages together."
    )
    # How long training may take is the user's and the scheduler's to say.
    job_timeout_s: Deadline = Field(0.0, description="Deadline of the job, from its start.")
    # Docker's own stop kills after 10 s, and the report has to be written after the grace. Below
    # 1 s a healthy process is killed while it leaves.
    grace_s: Annotated[float, seconds(1, 600)] = Field(
        5.0, description="Time from a TERM, received or sent, to the end of every process."
    )

    def limits(self) -> Limits:
        """The deadlines as the supervisor keeps them."""
        return Limits(
            stages={stage: _limit(getattr(self, field_of(stage))) for stage in TIMED_STAGES},
            total=_limit(self.total_timeout_s),
            job=_limit(self.job_timeout_s),
            grace=self.grace_s,
        )


def _limit(setting: float) -> float:
    return setting or NEVER
