"""Facts about what a boot leaves beside its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from app import outputs
from app.file_writer import FileWriter
from app.metrics import metrics
from app.outcome import Severity, Status
from app.outputs import termination_message, torchelastic_error, write_outputs
from app.report import (
    CheckRecord,
    Crash,
    Exit,
    Identity,
    JobRecord,
    Memory,
    Report,
    StageRecord,
    State,
    Verdict,
)
from app.text_file import OnlyIf
from app.verdict import MAX_LINE_BYTES

ROOT = Path(__file__).resolve().parent.parent
LONG_S = 30.0


def an_exit(code: int = 0, name: str = "OK", process_code: int | None = None) -> Exit:
    return Exit(
        code=code,
        name=name,
        reason="no GPU\nhere",
        retry="-",
        next_step="ask for one",
        process_code=code if process_code is None else process_code,
    )


def a_report(end: Exit | None = None, **fields: Any) -> Report:
    end = end or an_exit()
    values: dict[str, Any] = {
        "report_id": "a" * 32,
        "run_id": "job-7",
        "attempt": 2,
        "started": "2026-01-01T00:00:00+00:00",
        "duration_s": 12.5,
        "state": State.COMPLETE,
        "verdict": Verdict.PASS if end.code == 0 else Verdict.FAIL,
        "exit": end,
        "settings": {"hardware": "cpu"},
        "identity": Identity(
            bootguard="0.1.0", hostname="node", pid=1, uid=2, python="3.11.7", platform="Linux"
        ),
        "stages": [
            StageRecord(name="gpu", status=Status.FAIL, started="t", duration_s=1.5),
            StageRecord(name="stack", status=Status.NOT_RUN),
        ],
        "checks": [
            CheckRecord(
                stage="gpu", id=f"gpu.{n}", status=status, severity=Severity.CRITICAL, reason="x"
            )
            for n, status in enumerate([Status.PASS, Status.PASS, Status.FAIL])
        ],
        "memory": Memory(worker_peak_bytes=1_500_000_000, oom_kills=0),
    }
    return Report.model_validate({**values, **fields})


FAILED = an_exit(69, "NODE_UNFIT")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[FileWriter]:
    made = FileWriter(tmp_path / "reports")
    yield made
    made.close(LONG_S)


@pytest.fixture(autouse=True)
def _no_kubelet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container that runs the tests may have a termination log of its own."""
    monkeypatch.setattr(outputs, "KUBERNETES_TERMINATION_LOG", tmp_path / "termination-log")


def written(
    report: Report, writer: FileWriter, environ: dict[str, str] | None = None, **paths: Path
) -> list[str]:
    return write_outputs(
        report,
        "/reports/boot-report.json",
        writer,
        environ or {},
        paths.get("termination_log"),
        paths.get("metrics_file"),
        LONG_S,
    )


def samples(text: str) -> dict[str, float]:
    """By name and labels, as prometheus_client reads its own format."""
    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True) if sample.labels else ''}": (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_termination_message_is_one_short_line(reason: str, path: str) -> None:
    end = an_exit().model_copy(update={"reason": reason})
    message = termination_message(a_report(end, rehearsal=True), path)
    assert len(message.encode()) <= MAX_LINE_BYTES
    assert message.count("\n") == 1
    assert json.loads(message)["rehearsal"] is True


def test_the_message_goes_over_what_the_kubelet_has_mounted(
    writer: FileWriter, tmp_path: Path
) -> None:
    """A bind-mounted file is written in place: it cannot be renamed over."""
    log = tmp_path / "termination-log"
    log.write_text("old " * 1000)
    before = log.stat().st_ino
    assert written(a_report(FAILED), writer) == []
    assert json.loads(log.read_text())["exit"] == 69
    assert log.stat().st_ino == before


def test_without_a_kubelet_there_is_no_message(writer: FileWriter, tmp_path: Path) -> None:
    assert written(a_report(), writer) == []
    assert list(tmp_path.iterdir()) == []


