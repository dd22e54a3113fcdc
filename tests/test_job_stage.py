"""Facts about the worker's last stage: how it calls the user's function, and what it tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.events import CheckEnded, Event, SectionKnown, StageFinished, StageStarted, Turns, decode
from app.outcome import Status
from app.report import JobRecord
from tests.boots import ROOT

# The stage as the worker runs it: an event pipe, a raw standard output, and output for the log.
PROGRAM = """
import os, sys
from dataclasses import replace
from app import job_stage
from app.events import Order
from app.pipe_sink import PipeSink
from tests.fakes_core import PLAN, a_journal
class Work:
    model, tokenizer = "a model", "a tokenizer"
events, raw = map(int, sys.argv[1:])
plan = replace(PLAN, job="mine:main")
order = Order(kind="job", plan=plan, report=a_journal().as_it_stands(), job_path=(os.getcwd(),))
print("to the log", flush=True)
job_stage.run(Work(), order, raw, PipeSink(os.fdopen(events, "wb")))
"""


class Done:
    """What a job stage said, printed and left with."""

    def __init__(self, folder: Path, job: str, *, read_stdout: bool = True) -> None:
        (folder / "mine.py").write_text(job)
        reading, events = os.pipe()
        raw_reading, raw = os.pipe()
        if not read_stdout:
            os.close(raw_reading)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(events), str(raw)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=(events, raw),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(events)
        os.close(raw)
        self.log, self.err = process.communicate(timeout=60)
        self.code = process.returncode
        with os.fdopen(reading, "rb") as pipe:
            self.events: list[Event] = [decode(line) for line in pipe.read().splitlines()]
        self.out = ""
        if read_stdout:
            with os.fdopen(raw_reading) as output:
                self.out = output.read()

    @property
    def record(self) -> JobRecord:
        sections = [event for event in self.events if isinstance(event, SectionKnown)]
        return JobRecord.model_validate(sections[-1].data)

    @property
    def finished(self) -> StageFinished:
        (found,) = (event for event in self.events if isinstance(event, StageFinished))
        return found


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("return", 0, Status.PASS),
        ("return 0", 0, Status.PASS),
        ("return 3", 3, Status.FAIL),
        ("import sys; sys.exit(4)", 4, Status.FAIL),
        ("raise ValueError('x')", 1, Status.FAIL),
        ("raise KeyboardInterrupt", 130, Status.FAIL),
    ],
)
def test_the_functions_end_is_told_as_a_status(
    tmp_path: Path, body: str, code: int, status: Status
) -> None:
    done = Done(tmp_path, f"def main(model, tokenizer, report):\n    {body}\n")
    assert (done.record.code, done.finished.status, done.code) == (code, status, 0), done.err
    assert (done.record.returned is None) != (done.record.raised is None)
    (check,) = (event.record for event in done.events if isinstance(event, CheckEnded))
    # The job's failure is its own: no fault of the boot's stands for it.
    assert (check.status, check.fault) == (status, None)


def test_it_is_one_stage_in_turn(tmp_path: Path) -> None:
    done = Done(tmp_path, "def main(model, tokenizer, report): pass\n")
    turns = Turns(("job",))
    for event in done.events:
        turns.take(event)
    assert done.events[0] == StageStarted(name="job")
    assert (done.record.target, done.record.code) == ("mine:main", 0)


def test_it_gets_the_model_the_tokenizer_and_the_report(tmp_path: Path) -> None:
    job = "def main(*given): print(given[0], given[1], given[2].report_id[:0], len(given))\n"
    assert Done(tmp_path, job).out.split() == ["a", "model", "a", "tokenizer", "3"]


def test_its_output_is_raw_and_nothing_of_ours_is_in_it(tmp_path: Path) -> None:
    job = (
        "import os, subprocess\n"
        "def main(model, tokenizer, report):\n"
        "    print('printed'); os.system('echo from a child')\n"
        "    os.write(1, bytes([0, 10])); print('no line end', end='')\n"
    )
    done = Done(tmp_path, job)
    assert sorted(done.out) == sorted("printed\nfrom a child\n\0\nno line end")
    assert done.log == "to the log\n"


def test_a_traceback_is_for_the_log(tmp_path: Path) -> None:
    done = Done(tmp_path, "def main(model, tokenizer, report):\n    raise ValueError('words')\n")
    assert "ValueError: words" in done.err
    assert "line 2, in main" in done.err
    assert done.out == ""


def test_a_module_that_is_not_there_is_the_jobs_failure(tmp_path: Path) -> None:
    done = Done(tmp_path, "import nothing_of_this_name\n")
    assert (done.record.code, done.code) == (1, 0)
    assert "nothing_of_this_name" in (done.record.raised or "")


def test_an_output_that_nobody_reads_does_not_break_the_stage(tmp_path: Path) -> None:
    """However it counts, it is the job's: the stage itself is told to its end."""
    job = "def main(model, tokenizer, report):\n    print('x')\n    return 3\n"
    done = Done(tmp_path, job, read_stdout=False)
    assert done.code == 0, done.err
    assert done.finished.status is Status.FAIL
    assert done.record.code not in {None, 0}
