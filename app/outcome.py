"""The words in which everything here is judged: status, fault, finding.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check or a stage ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"  # nothing to judge here, and the reason says why
    ERROR = "error"  # could not look: never a pass
    NOT_RUN = "not_run"  # an earlier stage did not pass, or the boot was told to stop

    @property
    def blocks(self) -> bool:
        """Whether later stages must not run."""
        return self in (Status.FAIL, Status.ERROR)


class Severity(StrEnum):
    """The most that a check can do to a boot."""

    CRITICAL = "critical"  # can fail it
    WARNING = "warning"  # can only warn


class Fault(StrEnum):
    """What kind of thing is wrong. `app.exits` alone turns it into an exit code."""

    USAGE = "usage"
    DATA_INVALID = "data_invalid"
    MODEL_ABSENT = "model_absent"
    NODE_UNFIT = "node_unfit"
    INTERNAL = "internal"
    REPORT_UNWRITABLE = "report_unwritable"
    READ_ERROR = "read_error"
    TEMPORARY = "temporary"
    PRECISION = "precision"
    ACCESS_DENIED = "access_denied"
    CONFIG = "config"
    HARDWARE_MISMATCH = "hardware_mismatch"
    NUMERICS = "numerics"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says.

    `reason` is one line. `fault` and `source` stand only where a finding differs from what its
    check declares.
    """

    status: Status
    reason: str
    expected: str = ""
    actual: str = ""
    next_step: str = ""
    fault: Fault | None = None
    source: str = ""


def passed(reason: str, *, expected: str = "", actual: str = "") -> Finding:
    """The fact was read and is as it should be."""
    return Finding(Status.PASS, reason, expected, actual)


def skipped(reason: str) -> Finding:
    """Nothing to judge in this boot; `reason` says why."""
    return Finding(Status.SKIP, reason)


def warned(reason: str, *, expected: str, actual: str, next_step: str) -> Finding:
    """Not as it should be, and the boot goes on."""
    return Finding(Status.WARN, reason, expected, actual, next_step)


def failed(
    reason: str, *, expected: str, actual: str, next_step: str, fault: Fault | None = None
) -> Finding:
    """Not as it must be. `fault` overrides the check's own."""
    return Finding(Status.FAIL, reason, expected, actual, next_step, fault)


def unread(
    reason: str, *, expected: str, actual: str, next_step: str, fault: Fault | None = None
) -> Finding:
    """The fact could not be read, which is never a pass."""
    return Finding(Status.ERROR, reason, expected, actual, next_step, fault)


def combine(statuses: list[Status]) -> Status:
    """Status of a stage from those of its checks, worst first; no checks is a pass."""
    for status in (Status.ERROR, Status.FAIL, Status.WARN):
        if status in statuses:
            return status
    if statuses and all(status is Status.SKIP for status in statuses):
        return Status.SKIP
    return Status.PASS
