"""Progress on standard error, for people (text) or for collectors (one JSON object a line).

Standard output carries one machine-readable verdict line and nothing else.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from app.outcome import Status
from app.report import CheckRecord, Report, StageRecord
from app.sections import printable
from app.streams import put

LogFormatT = Literal["text", "json"]


class Log:
    """Writes lines as they happen. `format` may change once the settings are known."""

    def __init__(self, log_format: LogFormatT = "text", stream: TextIO | None = None) -> None:
        self.format: LogFormatT = log_format
        self._stream = stream or sys.stderr

    def line(self, stage: str, text: str, **fields: str | float) -> None:
        """One line: where, what, and fields for machines."""
        clean = " ".join(printable(text).split())
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
        detail = "".join(
            f"; {label} {value}"
            for label, value in (
                ("expected", record.expected),
                ("actual", record.actual),
                ("from", record.source),
                ("next step:", record.next_step),
            )
            if value and record.status is not Status.SKIP
        )
        self.line(
            record.stage,
            f"{record.status.upper()} {record.id}: {record.reason}{detail}",
            event="check",
            check=record.id,
            status=record.status.value,
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

    def lost_report(self, report: Report, why: str) -> None:
        """The last resort: the whole report as one line where it could not be written."""
        self.line("report", f"cannot be written ({why}); it follows")
        self._put(report.model_dump_json())

    def _put(self, line: str) -> None:
        put(self._stream, line + "\n")
