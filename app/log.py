"""Progress on standard error, for people (text) or for collectors (one JSON object a line).

Standard output carries one machine-readable verdict line and nothing else.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from app.outcome import Status
from app.redaction import Redactor
from app.report import CheckRecord, Report, StageRecord, utc_now
from app.sections import printable
from app.streams import left_out, put

_LAST_RESORT_S = 3.0  # a report that could not be written is worth waiting for a slow reader

LogFormatT = Literal["text", "json"]


def log_format_of(environ: Mapping[str, str]) -> LogFormatT:
    """The form of the log before the settings are judged: JSON only where it is asked for."""
    return "json" if environ.get("BOOT_LOG_FORMAT") == "json" else "text"


class Log:
    """Writes lines as they happen, without secrets."""

    def __init__(
        self, log_format: LogFormatT, redactor: Redactor, stream: TextIO | None = None
    ) -> None:
        self.format: LogFormatT = log_format
        self._redactor = redactor
        self._stream = stream or sys.stderr

    def line(self, stage: str, text: str, **fields: str | float | None) -> None:
        """One line: where, what, and fields for machines."""
        clean = " ".join(self._redactor.text(printable(text)).split())
        now = datetime.now(UTC)
        if self.format == "json":
            record = {"time": now.isoformat(timespec="milliseconds"), "stage": stage}
            self._put(json.dumps({**record, "text": clean, **fields}))
        else:
            self._put(f"{now:%H:%M:%S} {stage:<10} {clean}")

    def stage_started(self, name: str) -> None:
        """Said for the sake of stages that take long."""
        self.line(name, "started", event="stage_started")

    def check(self, record: CheckRecord) -> None:
        """Checks that passed are in the report; the others are said at once."""
        if record.status in (Status.PASS, Status.NOT_RUN):
            return
        step = f"; next step: {record.next_step}" if record.next_step else ""
        fields = record.model_dump(mode="json", exclude={"stage", "duration_ms"})
        self.line(
            record.stage,
            f"{record.status.upper()} {record.id}: {record.reason}{step}",
            event="check",
            **{name: self._redactor.data(value) for name, value in fields.items()},
        )

    def stage_finished(self, record: StageRecord) -> None:
        """How a stage ended."""
        self.line(
            record.name,
            f"{record.status} in {record.duration_s:.1f} s",
            event="stage_finished",
            status=record.status.value,
            duration_s=record.duration_s,
        )

    def traceback(self, stage: str, error: BaseException) -> None:
        """Where an unforeseen exception came from, a line each."""
        for part in traceback.format_exception(error):
            for line in part.rstrip().splitlines():
                self.line(stage, line, event="traceback")

    def lost_report(self, report: Report, why: str) -> None:
        """The last resort: the whole report as one line where it could not be written."""
        self.line("report", f"cannot be written ({why}); it follows", event="lost_report")
        put(self._stream, report.model_dump_json() + "\n", patience_s=_LAST_RESORT_S)

    def _put(self, line: str) -> None:
        put(self._stream, line + "\n", told=self._left_out)

    def _left_out(self, n_lines: int) -> str:
        """The notice of a stalled reader, in the form of the log."""
        notice = left_out(n_lines)
        if self.format == "text":
            return notice
        return json.dumps({"time": utc_now(), "stage": "log", "text": notice.strip()}) + "\n"
