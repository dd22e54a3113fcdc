"""The boot report: one pydantic model, its schema, and nothing that writes it.

The JSON Schema (2020-12) of this model is committed as `docs/boot-report.schema.json`; a test
compares the two. Times are UTC in ISO 8601, durations seconds unless the name says otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from app.image import Image
from app.outcome import Fault, Finding, Severity, Status
from app.sections import Adapter, Model, Precision, Section, Software
from app.sections_forecast import Forecast
from app.sections_gpu import Gpu
from app.sections_node import Node
from app.sections_numerics import Numerics

SCHEMA_VERSION = "1.0"
REPORT_NAME = "boot-report.json"


class State(StrEnum):
    """Whether the boot got to its end."""

    IN_PROGRESS = "in_progress"  # also what a killed boot leaves behind
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


class Verdict(StrEnum):
    """The answer in one word."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class CheckRecord(Section):
    """One check as it ended. `fault` is set where it failed or could not look.

    Precision is judged after `load` and again after `adapter`, so only stage and id together
    name a record.
    """

    stage: str
    id: str
    status: Status
    severity: Severity
    reason: str
    expected: str = ""
    actual: str = ""
    source: str = ""
    next_step: str = ""
    fault: Fault | None = None
    duration_ms: float = 0.0

    @classmethod
    def of(
        cls,
        stage: str,
        check_id: str,
        finding: Finding,
        *,
        fault: Fault = Fault.INTERNAL,
        source: str = "",
        severity: Severity = Severity.CRITICAL,
        duration_ms: float = 0.0,
    ) -> CheckRecord:
        """A finding as a record; `fault` and `source` where the finding has none of its own."""
        return cls(
            stage=stage,
            id=check_id,
            status=finding.status,
            severity=severity,
            reason=finding.reason,
            expected=finding.expected,
            actual=finding.actual,
            source=finding.source or source,
            next_step=finding.next_step,
            fault=(finding.fault or fault) if finding.status.blocks else None,
            duration_ms=round(duration_ms, 3),
        )


class Activity(Section):
    """What the process of a stage did, sampled while it ran: tells slow from stuck.

    `idle_s` is how long before the last sample neither processor time nor bytes read had moved.
    `state` is the kernel's letter for the main thread (proc(5)); D is an uninterruptible wait.
    Device figures are None where no device is read.
    """

    seen: str  # UTC, of the last sample
    samples: int
    rss_bytes: int
    rss_peak_bytes: int
    read_bytes: int  # by system calls, cached or not, since the stage began
    cpu_s: float  # since the stage began
    idle_s: float
    state: str = ""
    gpu_memory_bytes: int | None = None
    gpu_busy_percent: int | None = None


class StageRecord(Section):
    """One stage. `started` is None when it has not; `finding` is its most telling reason."""

    name: str
    status: Status
    started: str | None = None
    duration_s: float = 0.0
    finding: str = ""
    activity: Activity | None = None  # None where the stage ended before the first sample


class Exit(Section):
    """The exit status and what to do about it.

    `code` and `name` are the guard's. `process_code` is what the process really exits with: the
    job's own code once a job has run, else `code`.
    """

    code: int
    name: str
    reason: str
    retry: str
    next_step: str
    process_code: int


class Identity(Section):
    """Which process on which node, under which scheduler."""

    bootguard: str
    hostname: str
    pid: int
    uid: int
    python: str
    platform: str
    scheduler: dict[str, str] = Field(default_factory=dict)


class Memory(Section):
    """Host memory in bytes: the control group's limit and peak, the worker's resident peak.

    `oom_kills` are processes that the kernel has killed for memory in our control group since this
    boot began.
    """

    host_limit_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    oom_kills: int | None = None
    worker_peak_bytes: int | None = None


class Crash(Section):
    """How a process of the boot died, or was ended at a deadline.

    `kind` is `deadline`, `signal`, `exit` (it left without a verdict), `protocol` (it said what is
    no event), or the class of an exception in the supervisor.
    """

    where: str  # stage
    kind: str
    text: str
    signal: str | None = None  # SIGSEGV
    exit_code: int | None = None
    traceback: list[str] = Field(default_factory=list)  # Python stacks, innermost call first
    kernel: list[str] = Field(default_factory=list)  # a line a thread: name, state, where it waits
    output: list[str] = Field(default_factory=list)  # the last lines that the process printed


class JobRecord(Section):
    """The user's own code after the guard: what was called, how it ended.

    Exactly one of `returned` and `raised` is set once it has ended by itself. `code` is the exit
    status that this amounts to.
    """

    target: str  # package.module:function
    started: str
    duration_s: float = 0.0
    returned: str | None = None
    raised: str | None = None
    code: int | None = None
    signals: list[str] = Field(default_factory=list)  # forwarded to it, in order


class Report(Section):
    """What one boot found. `verdict` and `exit` are None while it is in progress."""

    schema_version: str = SCHEMA_VERSION
    report_id: str
    run_id: str | None = None
    attempt: int = 1
    state: State = State.IN_PROGRESS
    verdict: Verdict | None = None
    rehearsal: bool = False
    stopped_after: str | None = None
    handed_over: bool = False
    started: str
    duration_s: float = 0.0
    exit: Exit | None = None
    identity: Identity
    image: Image | None = None  # as image.json has it; None outside an image
    settings: dict[str, Any] = Field(default_factory=dict)
    node: Node | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    software: Software | None = None
    model: Model | None = None
    forecast: Forecast | None = None
    precision: Precision | None = None
    adapter: Adapter | None = None
    numerics: Numerics | None = None
    stages: list[StageRecord] = Field(default_factory=list)
    checks: list[CheckRecord] = Field(default_factory=list)
    memory: Memory | None = None
    job: JobRecord | None = None
    crash: Crash | None = None

    @property
    def ended(self) -> float:
        """When the boot ended, in seconds since 1970, by the report's own times."""
        return datetime.fromisoformat(self.started).timestamp() + self.duration_s


def utc_now() -> str:
    """The time as a report holds it, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the report as it is written."""
    schema = Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
