"""Facts about the report while it grows, and about how it is settled."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from app.exits import ExitCode, exit_code
from app.journal import Journal
from app.log import Log
from app.outcome import Fault, Finding, Severity, Status
from app.redaction import Redactor
from app.report import CheckRecord, Crash, Identity, Report, State, Verdict
from app.stages import STAGES

SECRET = "sEcret-of-the-hub"
IDENTITY = Identity(bootguard="0", hostname="node", pid=1, uid=2, python="3.11.7", platform="Linux")


def a_journal(folder: Path, log: io.StringIO | None = None) -> Journal:
    redactor = Redactor({"HF_TOKEN": SECRET}, None)
    return Journal(folder, IDENTITY, Log("text", redactor, log or io.StringIO()), redactor)


def a_check(status: Status, fault: Fault | None = None, reason: str = "why") -> CheckRecord:
    return CheckRecord(
        stage="host",
        id="host.x",
        status=status,
        severity=Severity.CRITICAL,
        reason=reason,
        next_step="do this",
        fault=fault,
    )


def ended(journal: Journal, name: str, status: Status) -> None:
    journal.stage_finished(name, status, "")


def all_ended(journal: Journal) -> None:
    for name in STAGES:
        ended(journal, name, Status.PASS)


def on_disk(journal: Journal) -> Report:
    return Report.model_validate_json(Path(journal.path or "").read_text())


def test_a_killed_boot_leaves_the_stage_it_was_in(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    journal.stage_started("host")
    left = on_disk(journal)
    assert (left.state, left.verdict, left.exit) == (State.IN_PROGRESS, None, None)
    assert [s.name for s in left.stages if s.started and s.status is Status.NOT_RUN] == ["host"]


def test_all_stages_stand_in_the_report_in_order(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.close(stopped_after=None)
    assert tuple(stage.name for stage in on_disk(journal).stages) == STAGES


@pytest.mark.parametrize("fault", Fault)
def test_the_exit_in_the_report_is_the_one_that_is_returned(tmp_path: Path, fault: Fault) -> None:
    journal = a_journal(tmp_path)
    journal.check(a_check(Status.FAIL, fault, "this is why"))
    ended(journal, "host", Status.FAIL)
    code = journal.close(stopped_after=None)
    report = on_disk(journal)
    assert report.exit is not None
    assert code == report.exit.code == report.exit.process_code == exit_code(fault)
    assert (report.exit.reason, report.exit.next_step) == ("this is why", "do this")
    assert (report.verdict, report.state) == (Verdict.FAIL, State.COMPLETE)


def test_the_most_decisive_failure_gives_reason_and_code(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.check(a_check(Status.FAIL, Fault.TEMPORARY, "busy"))
    journal.check(a_check(Status.FAIL, Fault.CONFIG, "wrong"))
    assert journal.close(stopped_after=None) is ExitCode.CONFIG
    assert on_disk(journal).exit is not None
    assert journal.report.exit is not None
    assert journal.report.exit.reason == "wrong"


def test_warnings_exit_0(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    all_ended(journal)
    journal.check(a_check(Status.WARN))
    assert journal.close(stopped_after=None) is ExitCode.OK
    assert on_disk(journal).verdict is Verdict.WARN


def test_stages_that_did_not_run_say_why(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.check(a_check(Status.FAIL, Fault.NODE_UNFIT))
    ended(journal, "gpu", Status.FAIL)
    journal.close(stopped_after="load")
    report = on_disk(journal)
    assert report.stopped_after is None
    assert {s.finding for s in report.stages if s.status is Status.NOT_RUN} == {
        "stage gpu did not pass"
    }


def test_a_boot_that_was_told_to_stop_says_after_what(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    ended(journal, "settings", Status.PASS)
    journal.close(stopped_after="settings")
    report = on_disk(journal)
    assert (report.stopped_after, report.verdict) == ("settings", Verdict.PASS)
    assert report.stages[-1].finding == "BOOT_STOP_AFTER=settings"


def test_a_report_that_cannot_be_written_goes_to_the_log_and_changes_the_status(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    log = io.StringIO()
    journal = a_journal(tmp_path / "file" / "reports", log)
    all_ended(journal)
    assert journal.close(stopped_after=None) is ExitCode.CANTCREAT
    last = json.loads(log.getvalue().splitlines()[-1])
    assert last["exit"]["code"] == ExitCode.CANTCREAT
    assert last["checks"][0]["source"] == "BOOT_REPORT_DIR"


def test_wrong_settings_outweigh_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = a_journal(tmp_path / "file")
    journal.check(a_check(Status.FAIL, Fault.CONFIG))
    assert journal.close(stopped_after=None) is ExitCode.CONFIG


def test_a_death_is_an_error_of_the_stage_it_happened_in(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.stage_started("load")
    finding = Finding(Status.ERROR, "the worker died", fault=Fault.NODE_UNFIT)
    journal.crashed(finding, Crash(where="load", kind="worker", text="signal SIGSEGV"))
    assert journal.blocked
    assert journal.close(stopped_after=None) is ExitCode.NODE_UNFIT
    report = on_disk(journal)
    assert report.crash is not None
    assert report.crash.text == "signal SIGSEGV"
    assert [s.status for s in report.stages if s.name == "load"] == [Status.ERROR]


def test_a_boot_whose_stages_did_not_run_is_not_ready(tmp_path: Path) -> None:
    """Silence is no pass: found with a worker that said it had ended and nothing else."""
    journal = a_journal(tmp_path)
    ended(journal, "settings", Status.PASS)
    assert journal.close(stopped_after=None) is ExitCode.INTERNAL
    assert on_disk(journal).verdict is Verdict.FAIL
    assert journal.report.checks[-1].id == "host.ended"


def test_a_stage_that_failed_without_a_check_is_not_ready(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    all_ended(journal)
    ended(journal, "stack", Status.FAIL)
    assert journal.close(stopped_after=None) is ExitCode.INTERNAL


def test_a_death_between_two_stages_is_the_next_ones(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    finding = Finding(Status.ERROR, "no process could be started", fault=Fault.INTERNAL)
    journal.crashed(finding, Crash(where="settings", kind="OSError", text=""))
    assert [s.status for s in journal.report.stages[:2]] == [Status.PASS, Status.ERROR]
    assert journal.report.crash is not None
    assert journal.report.crash.where == "host"


def test_a_secret_is_in_no_output(tmp_path: Path) -> None:
    log = io.StringIO()
    journal = a_journal(tmp_path / SECRET, log)
    journal.note(run_id=SECRET, settings={"report_dir": f"/x/{SECRET}"})
    journal.check(a_check(Status.FAIL, Fault.CONFIG, f"BOOT_RUN_ID={SECRET}"))
    journal.trouble("host", ValueError(SECRET))
    journal.close(stopped_after=None)
    written = (tmp_path / SECRET / "boot-report.json").read_text()
    assert SECRET not in written + log.getvalue() + str(journal.path)
    assert "BOOT_RUN_ID=***" in written


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_a_boot_as_interrupted(tmp_path: Path, name: str, code: int) -> None:
    journal = a_journal(tmp_path)
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    journal.stage_started("host")
    journal.interrupted(name)
    assert journal.close(stopped_after=None) == code
    report = on_disk(journal)
    assert (report.state, report.verdict) == (State.INTERRUPTED, Verdict.FAIL)
    assert report.exit is not None
    assert report.exit.reason == f"{name} received in stage host"


def test_what_went_wrong_before_a_signal_outweighs_it(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.check(a_check(Status.FAIL, Fault.CONFIG))
    journal.interrupted("SIGTERM")
    assert journal.close(stopped_after=None) is ExitCode.CONFIG


def test_a_boot_that_stopped_early_does_not_say_ready(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    ended(journal, "settings", Status.PASS)
    journal.close(stopped_after="settings")
    assert journal.report.exit is not None
    assert journal.report.exit.reason == "stopped after settings as asked; nothing later was judged"
