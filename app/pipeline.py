"""Runs stages: gathers facts, asks every check, says how the stage ended.

The step guard here is one of the two places that swallow every exception (the other is the boot's
edge): whatever a step throws becomes a finding with its type, text and causes, and the other
checks of the stage still run.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.blame import blamed
from app.checks import Check
from app.errors import BootError, causes
from app.exits import exit_code, worst
from app.outcome import Fault, Finding, Status, combine, unread
from app.plan import Plan
from app.report import CheckRecord
from app.sections import Section

# A part of the report, or a list of its parts.
Published = Section | Sequence[Section]


class Sink(Protocol):
    """Where stages are told to: the report in the supervisor, the pipe in the worker."""

    def stage_started(self, name: str) -> None:
        """A stage begins."""

    def check(self, record: CheckRecord) -> None:
        """A check ended."""

    def section(self, name: str, section: Published) -> None:
        """A part of the report is known."""

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """A stage ended, all its checks told."""

    def trouble(self, name: str, error: BaseException) -> None:
        """A step of the stage threw what nobody foresaw: for the log, the finding is told too."""


class Session(Protocol):
    """What the stages of one process share; `plan` grows as stages resolve it."""

    @property
    def plan(self) -> Plan:
        """The plan as known so far."""


@dataclass(frozen=True, slots=True)
class Part:
    """Facts of one kind within a stage: how to gather, what to ask, what to put in the report."""

    gather: Callable[[], Any]
    checks: tuple[Check[Any], ...]
    publish: Callable[[Any], Mapping[str, Published]] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A named step of the boot. `tells` is the check that says most of one that passed."""

    name: str
    parts: tuple[Part, ...]
    tells: str = ""


def run_stages(
    stages: Iterable[Stage], session: Session, sink: Sink, *, stop_after: str | None
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
    sink.stage_started(stage.name)
    records: list[CheckRecord] = []
    gathered = True
    for part in stage.parts:
        if gathered:
            found, gathered = _run_part(stage.name, part, session, sink)
        else:
            found = _not_run(stage.name, part, "an earlier part of the stage was not gathered")
        for record in found:
            sink.check(record)
        records += found
    status = combine([record.status for record in records])
    sink.stage_finished(stage.name, status, headline(status, records, stage.tells))
    return status


def headline(status: Status, records: Sequence[CheckRecord], tells: str = "") -> str:
    """The reason that tells most: of what decides the exit status, else of what gave the status.

    Of several that gave it, that of the check `tells`, else the first.
    """
    if status.blocks:
        faults = [(record, record.fault) for record in records if record.fault is not None]
        deciding = worst(exit_code(fault) for _, fault in faults)
        first = next(record for record, fault in faults if exit_code(fault) is deciding)
        more = f" (+{len(faults) - 1} more)" if len(faults) > 1 else ""
        return f"{first.reason}{more}"
    reasons = {record.id: record.reason for record in records if record.status is status}
    return reasons.get(tells) or next(iter(reasons.values()), "")


def _run_part(
    stage: str, part: Part, session: Session, sink: Sink
) -> tuple[list[CheckRecord], bool]:
    """Records of a part, and whether its facts could be gathered."""

    def guarded(step: Callable[[], Any]) -> tuple[Any, Finding | None]:
        return _guarded(step, stage, sink)

    facts, trouble = guarded(part.gather)
    if trouble is not None:
        failed = CheckRecord.of(stage, f"{stage}.gather", trouble, source="the exception")
        return [failed, *_not_run(stage, part, "the facts could not be gathered")], False
    records = []
    for check in part.checks:
        began = time.monotonic()
        finding, trouble = guarded(lambda check=check: check.judge(facts, session.plan))  # type: ignore[misc]
        spent = 1000 * (time.monotonic() - began)
        records.append(_record(stage, check, trouble or finding, spent))
    publish = part.publish
    if publish is not None:
        sections, trouble = guarded(lambda: publish(facts))
        if trouble is not None:
            records.append(
                CheckRecord.of(stage, f"{stage}.publish", trouble, source="the exception")
            )
        for name, section in (sections or {}).items():
            sink.section(name, section)
    return records, True


def _not_run(stage: str, part: Part, reason: str) -> list[CheckRecord]:
    """Records of checks that could not be asked: visible, and never a pass."""
    return [_record(stage, check, Finding(Status.NOT_RUN, reason)) for check in part.checks]


def _record(stage: str, check: Check[Any], finding: Finding, spent: float = 0.0) -> CheckRecord:
    return CheckRecord.of(
        stage,
        check.id,
        finding,
        fault=check.fault,
        source=check.source,
        severity=check.severity,
        duration_ms=spent,
    )


def _guarded(step: Callable[[], Any], stage: str, sink: Sink) -> tuple[Any, Finding | None]:
    """The step guard: a value, or the finding that its exception amounts to."""
    try:
        return step(), None
    except BootError as error:
        return None, error.finding
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the step guard, see the docstring
        sink.trouble(stage, error)
        return None, unexpected(error)


def unexpected(error: BaseException) -> Finding:
    """What an exception that nobody foresaw amounts to: a bug of ours until shown otherwise."""
    found = blamed(error, chain(error)[:2000])
    if found is not None:
        return found
    return unread(
        chain(error)[:2000],
        expected="a step that ends with an answer",
        actual=type(error).__name__,
        next_step="read the traceback in the log; if neither model nor node is at fault, report it "
        "with this file",
        fault=Fault.INTERNAL,
    )


def chain(error: BaseException) -> str:
    """Type, text and place of an exception and of its causes, innermost last, on one line."""
    parts = []
    for each in causes(error):
        frames = traceback.extract_tb(each.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        parts.append(f"{type(each).__name__}: {' '.join(str(each).split())}{place}")
    return " <- ".join(parts)
