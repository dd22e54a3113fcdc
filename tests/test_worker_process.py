"""Facts about a worker's death and misbehaviour, as the supervisor sees them.

The processes are real; a `sitecustomize` on their path makes them do the wrong thing before the
worker's own code runs, in milliseconds and without torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import worker_process
from app.config import ModelRequest
from app.events import CheckEnded, Ended, Event, StageFinished, StageStarted, encode
from app.outcome import Severity, Status
from app.plan import Plan
from app.profiles import CPU
from app.report import CheckRecord
from app.worker_process import WorkerDied, WorkerProcess

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(profile=CPU, request=ModelRequest(), report_dir=Path("reports"))
START = "import os, signal, sys, time\npipe = int(sys.orig_argv[-2])\n"
RECORD = CheckRecord(
    stage="stack", id="stack.x", status=Status.PASS, severity=Severity.CRITICAL, reason=""
)


@pytest.fixture
def misbehaving() -> Iterator[list[WorkerProcess]]:
    """Collects started workers and ends them."""
    started: list[WorkerProcess] = []
    yield started
    for worker in started:
        worker.end()


def start(
    folder: Path, code: str, started: list[WorkerProcess], said: list[str] | None = None
) -> WorkerProcess:
    said = [] if said is None else said
    (folder / "sitecustomize.py").write_text(START + code)
    worker = WorkerProcess(PLAN, {**os.environ, "PYTHONPATH": str(folder)}, said.append)
    started.append(worker)
    return worker


@pytest.mark.parametrize(
    ("code", "text", "by_signal"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL", True),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV", True),
        ("os.kill(os.getpid(), 40)", "signal 40", True),
        ("os._exit(3)", "exit 3", False),
        ("os._exit(0)", "exit 0", False),
        ("os.write(pipe, b'garbage\\n'); time.sleep(60)", "no event", False),
        ("os.write(pipe, b'half a li'); os._exit(0)", "exit 0", False),
        (f"os.write(pipe, {encode(Ended(peak_bytes=1))!r}); time.sleep(60)", "before stack", False),
    ],
)
def test_every_death_has_a_name(
    tmp_path: Path, misbehaving: list[WorkerProcess], code: str, text: str, *, by_signal: bool
) -> None:
    worker = start(tmp_path, code, misbehaving)
    with pytest.raises(WorkerDied, match=text) as caught:
        list(worker.run(PLAN, None))
    assert caught.value.by_signal is by_signal


def test_events_before_a_death_are_not_lost(
    tmp_path: Path, misbehaving: list[WorkerProcess]
) -> None:
    said: list[Event] = [StageStarted(name="stack"), CheckEnded(record=RECORD)]
    code = f"os.write(pipe, {b''.join(encode(event) for event in said)!r}); os._exit(1)"
    worker = start(tmp_path, code, misbehaving)
    events = worker.run(PLAN, None)
    assert [next(events), next(events)] == said
    with pytest.raises(WorkerDied, match="exit 1"):
        next(events)


def test_a_whole_conversation_ends_well(tmp_path: Path, misbehaving: list[WorkerProcess]) -> None:
    said: list[Event] = [
        StageStarted(name="stack"),
        StageFinished(name="stack", status=Status.PASS, finding=""),
        Ended(peak_bytes=1),
    ]
    code = f"os.write(pipe, {b''.join(encode(event) for event in said)!r}); time.sleep(60)"
    assert list(start(tmp_path, code, misbehaving).run(PLAN, "stack")) == said


def test_a_worker_that_closes_its_pipe_and_goes_on_is_not_waited_for(
    tmp_path: Path, misbehaving: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_GRACE_S", 0.1)
    worker = start(tmp_path, "os.close(pipe); time.sleep(60)", misbehaving)
    with pytest.raises(WorkerDied, match="closed its event pipe"):
        list(worker.run(PLAN, None))


def test_a_child_that_keeps_the_pipe_open_does_not_hide_a_death(
    tmp_path: Path, misbehaving: list[WorkerProcess]
) -> None:
    code = "if os.fork():\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(8)\nos._exit(0)"
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="signal SIGKILL"):
        list(start(tmp_path, code, misbehaving).run(PLAN, None))
    assert time.monotonic() - began < 8


def test_a_line_without_end_is_cut_off(
    tmp_path: Path, misbehaving: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "MAX_LINE_BYTES", 100_000)
    worker = start(tmp_path, "while True: os.write(pipe, b'x' * 4096)", misbehaving)
    with pytest.raises(WorkerDied, match="without end"):
        list(worker.run(PLAN, None))


def test_the_worker_dies_with_its_supervisor() -> None:
    """By the kernel's hand, so also when the supervisor is killed without a word."""
    child = "import os, time; from app.worker import die_with; assert die_with(os.getppid()); "
    child += "print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_what_the_worker_prints_is_passed_on_in_clean_lines(
    tmp_path: Path, misbehaving: list[WorkerProcess]
) -> None:
    """Progress bars come with carriage returns, banners with colours, some with broken UTF-8."""
    said: list[str] = []
    printed = b"a\r50%\r\n\x1b[1mb\x1b[0m\n\xff\n"
    code = f"os.write(1, {printed!r}); os.write(2, b'c'); os._exit(7)"
    worker = start(tmp_path, code, misbehaving, said)
    with pytest.raises(WorkerDied, match="exit 7"):
        list(worker.run(PLAN, None))
    assert worker.last_lines() == said == ["a", "50%", "b", "\ufffd", "c"]
