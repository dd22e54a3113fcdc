"""Runs stages: gathers facts, asks every check, says how the stage ended.

The step guard here is one of the two places that catch every exception (the other is the boot's
edge): whatever a step throws becomes a finding with its type, text and causes, and the other
checks of the stage still run.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from app.checks import Check
from app.errors import BootError
from app.outcome import Fault, Finding, Severity, Status, combine, unread
from app.plan import Plan
from app.report import CheckRecord, StageRecord
from app.sections import Section
from app.streams import put


class Sink(Protocol):
    """Where stages are told to: the report in the supervisor, the pipe in the worker."""

    def stage_started(self, name: str, started: str) -> None:
        """A stage begins."""

    def check(self, record: CheckRecord) -> None:
        """A check ended."""

    def section(self, name: str, section: Section) -> None:
        """A part of the report is known."""

    def stage_finished(self, record: StageRecord) -> None:
        """A stage ended, all its checks told."""


class Session(Protocol):
    """What the stages of one process share; `plan` grows as stages resolve it."""

    @property
    def plan(self) -> Plan:
        """The plan as known so far."""


@dataclass(frozen=True, slots=True)
class Part:
    """Facts of one kind within a stage: how to gather, what to ask, what to put in the report.

    The facts' type is the same in all three, which `part` sees to.
    """

    gather: Callable[[], Any]
    checks: tuple[Check[Any], ...]
    publish: Callable[[Any], Mapping[str, Section]] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A named step of the boot."""

    name: str
    parts: tuple[Part, ...]


def now() -> str:
    """The time as the report holds it: UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def run_stages(
    stages: Sequence[Stage], session: Session, sink: Sink, *, stop_after: str | None
) -> bool:
    """Run stages in order until one blocks or the boot is told to stop; True when all may go on."""
    for stage in stages:
        if run_stage(stage, session, sink).blocks:
            return False
        if stage.name == stop_after:
            return False
    return True


def run_stage(stage: Stage, session: Session, sink: Sink) -> Status:
    """Run all checks of a stage, whatever the others found, and tell the sink."""
    began = time.monotonic()
    started = now()
    sink.stage_started(stage.name, started)
    records: list[CheckRecord] = []
    gathered = True
    for part in stage.parts:
        found = _run_part(stage.name, part, session, sink) if gathered else _not_run(stage, part)
        gathered = not any(record.id.endswith(".gather") for record in found)
        for record in found:
            sink.check(record)
        records += found
    status = combine([record.status for record in records])
    sink.stage_finished(
        StageRecord(
            name=stage.name,
            status=status,
            started=started,
            duration_s=round(time.monotonic() - began, 3),
            finding=headline(status, records),
        )
    )
    return status


def headline(status: Status, records: Sequence[CheckRecord]) -> str:
    """The reason that tells most: the first of the checks that gave the stage its status."""
    telling = [record.reason for record in records if record.status is status]
    if not telling:
        return ""
    more = len(telling) - 1
    return f"{telling[0]} (+{more} more)" if status.blocks and more else telling[0]


def record_of(
    stage: str, check: Check[Any], finding: Finding, *, duration_ms: float = 0.0
) -> CheckRecord:
    """A finding with what its check declares."""
    return CheckRecord(
        stage=stage,
        id=check.id,
        status=finding.status,
        severity=check.severity,
        reason=finding.reason,
        expected=finding.expected,
        actual=finding.actual,
        source=finding.source or check.source,
        next_step=finding.next_step,
        fault=(finding.fault or check.fault) if finding.status.blocks else None,
        duration_ms=round(duration_ms, 3),
    )


def _run_part(stage: str, part: Part, session: Session, sink: Sink) -> list[CheckRecord]:
    facts, trouble = _guarded(part.gather)
    if trouble is not None:
        failed = CheckRecord(
            stage=stage,
            id=f"{stage}.gather",
            status=trouble.status,
            severity=Severity.CRITICAL,
            reason=trouble.reason,
            expected=trouble.expected,
            actual=trouble.actual,
            source=trouble.source,
            next_step=trouble.next_step,
            fault=trouble.fault,
        )
        return [failed, *_asked(stage, part, "the facts could not be gathered")]
    records = []
    for check in part.checks:
        began = time.monotonic()
        finding, trouble = _guarded(lambda check=check: check.judge(facts, session.plan))  # type: ignore[misc]
        spent = 1000 * (time.monotonic() - began)
        records.append(record_of(stage, check, trouble or finding, duration_ms=spent))
    if part.publish is not None:
        sections, trouble = _guarded(lambda: part.publish(facts))  # type: ignore[misc]
        if trouble is not None:
            lost: Check[Any] = Check(
                f"{stage}.publish", Fault.INTERNAL, "the report's schema", lambda _f, _p: trouble
            )
            return [*records, record_of(stage, lost, trouble)]
        for name, section in sections.items():
            sink.section(name, section)
    return records


def _not_run(stage: Stage, part: Part) -> list[CheckRecord]:
    return _asked(stage.name, part, "an earlier part of the stage could not be gathered")


def _asked(stage: str, part: Part, reason: str) -> list[CheckRecord]:
    """Records of checks that could not be asked: visible, and never a pass."""
    return [record_of(stage, check, Finding(Status.NOT_RUN, reason)) for check in part.checks]


def _guarded(step: Callable[[], Any]) -> tuple[Any, Finding | None]:
    """The step guard: a value, or the finding that its exception amounts to."""
    try:
        return step(), None
    except BootError as error:
        return None, error.finding
    except Exception as error:  # noqa: BLE001 - the step guard, see the module's docstring
        put(sys.stderr, "".join(traceback.format_exception(error)))
        return None, unexpected(error)


def unexpected(error: BaseException) -> Finding:
    """What an exception that nobody foresaw amounts to: a bug of ours until shown otherwise."""
    return unread(
        chain(error)[:2000],
        next_step="read the traceback in the log; if the model or the node is not at fault, "
        "report it with this file",
        fault=Fault.INTERNAL,
    )


def chain(error: BaseException) -> str:
    """Type, text and place of an exception and of its causes, innermost last, on one line."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.extract_tb(current.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        text = " ".join(str(current).split())
        parts.append(f"{type(current).__name__}: {text}{place}")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return " <- ".join(parts)
