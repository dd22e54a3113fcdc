"""Facts about the report while it grows, and about how it is settled."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest

from app.exits import ExitCode, exit_code
from app.journal import Journal
from app.outcome import Fault, Finding, Severity, Status
from app.report import (
    Activity,
    CheckRecord,
    Crash,
    JobRecord,
    Memory,
    Report,
    State,
    Verdict,
)
from app.stages import STAGES
from tests.fakes_core import SECRET, FakeWriter
from tests.fakes_core import a_journal as made


@pytest.fixture
def writer() -> FakeWriter:
    return FakeWriter()


@pytest.fixture
def journal(writer: FakeWriter) -> Journal:
    return made(writer)


NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


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


def on_disk(writer: FakeWriter) -> Report:
    return Report.model_validate_json(writer.reports[-1])


def test_a_killed_boot_leaves_the_stage_it_was_in(journal: Journal, writer: FakeWriter) -> None:
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    journal.stage_started("host")
    left = on_disk(writer)
    assert (left.state, left.verdict, left.exit) == (State.IN_PROGRESS, None, None)
    assert [s.name for s in left.stages if s.started and s.status is Status.NOT_RUN] == ["host"]


def test_all_stages_stand_in_the_report_in_order(journal: Journal, writer: FakeWriter) -> None:
    journal.close(stopped_after=None, left=lambda: 1)
    assert tuple(stage.name for stage in on_disk(writer).stages) == STAGES


@pytest.mark.parametrize("fault", Fault)
def test_the_exit_in_the_report_is_the_one_that_is_returned(
    journal: Journal, writer: FakeWriter, fault: Fault
) -> None:
    journal.check(a_check(Status.FAIL, fault, "this is why"))
    ended(journal, "host", Status.FAIL)
    code = journal.close(stopped_after=None, left=lambda: 1)
    report = on_disk(writer)
    assert report.exit is not None
    assert code == report.exit.code == report.exit.process_code == exit_code(fault)
    assert (report.exit.reason, report.exit.next_step) == ("this is why", "do this")
    assert (report.verdict, report.state) == (Verdict.FAIL, State.COMPLETE)


def test_the_most_decisive_failure_gives_reason_and_code(
    journal: Journal, writer: FakeWriter
) -> None:
    journal.check(a_check(Status.FAIL, Fault.TEMPORARY, "busy"))
    journal.check(a_check(Status.FAIL, Fault.CONFIG, "wrong"))
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.CONFIG
    assert on_disk(writer).exit is not None
    assert journal.report.exit is not None
    assert journal.report.exit.reason == "wrong"


def test_warnings_exit_0(journal: Journal, writer: FakeWriter) -> None:
    all_ended(journal)
    journal.check(a_check(Status.WARN))
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.OK
    assert on_disk(writer).verdict is Verdict.WARN


def test_stages_that_did_not_run_say_why(journal: Journal, writer: FakeWriter) -> None:
    journal.check(a_check(Status.FAIL, Fault.NODE_UNFIT))
    ended(journal, "gpu", Status.FAIL)
    journal.close(stopped_after="load", left=lambda: 1)
    report = on_disk(writer)
    assert report.stopped_after is None
    assert {s.finding for s in report.stages if s.status is Status.NOT_RUN} == {
        "stage gpu did not pass"
    }


def test_a_boot_that_was_told_to_stop_says_after_what(journal: Journal, writer: FakeWriter) -> None:
    ended(journal, "settings", Status.PASS)
    journal.close(stopped_after="settings", left=lambda: 1)
    report = on_disk(writer)
    assert (report.stopped_after, report.verdict) == ("settings", Verdict.PASS)
    assert report.stages[-1].finding == "BOOT_STOP_AFTER=settings"


def test_a_report_that_cannot_be_written_goes_to_the_log_and_changes_the_status() -> None:
    log = io.StringIO()
    journal = made(FakeWriter(NO_ROOM), log=log)
    journal.note(handed_over=True)
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.CANTCREAT
    assert journal.path is None
    last = json.loads(log.getvalue().splitlines()[-1])
    assert last["exit"]["code"] == ExitCode.CANTCREAT
    assert last["checks"][-1]["source"] == "BOOT_REPORT_DIR"
    assert "make room" in last["exit"]["next_step"]
    assert last["handed_over"] is False


def test_wrong_settings_outweigh_a_report_that_cannot_be_written() -> None:
    journal = made(FakeWriter(NO_ROOM))
    journal.check(a_check(Status.FAIL, Fault.CONFIG))
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.CONFIG


def test_a_death_is_an_error_of_the_stage_it_happened_in(
    journal: Journal, writer: FakeWriter
) -> None:
    journal.stage_started("load")
    finding = Finding(Status.ERROR, "the worker died", fault=Fault.NODE_UNFIT)
    journal.crashed(finding, Crash(where="load", kind="worker", text="signal SIGSEGV"))
    assert not journal.all_passed(["load"])
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.NODE_UNFIT
    report = on_disk(writer)
    assert report.crash is not None
    assert report.crash.text == "signal SIGSEGV"
    assert [s.status for s in report.stages if s.name == "load"] == [Status.ERROR]


def test_a_boot_whose_stages_did_not_run_is_not_ready(journal: Journal, writer: FakeWriter) -> None:
    """Silence is no pass: found with a worker that said it had ended and nothing else."""
    ended(journal, "settings", Status.PASS)
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.INTERNAL
    assert on_disk(writer).verdict is Verdict.FAIL
    assert journal.report.checks[-1].id == "host.ended"


def test_a_stage_that_failed_without_a_check_is_not_ready(journal: Journal) -> None:
    all_ended(journal)
    ended(journal, "stack", Status.FAIL)
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.INTERNAL


def test_a_death_between_two_stages_is_the_next_ones(journal: Journal) -> None:
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    finding = Finding(Status.ERROR, "no process could be started", fault=Fault.INTERNAL)
    journal.crashed(finding, Crash(where="settings", kind="OSError", text=""))
    assert [s.status for s in journal.report.stages[:2]] == [Status.PASS, Status.ERROR]
    assert journal.report.crash is not None
    assert journal.report.crash.where == "host"


def test_a_secret_is_in_no_output(writer: FakeWriter) -> None:
    log = io.StringIO()
    journal = made(writer, folder=Path("/x") / SECRET, log=log)
    journal.note(run_id=SECRET, settings={"report_dir": f"/x/{SECRET}"})
    journal.check(a_check(Status.FAIL, Fault.CONFIG, f"BOOT_RUN_ID={SECRET}"))
    journal.trouble("host", ValueError(SECRET))
    journal.child_said("worker", f"token {SECRET} given")
    activity = Activity(
        seen="", samples=1, rss_bytes=1, rss_peak_bytes=1, read_bytes=0, cpu_s=0, idle_s=0
    )
    journal.activity(activity)
    crash = Crash(where="host", kind="signal", text=SECRET, output=[SECRET], traceback=[SECRET])
    journal.crashed(Finding(Status.ERROR, SECRET, fault=Fault.INTERNAL), crash)
    journal.close(stopped_after=None, left=lambda: 1)
    written = "".join(writer.reports)
    assert SECRET not in written + log.getvalue() + str(journal.path)
    assert "BOOT_RUN_ID=***" in written


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_a_boot_as_interrupted(
    journal: Journal, writer: FakeWriter, name: str, code: int
) -> None:
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    journal.stage_started("host")
    journal.interrupted(name)
    assert journal.close(stopped_after=None, left=lambda: 1) == code
    report = on_disk(writer)
    assert (report.state, report.verdict) == (State.INTERRUPTED, Verdict.FAIL)
    assert report.exit is not None
    assert report.exit.reason == f"{name} received in stage host"


def test_what_went_wrong_before_a_signal_outweighs_it(journal: Journal) -> None:
    journal.check(a_check(Status.FAIL, Fault.CONFIG))
    journal.interrupted("SIGTERM")
    assert journal.close(stopped_after=None, left=lambda: 1) == ExitCode.CONFIG


def test_a_boot_that_stopped_early_does_not_say_ready(journal: Journal) -> None:
    ended(journal, "settings", Status.PASS)
    journal.close(stopped_after="settings", left=lambda: 1)
    assert journal.report.exit is not None
    assert journal.report.exit.reason == "stopped after settings as asked; nothing later was judged"


def test_a_volume_that_fails_for_a_while_stops_nothing(writer: FakeWriter) -> None:
    """Only the last write decides."""
    log = io.StringIO()
    journal = made(writer, log=log)
    writer.errors = [NO_ROOM, TimeoutError(errno.ETIMEDOUT, "hangs"), NO_ROOM]
    journal.stage_started("settings")
    ended(journal, "settings", Status.PASS)
    journal.stage_started("host")
    assert not writer.reports
    assert log.getvalue().count("not written") == 1  # said once
    ended(journal, "host", Status.PASS)
    assert journal.close(stopped_after="host", left=lambda: 7) == ExitCode.OK
    assert on_disk(writer).verdict is Verdict.PASS
    assert writer.insisted


def test_the_last_write_is_tried_again_as_long_as_there_is_time(writer: FakeWriter) -> None:
    """A volume may come back; a signal meanwhile shortens what is left."""
    hangs = TimeoutError(errno.ETIMEDOUT, "hangs")
    journal = made(writer)
    all_ended(journal)
    writer.errors, writer.deadlines = [hangs, hangs], []
    assert journal.close(stopped_after=None, left=iter((3.0, 2.0, 1.0)).__next__) == ExitCode.OK
    writer.errors, writer.deadlines = [hangs, hangs, hangs], []
    code = journal.close(stopped_after=None, left=iter((3.0, 0.1)).__next__)
    assert code == ExitCode.CANTCREAT
    assert writer.deadlines == [1.0, 0.1]


def test_a_folder_that_two_boots_share_is_a_warning_once(writer: FakeWriter) -> None:
    journal = made(writer)
    writer.displaced = True
    all_ended(journal)
    journal.close(stopped_after=None, left=lambda: 1)
    report = on_disk(writer)
    assert [c.id for c in report.checks if c.status is Status.WARN] == ["host.report_shared"]
    assert report.verdict is Verdict.WARN


def test_what_is_known_of_the_memory_adds_up(journal: Journal, writer: FakeWriter) -> None:
    journal.section("memory", Memory(host_limit_bytes=10))
    journal.memory(worker_peak_bytes=3)
    journal.memory(oom_kills=0)
    journal.stage_started("host")
    found = on_disk(writer).memory
    assert found is not None
    assert (found.host_limit_bytes, found.worker_peak_bytes, found.oom_kills) == (10, 3, 0)


def test_a_job_is_shown_the_report_so_far_with_a_verdict(journal: Journal) -> None:
    for name in STAGES[:-1]:
        ended(journal, name, Status.PASS)
    journal.stage_started("job")
    shown = journal.as_it_stands()
    assert (shown.verdict, shown.state, shown.exit) == (Verdict.PASS, State.IN_PROGRESS, None)


def test_a_job_that_has_warnings_before_it_is_shown_them(journal: Journal) -> None:
    for name in STAGES[:-1]:
        ended(journal, name, Status.PASS)
    journal.check(a_check(Status.WARN))
    assert journal.as_it_stands().verdict is Verdict.WARN


def test_a_boot_is_ready_when_all_that_was_asked_for_has_passed(journal: Journal) -> None:
    assert not journal.ready("settings")
    ended(journal, "settings", Status.PASS)
    assert journal.ready("settings")
    assert not journal.ready(None)
    journal.interrupted("SIGTERM")
    assert not journal.ready("settings")


def test_the_jobs_record_is_closed_by_what_is_learnt_later(
    journal: Journal, writer: FakeWriter
) -> None:
    journal.section("job", JobRecord(target="a:b", started="now"))
    journal.job(signals=["SIGUSR1"], code=4, raised="exit 4")
    journal.stage_started("job")
    found = on_disk(writer).job
    assert found is not None
    assert (found.target, found.signals, found.code) == ("a:b", ["SIGUSR1"], 4)


def test_a_stage_skipped_has_its_reason_as_a_check(journal: Journal, writer: FakeWriter) -> None:
    journal.skip("collective", "one process")
    report = on_disk(writer)
    (stage,) = (each for each in report.stages if each.name == "collective")
    assert (stage.status, stage.finding) == (Status.SKIP, "one process")
    assert [(c.id, c.status) for c in report.checks] == [("collective.asked", Status.SKIP)]
