"""The report while it grows: each event is noted, and stages are on disk before and after."""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from app.exits import ACTIONS, ExitCode, exit_code, worst
from app.log import Log
from app.outcome import Fault, Finding, Severity, Status
from app.pipeline import now
from app.report import (
    CheckRecord,
    Crash,
    Exit,
    Identity,
    Report,
    StageRecord,
    State,
    Verdict,
)
from app.report_file import ReportFile
from app.sections import Section
from app.stages import STAGES


class Journal:
    """A sink of the pipeline that keeps the report. Used by the supervisor alone."""

    def __init__(self, folder: Path, identity: Identity, log: Log) -> None:
        self._file = ReportFile(folder)
        self._log = log
        self._began = time.monotonic()
        self._stages = {name: StageRecord(name=name, status=Status.NOT_RUN) for name in STAGES}
        self._checks: list[CheckRecord] = []
        self._fields: dict[str, Any] = {}
        self.current = STAGES[0]
        self.report = Report(
            report_id=uuid.uuid4().hex,
            started=now(),
            identity=identity,
        )

    @property
    def path(self) -> Path:
        """Where the report is, or would be."""
        return self._file.path

    def note(self, **fields: Any) -> None:  # noqa: ANN401 - fields of the report's model
        """Set top-level fields of the report."""
        self._fields.update(fields)

    def stage_started(self, name: str, started: str) -> None:
        """Note and write: a boot that is killed now leaves the stage it was in."""
        self.current = name
        self._stages[name] = StageRecord(name=name, status=Status.NOT_RUN, started=started)
        self._log.stage_started(name)
        self._write()

    def check(self, record: CheckRecord) -> None:
        """Note a check; the stage's end writes it."""
        self._checks.append(record)
        self._log.check(record)

    def section(self, name: str, section: Section) -> None:
        """Note a section of the report."""
        self._fields[name] = section

    def stage_finished(self, record: StageRecord) -> None:
        """Note and write.

        The worker counts a stage from when it got to it, the boot from when it began to wait.
        """
        began = self.started_of(record.name)
        if began is not None and record.started is not None and began < record.started:
            spent = datetime.fromisoformat(record.started) - datetime.fromisoformat(began)
            duration = round(record.duration_s + spent.total_seconds(), 3)
            record = record.model_copy(update={"started": began, "duration_s": duration})
        self._stages[record.name] = record
        self._log.stage_finished(record)
        self._write()

    def skip(self, stage: str, reason: str) -> None:
        """A stage that has nothing to do in this boot, with the reason as its only check."""
        self.stage_started(stage, now())
        self.check(
            CheckRecord(
                stage=stage,
                id=f"{stage}.asked",
                status=Status.SKIP,
                severity=Severity.CRITICAL,
                reason=reason,
            )
        )
        started = self._stages[stage].started
        self.stage_finished(
            StageRecord(name=stage, status=Status.SKIP, started=started, finding=reason)
        )

    def crashed(self, finding: Finding, crash: Crash) -> None:
        """Note that the current stage ended by a death, not by a check."""
        self._fields["crash"] = crash
        record = CheckRecord(
            stage=crash.where,
            id=f"{crash.where}.crash",
            status=Status.ERROR,
            severity=Severity.CRITICAL,
            reason=finding.reason,
            expected=finding.expected,
            actual=finding.actual,
            next_step=finding.next_step,
            fault=finding.fault or Fault.INTERNAL,
        )
        self.check(record)
        self.stage_finished(
            self._stages[crash.where].model_copy(
                update={"status": Status.ERROR, "finding": record.reason}
            )
        )

    @property
    def blocked(self) -> bool:
        """Whether a stage ended so that no later one may run."""
        return any(record.status.blocks for record in self._stages.values())

    def has_ended(self, stage: str) -> bool:
        """Whether that stage has run to its end."""
        return self._stages[stage].status is not Status.NOT_RUN

    def started_of(self, stage: str) -> str | None:
        """When that stage started, as the report holds it."""
        return self._stages[stage].started

    def close(self, *, stopped_after: str | None) -> ExitCode:
        """Settle verdict and exit status, write the last time, and return the status.

        Where the report cannot be written, the status says so unless something more decisive
        went wrong, and the report goes to the log instead: it is never lost.
        """
        for name, record in self._stages.items():
            if record.status is Status.NOT_RUN:
                self._stages[name] = record.model_copy(
                    update={"finding": self._why_not_run(stopped_after)}
                )
        self._settle(stopped_after, ())
        try:
            self._file.write(self.report)
        except OSError as error:
            self._settle(stopped_after, (self._unwritable(error),))
            self._log.lost_report(self.report, str(error))
        if self.report.exit is None:
            raise AssertionError("a settled report has an exit")
        return ExitCode(self.report.exit.code)

    def _settle(self, stopped_after: str | None, more: tuple[CheckRecord, ...]) -> None:
        self._checks += more
        code = worst(exit_code(c.fault) for c in self._checks if c.fault is not None)
        warned = any(record.status is Status.WARN for record in self._checks)
        self._fields |= {
            "state": State.COMPLETE,
            "stopped_after": stopped_after if code is ExitCode.OK else None,
            "verdict": Verdict.FAIL
            if code is not ExitCode.OK
            else (Verdict.WARN if warned else Verdict.PASS),
            "exit": self._exit(code),
        }
        self._compose()

    def _exit(self, code: ExitCode) -> Exit:
        """The exit record: reason and next step of the first check that decided it."""
        deciding = [c for c in self._checks if c.fault and exit_code(c.fault) is code]
        reason = deciding[0].reason if deciding else ACTIONS[code].meaning
        return Exit(
            code=code,
            name=code.name,
            reason=reason,
            retry=ACTIONS[code].retry,
            next_step=deciding[0].next_step if deciding else "",
            process_code=code,
        )

    def _why_not_run(self, stopped_after: str | None) -> str:
        blocked = [s.name for s in self._stages.values() if s.status.blocks]
        if blocked:
            return f"stage {blocked[0]} did not pass"
        return f"BOOT_STOP_AFTER={stopped_after}" if stopped_after else ""

    def _unwritable(self, error: OSError) -> CheckRecord:
        return CheckRecord(
            stage=self.current,
            id="host.report_written",
            status=Status.FAIL,
            severity=Severity.CRITICAL,
            reason=f"the report cannot be written to {self.path}: {error}",
            expected="a writable folder with room for the report",
            actual=f"{type(error).__name__} errno {error.errno}",
            source="BOOT_REPORT_DIR",
            next_step="mount a writable volume there, or point BOOT_REPORT_DIR at one",
            fault=Fault.REPORT_UNWRITABLE,
        )

    def _compose(self) -> None:
        self.report = Report.model_validate(
            {
                **{name: getattr(self.report, name) for name in Report.model_fields},
                **self._fields,
                "duration_s": round(time.monotonic() - self._began, 3),
                "stages": list(self._stages.values()),
                "checks": list(self._checks),
            }
        )

    def _write(self) -> None:
        """Write the report as it is.

        A folder that refuses is judged by the host stage, and at the end by `close`; in between
        the boot goes on.
        """
        self._compose()
        try:
            self._file.write(self.report)
        except OSError as error:
            self._log.line("report", f"not written: {error}")
