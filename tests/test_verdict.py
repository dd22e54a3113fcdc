"""Facts about the last lines of a boot."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.log import Log
from app.outcome import Severity, Status
from app.redaction import Redactor
from app.report import CheckRecord, Exit, Identity, Report, StageRecord, State, Verdict
from app.verdict import MAX_LINE_BYTES, verdict_line, verdict_table


def a_report(reason: str = "the first check's reason", next_step: str = "do this") -> Report:
    return Report(
        report_id="a" * 32,
        started="2026-01-01T00:00:00+00:00",
        state=State.COMPLETE,
        verdict=Verdict.FAIL,
        exit=Exit(
            code=69,
            name="NODE_UNFIT",
            reason=reason,
            retry="other node",
            next_step=next_step,
            process_code=69,
        ),
        identity=Identity(
            bootguard="0", hostname="node", pid=1, uid=2, python="3.11.7", platform="Linux"
        ),
        stages=[StageRecord(name="gpu", status=Status.FAIL, started="t", finding=reason)],
    )


@given(st.text(max_size=3000), st.text(max_size=3000), st.text(max_size=3000))
def test_the_verdict_line_is_one_short_line_of_json(reason: str, step: str, path: str) -> None:
    line = verdict_line(a_report(reason, step), path)
    assert len(line.encode()) < MAX_LINE_BYTES  # its line end has room
    assert "\n" not in line
    assert json.loads(line)["exit"] == 69


def test_a_short_line_is_not_cut() -> None:
    assert json.loads(verdict_line(a_report(), "reports/boot-report.json")) == {
        "bootguard": "0",
        "verdict": "fail",
        "rehearsal": False,
        "exit": 69,
        "name": "NODE_UNFIT",
        "reason": "the first check's reason",
        "next_step": "do this",
        "report": "reports/boot-report.json",
    }


def test_a_job_gives_the_status_once_it_has_run() -> None:
    """The line says what the process exits with, or an orchestrator's log contradicts it."""
    guard = a_report().exit
    assert guard is not None
    end = guard.model_copy(update={"code": 0, "name": "OK", "process_code": 3})
    report = a_report().model_copy(update={"exit": end, "verdict": Verdict.PASS})
    line = json.loads(verdict_line(report, None))
    assert (line["verdict"], line["exit"], line["name"]) == ("pass", 3, "JOB")
    assert "verdict pass, exit 3 JOB" in verdict_table(report, None)


def test_the_table_says_stage_status_seconds_and_finding() -> None:
    text = verdict_table(a_report(), "reports/boot-report.json")
    assert all(word in text for word in ("stage", "status", "seconds", "finding"))
    assert "verdict fail, exit 69 NODE_UNFIT: the first check's reason" in text
    assert text.splitlines()[-1] == "report: reports/boot-report.json"


def test_markup_in_a_finding_is_text() -> None:
    """rich reads `[red]` as a style and refuses `[/x]`; a finding can hold either."""
    assert "not [/a] tag" in verdict_table(a_report("not [/a] tag"), "p")


def test_the_table_is_drawn_in_the_characters_that_the_log_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container without LANG has an ASCII log."""
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert verdict_table(a_report("na\u00efve"), "p").isascii()


def a_record(status: Status) -> CheckRecord:
    return CheckRecord(
        stage="gpu",
        id="gpu.count",
        status=status,
        severity=Severity.CRITICAL,
        reason="no GPU\nhere",
        expected="one",
        actual="none",
        source="BOOT_HARDWARE",
        next_step="ask for one",
    )


def test_the_log_says_a_failure_in_one_line() -> None:
    stream = io.StringIO()
    Log("text", Redactor({}, None), stream).check(a_record(Status.FAIL))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("gpu        FAIL gpu.count: no GPU here; next step: ask for one")


def test_the_log_can_be_json() -> None:
    stream = io.StringIO()
    Log("json", Redactor({}, None), stream).check(a_record(Status.WARN))
    found = json.loads(stream.getvalue())
    assert (found["id"], found["status"], found["expected"]) == ("gpu.count", "warn", "one")


def test_a_closed_log_does_not_end_a_boot() -> None:
    stream = io.StringIO()
    log = Log("text", Redactor({}, None), stream)
    stream.close()
    log.line("gpu", "nobody listens")
