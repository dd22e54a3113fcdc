"""What is said at the end: one machine-readable line on stdout, a table for people on stderr."""

from __future__ import annotations

import io
import json
import shutil
import sys

from app.outcome import Status
from app.report import Exit, Report

# With its line end. Also fits the smallest termination message in use (1 KB, SageMaker).
MAX_LINE_BYTES = 900

_STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.ERROR: "bold red",
    Status.SKIP: "dim",
    Status.NOT_RUN: "dim",
}


def verdict_line(report: Report, path: str | None) -> str:
    """One JSON object of at most 900 bytes: verdict, exit status, reason, next step, report.

    `exit` is what the process exits with; `name` is JOB where that is the job's own status.
    """
    if report.exit is None or report.verdict is None:
        raise AssertionError("only a settled report has a verdict")
    line = {
        "bootguard": report.identity.bootguard,
        "verdict": report.verdict.value,
        "rehearsal": report.rehearsal,
        "exit": report.exit.process_code,
        "name": _name(report.exit),
        "reason": report.exit.reason,
        "next_step": report.exit.next_step,
        "report": path,
    }
    for field in ("next_step", "reason", "report"):
        excess = len(json.dumps(line)) + 1 - MAX_LINE_BYTES
        if excess <= 0:
            break
        text = str(line[field] or "")
        # Each character takes up to six bytes once escaped: cut by the worst case.
        line[field] = text[: max(0, len(text) - excess - 8)] + "..."
    return json.dumps(line)


def _name(end: Exit) -> str:
    return end.name if end.process_code == end.code else "JOB"


def verdict_table(report: Report, path: str | None) -> str:
    """Stage, status, seconds and finding, then the verdict; coloured for a terminal."""
    # rich takes 80 ms to import and only this needs it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if report.exit is None or report.verdict is None:
        raise AssertionError("only a settled report has a verdict")
    table = Table(title=f"bootguard {report.identity.bootguard}", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for stage in report.stages:
        seconds = f"{stage.duration_s:.1f}" if stage.started else "-"
        style = _STYLES[stage.status]
        table.add_row(stage.name, Text(stage.status.value, style), seconds, Text(stage.finding))
    terminal = sys.stderr.isatty()
    # A pipe has no width: 110 columns keep most findings on two lines.
    width = shutil.get_terminal_size().columns if terminal else 110
    # rich draws with the characters that its file's encoding has.
    page = io.TextIOWrapper(io.BytesIO(), encoding=sys.stderr.encoding, errors="backslashreplace")
    console = Console(file=page, force_terminal=terminal, highlight=False, width=width)
    console.print(table)
    rehearsal = " (rehearsal on a CPU: says nothing about a GPU)" if report.rehearsal else ""
    verdict = (
        f"verdict {report.verdict.value}{rehearsal}, exit {report.exit.process_code} "
        f"{_name(report.exit)}: {report.exit.reason}"
    )
    step = [f"next step: {report.exit.next_step}"] if report.exit.next_step else []
    where = path or "not written to a file; it stands in the log above"
    for line in (verdict, *step, f"report: {where}"):
        console.print(Text(line), soft_wrap=True)
    page.seek(0)
    return "".join(line.rstrip() + "\n" for line in page)