def test_a_termination_log_that_is_asked_for_is_made(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "termination-log").write_text("")
    assert written(a_report(), writer, termination_log=tmp_path / "mine") == []
    assert json.loads((tmp_path / "mine").read_text())["verdict"] == "pass"
    assert (tmp_path / "termination-log").read_text() == ""


def test_refused_settings_leave_a_message_and_metrics_too(
    writer: FileWriter, tmp_path: Path
) -> None:
    environ = {
        "BOOT_TERMINATION_LOG": str(tmp_path / "mine"),
        "BOOT_METRICS_FILE": str(tmp_path / "boot.prom"),
    }
    assert written(a_report(an_exit(78, "CONFIG"), settings={}), writer, environ) == []
    assert json.loads((tmp_path / "mine").read_text())["exit"] == 78
    assert samples((tmp_path / "boot.prom").read_text())["bootguard_exit_code"] == 78


@pytest.mark.parametrize("value", ["", "~/x", "relative", "x\n"])
def test_a_refused_path_is_not_made_one(writer: FileWriter, tmp_path: Path, value: str) -> None:
    names = ("BOOT_TERMINATION_LOG", "BOOT_METRICS_FILE")
    assert written(a_report(FAILED), writer, dict.fromkeys(names, value)) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_refused_and_told(writer: FileWriter, tmp_path: Path) -> None:
    """Opening a FIFO for writing waits for a reader who may never come."""
    os.mkfifo(tmp_path / "fifo")
    (problem,) = written(a_report(), writer, termination_log=tmp_path / "fifo")
    assert problem.startswith("the termination message cannot be written")
    (tmp_path / "termination-log").mkdir()
    (problem,) = written(a_report(), writer)
    assert "regular file" in problem


def test_a_side_file_that_fails_keeps_the_others(writer: FileWriter, tmp_path: Path) -> None:
    environ = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "no" / "error.json")}
    problems = written(
        a_report(FAILED),
        writer,
        environ,
        termination_log=tmp_path / "no" / "log",
        metrics_file=tmp_path / "boot.prom",
    )
    assert [problem.partition(" cannot")[0] for problem in problems] == [
        "the termination message",
        "torchelastic's error file",
    ]
    assert (tmp_path / "boot.prom").is_file()


def test_a_writer_that_hangs_is_told_of_and_waited_for_once(tmp_path: Path) -> None:
    class Hangs:
        def __init__(self) -> None:
            self.deadlines: list[float] = []

        def text(
            self,
            path: Path,
            text: str,
            *,
            deadline_s: float,
            replace: bool,
            only_if: OnlyIf = "any",
        ) -> None:
            del path, text, replace, only_if
            self.deadlines.append(deadline_s)
            raise TimeoutError("its volume hangs")

    hangs = Hangs()
    problems = write_outputs(
        a_report(), None, hangs, {}, tmp_path / "log", tmp_path / "boot.prom", 0.5
    )
    assert [problem.rpartition(": ")[2] for problem in problems] == ["its volume hangs"] * 2
    assert all(deadline <= 0.5 for deadline in hangs.deadlines)


def test_torchelastic_gets_a_failure_as_its_agent_reads_it(
    writer: FileWriter, tmp_path: Path
) -> None:
    path = Path(os.path.relpath(tmp_path / "error.json"))  # as with `torchrun --log-dir logs`
    crash = Crash(where="load", kind="signal", text="SIGSEGV", traceback=["File x, line 1"])
    report = a_report(FAILED, crash=crash)
    assert written(report, writer, {"TORCHELASTIC_ERROR_FILE": str(path)}) == []
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "bootguard NODE_UNFIT: no GPU\nhere"
    assert message["errorCode"] == 69
    assert int(message["extraInfo"]["timestamp"]) == 1767225612  # 12.5 s after the start
    assert message["extraInfo"]["py_callstack"].splitlines()[-3:] == [
        "next step: ask for one",
        "report: /reports/boot-report.json",
        "File x, line 1",
    ]


def test_torchelastic_gets_nothing_of_a_boot_that_is_ready(
    writer: FileWriter, tmp_path: Path
) -> None:
    assert torchelastic_error(a_report(), None, 0.0) == ""
    path = tmp_path / "error.json"
    assert written(a_report(), writer, {"TORCHELASTIC_ERROR_FILE": str(path)}) == []
    assert not path.exists()


