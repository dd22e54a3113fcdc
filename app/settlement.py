"""How a boot ends: verdict and exit record from its stages, checks, signal and job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.exits import ACTIONS, ExitCode, exit_code, worst
from app.outcome import Fault, Status, unread
from app.report import CheckRecord, Exit, JobRecord, StageRecord, State, Verdict
from app.signals import exit_status
from app.stages import STAGES


@dataclass(frozen=True, slots=True)
class Course:
    """What has happened. `stages` holds every stage, `signal` the first request to end."""

    stages: Mapping[str, StageRecord]
    checks: Sequence[CheckRecord]
    current: str
    job: JobRecord | None = None
    signal: str = ""
    stopped_after: str | None = None

    @property
    def faults(self) -> list[Fault]:
        """Of all checks that say whose fault something is."""
        return [record.fault for record in self.checks if record.fault is not None]

    @property
    def job_code(self) -> int | None:
        """The status of a job that has ended by itself."""
        return None if self.job is None else self.job.code


def unexplained(course: Course) -> CheckRecord | None:
    """The check for a boot that is not ready and does not say why; None for all others.

    A boot is ready only if every stage that it was asked for has ended, and none blocks. A job
    that failed by itself blocks its stage too, and is no fault of the boot's.
    """
    if course.faults or course.signal:
        return None
    asked = STAGES
    if course.stopped_after is not None:
        asked = STAGES[: STAGES.index(course.stopped_after) + 1]
    lacking = [name for name in asked if course.stages[name].status is Status.NOT_RUN]
    blocked = [name for name in asked if course.stages[name].status.blocks and name != "job"]
    if not lacking + blocked:
        return None
    where = (lacking + blocked)[0]
    lost = unread(
        f"stage {where} has no result, and nothing says why",
        expected="a result of every stage, or the reason why there is none",
        actual=course.stages[where].status,
        next_step="report it with this file and the log",
    )
    return CheckRecord.of(where, f"{where}.ended", lost, source="the report itself")


def settle(course: Course) -> dict[str, object]:
    """The fields of the report that say how it ended; `unexplained` has been asked before."""
    codes = [exit_code(fault) for fault in course.faults]
    if not codes and course.signal and course.job_code is None:
        codes = [ExitCode(exit_status(course.signal))]
    code = worst(codes)
    warned = any(record.status is Status.WARN for record in course.checks)
    good = Verdict.WARN if warned else Verdict.PASS
    return {
        "state": State.INTERRUPTED if course.signal else State.COMPLETE,
        "stopped_after": course.stopped_after if code is ExitCode.OK else None,
        "verdict": good if code is ExitCode.OK else Verdict.FAIL,
        "exit": _exit(course, code),
    }


def explained(course: Course) -> dict[str, StageRecord]:
    """The stages; those that did not run say why."""
    blocked = [record.name for record in course.stages.values() if record.status.blocks]
    why = f"BOOT_STOP_AFTER={course.stopped_after}" if course.stopped_after else ""
    why = f"{course.signal} received" if course.signal else why
    why = f"stage {blocked[0]} did not pass" if blocked else why
    return {
        name: record.model_copy(update={"finding": why})
        if record.status is Status.NOT_RUN
        else record
        for name, record in course.stages.items()
    }


def _exit(course: Course, code: ExitCode) -> Exit:
    """The exit record: reason and next step of the first check that decided it."""
    deciding = [check for check in course.checks if check.fault and exit_code(check.fault) is code]
    reason, process_code = ACTIONS[code].meaning, int(code)
    if deciding:
        more = f" (+{len(deciding) - 1} more)" if len(deciding) > 1 else ""
        reason = f"{deciding[0].reason}{more}"
    elif course.job is not None and course.job_code is not None:
        reason, process_code = _after_job(course, course.job, course.job_code)
    elif code is ExitCode.OK and course.stopped_after:
        reason = f"stopped after {course.stopped_after} as asked; nothing later was judged"
    elif course.signal:
        reason = f"{course.signal} received in stage {course.current}"
    return Exit(
        code=code,
        name=code.name,
        reason=reason,
        retry=ACTIONS[code].retry,
        next_step=deciding[0].next_step if deciding else "",
        process_code=process_code,
    )


def _after_job(course: Course, job: JobRecord, code: int) -> tuple[str, int]:
    """Reason and status of a boot whose job has ended: the job's, but never 0 after a signal."""
    told = f"raised {job.raised}" if job.raised else f"returned {job.returned}"
    if course.signal:
        told = f"{told} after {course.signal}"
        code = code or exit_status(course.signal)
    return f"the guard passed; {job.target} {told}", code
