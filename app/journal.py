"""The report while it grows: each event is noted, and stages are on disk before and after."""

from __future__ import annotations

import errno
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from app.exits import ACTIONS, ExitCode, exit_code, worst
from app.log import Log
from app.outcome import Fault, Finding, Status, failed, skipped, unread
from app.redaction import Redactor
from app.report import CheckRecord, Crash, Exit, Identity, Report, StageRecord, State, Verdict
from app.report_file import ReportFile
from app.sections import Section
from app.stages import STAGES

_SIGNAL_CODES = {
    "SIGINT": (ExitCode.INTERRUPTED_INT,),
    "SIGTERM": (ExitCode.INTERRUPTED_TERM,),
}


class Journal:
    """A sink of the pipeline that keeps the report. Used by the supervisor alone."""

    def __init__(self, folder: Path, identity: Identity, log: Log, redactor: Redactor) -> None:
        self._file = ReportFile(folder)
        self._log = log
        self._redactor = redactor
        self._began = time.monotonic()
        self._stage_began = self._began
        self._stages = {name: StageRecord(name=name, status=Status.NOT_RUN) for name in STAGES}
        self._lost = self._complained = False
        self._signal = ""
        self._checks: list[CheckRecord] = []
        self._fields: dict[str, Any] = {}
        self.current = STAGES[0]
        self.report = Report(report_id=uuid.uuid4().hex, started=_now(), identity=identity)

    @property
    def path(self) -> str | None:
        """Where the report is: absolute, for readers in other folders; None when it is not."""
        return None if self._lost else self._place()

    def _place(self) -> str:
        return self._redactor.text(str(self._file.path.absolute()))

    @property
    def blocked(self) -> bool:
        """Whether a stage ended so that no later one may run."""
        return any(record.status.blocks for record in self._stages.values())

    def has_ended(self, stage: str) -> bool:
        """Whether that stage has run to its end."""
        return self._stages[stage].status is not Status.NOT_RUN

    def note(self, **fields: Any) -> None:  # noqa: ANN401 - fields of the report's model
        """Set top-level fields of the report."""
        self._fields.update(fields)

    def stage_started(self, name: str) -> None:
        """Note and write: a boot that is killed now leaves the stage it was in."""
        self.current = name
        self._stage_began = time.monotonic()
        self._stages[name] = StageRecord(name=name, status=Status.NOT_RUN, started=_now())
        self._log.stage_started(name)
        self._write()

    def check(self, record: CheckRecord) -> None:
        """Note a check; the stage's end writes it."""
        self._checks.append(record)
        self._log.check(record)

    def section(self, name: str, section: Section) -> None:
        """Note a section of the report."""
        self._fields[name] = section

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Note and write."""
        spent = round(time.monotonic() - self._stage_began, 3)
        ended = {"status": status, "duration_s": spent, "finding": finding}
        self._stages[name] = self._stages[name].model_copy(update=ended)
        self._log.stage_finished(self._stages[name])
        self._write()

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
        self.check(CheckRecord.of(where, f"{where}.crash", finding))
        self.stage_finished(where, Status.ERROR, finding.reason)

    def interrupted(self, name: str) -> None:
        """Note that a signal ends the boot."""
        self._signal = name
        self._log.line(self.current, f"{name} received: ending")

    def worker_said(self, line: str) -> None:
        """One line that the worker, or a library in it, has printed."""
        self._log.line("worker", line, event="output")

    def say(self, text: str) -> None:
        """One line of progress, for steps that take long."""
        self._log.line(self.current, text)

    def close(self, *, stopped_after: str | None) -> ExitCode:
        """Settle verdict and exit status, write the last time, and return the status.

        Where the report cannot be written, the status says so unless something more decisive
        went wrong, and the report goes to the log instead: it is never lost.
        """
        self._settle(stopped_after)
        try:
            self._file.write(self.report)
        except OSError as error:
            self._lost = True
            self._checks.append(self._unwritable(error))
            self._settle(stopped_after)
            self._log.lost_report(self.report, str(error))
        if self.report.exit is None:
            raise AssertionError("a settled report has an exit")
        return ExitCode(self.report.exit.code)

    def _settle(self, stopped_after: str | None) -> None:
        """A boot is ready only if every stage that it was asked for has ended, and none blocks."""
        faults = [record.fault for record in self._checks if record.fault is not None]
        asked = STAGES[: STAGES.index(stopped_after) + 1] if stopped_after else STAGES
        lacking = [name for name in asked if not self.has_ended(name)]
        if not faults and not self._signal and (lacking or self.blocked):
            where = (lacking or [self.current])[0]
            lost = unread(
                f"stage {where} has no result, and nothing says why",
                next_step="report it with this file and the log",
            )
            self._checks.append(CheckRecord.of(where, f"{where}.ended", lost))
            faults = [Fault.INTERNAL]
        codes = [exit_code(fault) for fault in faults]
        code = worst(codes or _SIGNAL_CODES.get(self._signal, ()))
        warned = any(record.status is Status.WARN for record in self._checks)
        good = Verdict.WARN if warned else Verdict.PASS
        self._explain_not_run(stopped_after)
        self._fields |= {
            "state": State.INTERRUPTED if self._signal else State.COMPLETE,
            "stopped_after": stopped_after if code is ExitCode.OK else None,
            "verdict": good if code is ExitCode.OK else Verdict.FAIL,
            "exit": self._exit(code, stopped_after),
        }
        self._compose()

    def _explain_not_run(self, stopped_after: str | None) -> None:
        blocked = [record.name for record in self._stages.values() if record.status.blocks]
        why = f"BOOT_STOP_AFTER={stopped_after}" if stopped_after else ""
        why = f"{self._signal} received" if self._signal else why
        why = f"stage {blocked[0]} did not pass" if blocked else why
        for name, record in self._stages.items():
            if record.status is Status.NOT_RUN:
                self._stages[name] = record.model_copy(update={"finding": why})

    def _exit(self, code: ExitCode, stopped_after: str | None) -> Exit:
        """The exit record: reason and next step of the first check that decided it."""
        deciding = [c for c in self._checks if c.fault and exit_code(c.fault) is code]
        reason = ACTIONS[code].meaning
        if deciding:
            more = f" (+{len(deciding) - 1} more)" if len(deciding) > 1 else ""
            reason = f"{deciding[0].reason}{more}"
        elif code is ExitCode.OK and stopped_after:
            reason = f"stopped after {stopped_after} as asked; nothing later was judged"
        elif self._signal:
            reason = f"{self._signal} received in stage {self.current}"
        return Exit(
            code=code,
            name=code.name,
            reason=reason,
            retry=ACTIONS[code].retry,
            next_step=deciding[0].next_step if deciding else "",
            process_code=code,
        )

    def _unwritable(self, error: OSError) -> CheckRecord:
        finding = failed(
            f"the report cannot be written to {self._place()}: {error}",
            expected="a writable folder with room for the report",
            actual=f"{type(error).__name__} errno {error.errno}",
            next_step="make room there, or point BOOT_REPORT_DIR at another volume"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "mount a writable volume there, or point BOOT_REPORT_DIR at one",
            fault=Fault.REPORT_UNWRITABLE,
        )
        return CheckRecord.of(
            self.current, "host.report_written", finding, source="BOOT_REPORT_DIR"
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

    def _write(self) -> None:
        """Write the report as it is.

        A folder that refuses is judged by the host stage, and at the end by `close`; in between
        the boot goes on.
        """
        self._compose()
        try:
            self._file.write(self.report)
        except OSError as error:
            if not self._complained:
                self._log.line("report", f"not written: {error}")
            self._complained = True


def _now() -> str:
    """The time as the report holds it: UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