def test_an_error_file_that_the_job_has_written_stays(writer: FileWriter, tmp_path: Path) -> None:
    """torch's own `record` knows the job's stack."""
    path = tmp_path / "error.json"
    environ = {"TORCHELASTIC_ERROR_FILE": str(path)}
    report = a_report(an_exit(0, "OK", process_code=1))
    assert written(report, writer, environ) == []
    assert json.loads(path.read_text())["message"]["errorCode"] == 1
    path.write_text("the job's")
    assert written(report, writer, environ) == []
    assert path.read_text() == "the job's"
    assert written(a_report(FAILED), writer, environ) == []
    assert json.loads(path.read_text())["message"]["errorCode"] == 69


def test_a_device_is_never_replaced_by_a_file(writer: FileWriter) -> None:
    """torchelastic names /dev/null where it keeps no files, and root may rename over it."""
    environ = {"TORCHELASTIC_ERROR_FILE": os.devnull}
    assert written(a_report(FAILED), writer, environ, metrics_file=Path(os.devnull)) == []
    assert Path(os.devnull).is_char_device()


def test_metrics_say_how_a_boot_ended() -> None:
    found = samples(metrics(a_report(FAILED)))
    assert found["bootguard_success"] == 0
    assert found["bootguard_exit_code"] == 69
    assert found["bootguard_attempt"] == 2
    assert found["bootguard_duration_seconds"] == 12.5
    assert found["bootguard_end_timestamp_seconds"] == 1767225612.5
    assert found["bootguard_worker_peak_bytes"] == 1_500_000_000
    assert found["bootguard_oom_kills"] == 0
    assert found['bootguard_checks{"status": "pass"}'] == 2
    assert found['bootguard_checks{"status": "warn"}'] == 0
    assert found['bootguard_stage_duration_seconds{"stage": "gpu"}'] == 1.5
    assert found['bootguard_stage_status{"stage": "gpu", "status": "fail"}'] == 1
    assert found['bootguard_stage_status{"stage": "gpu", "status": "pass"}'] == 0
    assert "bootguard_job_exit_code" not in found
    (info,) = [name for name in found if name.startswith("bootguard_info")]
    assert json.loads(info.removeprefix("bootguard_info")) == {
        "version": "0.1.0",
        "profile": "cpu",
        "verdict": "fail",
        "exit": "NODE_UNFIT",
        "state": "complete",
        "rehearsal": "false",
        "run_id": "job-7",
        "node": "node",
    }


def test_a_job_that_fails_is_not_the_guards_failure() -> None:
    job = JobRecord(target="a:b", started="t", raised="ValueError", code=1)
    found = samples(metrics(a_report(an_exit(0, "OK", process_code=1), job=job)))
    assert (found["bootguard_success"], found["bootguard_exit_code"]) == (1, 1)
    assert found["bootguard_job_exit_code"] == 1


@given(st.text(max_size=300), st.text(max_size=300))
def test_metrics_are_valid_whatever_a_report_holds(run_id: str, host: str) -> None:
    identity = a_report().identity.model_copy(update={"hostname": host})
    report = a_report(run_id=run_id, identity=identity.model_dump(), settings={})
    (info,) = [name for name in samples(metrics(report)) if name.startswith("bootguard_info")]
    labels = json.loads(info.removeprefix("bootguard_info"))
    assert labels["run_id"] == (report.run_id or "")[:128]
    assert labels["node"] == report.identity.hostname[:128]


def test_metrics_leave_the_jobs_own_alone(tmp_path: Path) -> None:
    """With PROMETHEUS_MULTIPROC_DIR the library's counters would be files there."""
    code = (
        "import sys; from tests.test_outputs import a_report, metrics; print(metrics(a_report()))"
    )
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, check=True
    )
    assert b"bootguard_success 1.0" in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_library_is_loaded_only_where_metrics_are_asked_for() -> None:
    code = "import sys, app.outputs; print('prometheus_client' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"
