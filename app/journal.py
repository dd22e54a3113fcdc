"""The report while it grows: each event is noted, and stages are on disk before and after."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from app.log import Log
from app.outcome import Finding, Status, skipped
from app.redaction import Redactor
from app.report import (
    REPORT_NAME,
    Activity,
    CheckRecord,
    Crash,
    Identity,
    JobRecord,
    Memory,
    Report,
    StageRecord,
    utc_now,
)
from app.report_trouble import shared, unwritable
from app.report_writer import WRITE_S, Writer, insisted
from app.settlement import Course, explained, settle, unexplained
from app.stages import STAGES

# Between two writes of a stage that only lasts; at first sooner, see `activity`.
_REWRITE_S = 10.0


class Journal:
    """A sink of the pipeline that keeps the report. Used by the supervisor alone."""

    def __init__(
        self, folder: Path, writer: Writer, identity: Identity, log: Log, redactor: Redactor
    ) -> None:
        self._folder, self._writer = folder, writer
        self._log = log
        self._redactor = redactor
        self._began = time.monotonic()
        self._stage_began = self._written = self._began
        self._stages = {name: StageRecord(name=name, status=Status.NOT_RUN) for name in STAGES}
        self._lost = self._complained = self._shared = False
        self._signal = ""
        self._checks: list[CheckRecord] = []
        self._fields: dict[str, Any] = {}
        self.current = STAGES[0]
        self.report = Report(report_id=uuid.uuid4().hex, started=utc_now(), identity=identity)

    @property
    def path(self) -> str | None:
        """Where the report is: absolute, for readers in other folders; None when it is not."""
        return None if self._lost else self._place()

    def _place(self) -> str:
        path = self._folder / REPORT_NAME
        with contextlib.suppress(OSError):  # the working folder is gone
            path = path.absolute()
        return self._redactor.text(str(path))

    def all_passed(self, stages: Sequence[str]) -> bool:
        """Whether all of these have ended, and none so that no later one may run."""
        return all(self.has_ended(name) and not self._stages[name].status.blocks for name in stages)

    def has_ended(self, stage: str) -> bool:
        """Whether that stage has run to its end."""
        return self._stages[stage].status is not Status.NOT_RUN

    def ready(self, stopped_after: str | None) -> bool:
        """Whether all that was asked for has passed, and nothing asks for the end."""
        course = self._course(stopped_after)
        return not course.faults and not course.signal and unexplained(course) is None

    def note(self, **fields: Any) -> None:  # noqa: ANN401 - fields of the report's model
        """Set top-level fields of the report."""
        self._fields.update(fields)

    def stage_started(self, name: str) -> None:
        """Note and write: a boot that is killed now leaves the stage it was in."""
        self.current = name
        self._stage_began = time.monotonic()
        self._stages[name] = StageRecord(name=name, status=Status.NOT_RUN, started=utc_now())
        self._log.stage_started(name)
        self.write()

    def check(self, record: CheckRecord) -> None:
        """Note a check; the stage's end writes it."""
        self._checks.append(record)
        self._log.check(record)

    def section(self, name: str, section: object) -> None:
        """Note a section of the report; those of the memory add up."""
        if isinstance(section, Memory):
            self.memory(**section.model_dump(exclude_unset=True))
        else:
            self._fields[name] = section

    def memory(self, **known: int | None) -> None:
        """Note what is now known of the memory; of peaks the higher one stays."""
        before = self._fields.get("memory", {})
        peaks = [peak for each in (before, known) if (peak := each.get("worker_peak_bytes"))]
        self._fields["memory"] = {**before, **known, "worker_peak_bytes": max(peaks, default=None)}

    def activity(self, activity: Activity) -> None:
        """Note what the stage's process does; written after a second, and then ever less often."""
        stage = self._stages[self.current]
        self._stages[self.current] = stage.model_copy(update={"activity": activity})
        if time.monotonic() - self._written > min(_REWRITE_S, self.stage_seconds() / 2):
            self.write()

    def stage_seconds(self) -> float:
        """How long the current stage has taken so far."""
        return time.monotonic() - self._stage_began

    def as_it_stands(self) -> Report:
        """The report so far, with the guard's verdict, for the job."""
        self._compose()
        return self.report.model_copy(update={"verdict": settle(self._course(None))["verdict"]})

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Note and write."""
        spent = round(self.stage_seconds(), 3)
        ended = {"status": status, "duration_s": spent, "finding": finding}
        self._stages[name] = self._stages[name].model_copy(update=ended)
        self._log.stage_finished(self._stages[name])
        self.write()

    def trouble(self, name: str, error: BaseException) -> None:
        """The traceback goes to the log."""
        self._log.traceback(name, error)

    def skip(self, stage: str, reason: str) -> None:
        """A stage that has nothing to do in this boot, with the reason as its only check."""
        self.stage_started(stage)
        self.check(CheckRecord.of(stage, f"{stage}.asked", skipped(reason)))
        self.stage_finished(stage, Status.SKIP, reason)

    def crashed(self, finding: Finding, crash: Crash) -> None:
        """Note that a stage ended by a death, not by a check.

        Between two stages the one that was to come is to blame, not the one that has passed.
        """
        where = self.current
        if self.has_ended(where):
            where = next((name for name in STAGES if not self.has_ended(name)), where)
            self.stage_started(where)
        self._fields["crash"] = crash.model_copy(update={"where": where})
        self.check(
            CheckRecord.of(where, f"{where}.crash", finding, source="what became of its process")
        )
        self.stage_finished(where, Status.ERROR, finding.reason)

    def interrupted(self, name: str) -> None:
        """Note that a signal ends, or has ended, the boot; the first one counts."""
        if self._signal:
            return
        self._signal = name
        self._log.line(self.current, f"{name} received: ending")

    def job(self, **known: object) -> None:
        """Note what is now known of the job."""
        record = self._fields.get("job")
        if isinstance(record, JobRecord):
            self._fields["job"] = record.model_copy(update=known)

    @property
    def job_code(self) -> int | None:
        """The status that the job has come to by itself, None while it has none."""
        record = self._fields.get("job")
        return record.code if isinstance(record, JobRecord) else None

    def child_said(self, who: str, line: str) -> None:
        """One line that a child, or a library in it, has printed."""
        self._log.line(who, line, event="output")

    def say(self, text: str) -> None:
        """One line of progress, for steps that take long."""
        self._log.line(self.current, text)

    def close(self, *, stopped_after: str | None, left: Callable[[], float]) -> int:
        """Settle verdict and exit status, write the last time, and return the process's status.

        `left` says how many seconds the write may still take, and is asked while it does.

        Where the report cannot be written, the status says so unless something more decisive
        went wrong, and the report goes to the log instead: it is never lost.
        """
        self._settle(stopped_after)
        try:
            insisted(lambda seconds: self._put(seconds, insist=True), left)
        except OSError as error:
            self._lost = True
            self._fields["handed_over"] = False
            self._checks.append(unwritable(self.current, self._place(), error))
            self._settle(stopped_after)
            self._log.lost_report(self.report, str(error))
        if self.report.exit is None:
            raise AssertionError("a settled report has an exit")
        return self.report.exit.process_code

    def _settle(self, stopped_after: str | None) -> None:
        if (lost := unexplained(self._course(stopped_after))) is not None:
            self._checks.append(lost)
        course = self._course(stopped_after)
        self._stages = explained(course)
        self._fields |= settle(course)
        self._compose()

    def _course(self, stopped_after: str | None) -> Course:
        job = self._fields.get("job")
        return Course(
            stages=self._stages,
            checks=self._checks,
            current=self.current,
            job=job if isinstance(job, JobRecord) else None,
            signal=self._signal,
            stopped_after=stopped_after,
        )

    def _compose(self) -> None:
        found = {
            **{name: getattr(self.report, name) for name in Report.model_fields},
            **self._fields,
            "duration_s": round(time.monotonic() - self._began, 3),
            "stages": list(self._stages.values()),
            "checks": list(self._checks),
        }
        self.report = Report.model_validate(self._redactor.data(to_jsonable_python(found)))

    def _put(self, patience_s: float, *, insist: bool = False) -> None:
        self._written = time.monotonic()
        text = self.report.model_dump_json(indent=2) + "\n"
        report_id = self.report.report_id
        found_other = self._writer.report(text, report_id, patience_s, insist=insist)
        if found_other and not self._shared:
            self._shared = True
            self.check(shared(self._place()))

    def write(self) -> None:
        """Write the report as it is now.

        A folder that refuses is judged by the host stage, and at the end by `close`; in between
        the boot goes on.
        """
        self._compose()
        try:
            self._put(WRITE_S)
        except OSError as error:
            if not self._complained:
                self._log.line("report", f"not written: {error}")
            self._complained = True
