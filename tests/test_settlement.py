"""Facts about the verdict and the exit status of a boot, from what has happened in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.exits import exit_code, worst
from app.outcome import Fault, Status
from app.report import Exit, JobRecord, StageRecord, State, Verdict
from app.settlement import Course, explained, settle, unexplained
from app.stages import STAGES
from tests.fakes_core import a_record


def stages(**given_statuses: Status) -> dict[str, StageRecord]:
    return {
        name: StageRecord(name=name, status=given_statuses.get(name, Status.PASS))
        for name in STAGES
    }


READY = Course(stages=stages(), checks=[], current="job")
JOB = JobRecord(target="a:b", started="now")


def settled(course: Course) -> tuple[State, Verdict, Exit]:
    """As the journal does it: what is unexplained becomes a check first."""
    lost = unexplained(course)
    if lost is not None:
        course = replace(course, checks=[*course.checks, lost])
    found = settle(course)
    state, verdict, end = found["state"], found["verdict"], found["exit"]
    assert isinstance(state, State)
    assert isinstance(verdict, Verdict)
    assert isinstance(end, Exit)
    return state, verdict, end


def test_all_passed_is_ready() -> None:
    state, verdict, end = settled(READY)
    assert (state, verdict, end.process_code, end.reason) == (
        State.COMPLETE,
        Verdict.PASS,
        0,
        "ready",
    )


def test_a_warning_is_a_verdict_and_no_failure() -> None:
    warned = a_record("host", status=Status.WARN, reason="odd")
    _, verdict, end = settled(replace(READY, checks=[warned]))
    assert (verdict, end.process_code) == (Verdict.WARN, 0)


@pytest.mark.parametrize("name", STAGES)
def test_silence_of_a_stage_is_no_pass(name: str) -> None:
    _, verdict, end = settled(replace(READY, stages=stages(**{name: Status.NOT_RUN})))
    assert (verdict, end.process_code) == (Verdict.FAIL, 70)
    assert name in end.reason


@pytest.mark.parametrize("name", [name for name in STAGES if name != "job"])
def test_a_stage_that_failed_and_says_not_why_is_no_pass(name: str) -> None:
    _, verdict, end = settled(replace(READY, stages=stages(**{name: Status.FAIL})))
    assert (verdict, end.process_code) == (Verdict.FAIL, 70)


def test_stages_that_nobody_asked_for_are_not_missed() -> None:
    asked = stages(**dict.fromkeys(STAGES[3:], Status.NOT_RUN))
    course = replace(READY, stages=asked, stopped_after=STAGES[2])
    _, verdict, end = settled(course)
    assert (verdict, end.process_code) == (Verdict.PASS, 0)
    assert f"stopped after {STAGES[2]}" in end.reason
    assert settle(course)["stopped_after"] == STAGES[2]


@given(st.lists(st.sampled_from(Fault), min_size=1), st.sampled_from(["", "SIGTERM", "SIGINT"]))
def test_the_most_decisive_fault_decides_whatever_was_received(
    faults: list[Fault], signal: str
) -> None:
    checks = [a_record("host", status=Status.FAIL, fault=fault) for fault in faults]
    state, verdict, end = settled(replace(READY, checks=checks, signal=signal))
    assert end.process_code == end.code == worst(exit_code(fault) for fault in faults)
    assert verdict is Verdict.FAIL
    assert state is (State.INTERRUPTED if signal else State.COMPLETE)


def test_one_reason_is_shown_and_the_others_are_counted() -> None:
    checks = [
        a_record("host", status=Status.FAIL, fault=Fault.CONFIG, reason="a", next_step="do"),
        a_record("host", status=Status.FAIL, fault=Fault.CONFIG, reason="b"),
    ]
    end = settled(replace(READY, checks=checks))[2]
    assert (end.reason, end.next_step) == ("a (+1 more)", "do")


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 143)])
def test_a_request_to_end_is_its_own_status(signal: str, code: int) -> None:
    running = stages(**dict.fromkeys(STAGES[6:], Status.NOT_RUN))
    course = replace(READY, stages=running, signal=signal, current="load")
    state, verdict, end = settled(course)
    assert (state, verdict, end.process_code) == (State.INTERRUPTED, Verdict.FAIL, code)
    assert end.reason == f"{signal} received in stage load"


@pytest.mark.parametrize("code", [0, 1, 3, 79, 255])
def test_a_jobs_status_is_passed_through(code: int) -> None:
    job = JOB.model_copy(update={"code": code, "returned": str(code)})
    blocked = Status.FAIL if code else Status.PASS
    course = replace(READY, job=job, stages=stages(job=blocked))
    state, verdict, end = settled(course)
    assert end.process_code == code
    assert (end.code, verdict, state) == (0, Verdict.PASS, State.COMPLETE)
    assert end.reason == f"the guard passed; a:b returned {code}"


@pytest.mark.parametrize(("returned", "process_code"), [(0, 143), (5, 5)])
def test_a_job_that_was_asked_to_end_is_never_a_success(returned: int, process_code: int) -> None:
    """0 would tell an orchestrator that the work is done."""
    job = JOB.model_copy(update={"code": returned, "returned": str(returned)})
    state, _, end = settled(replace(READY, job=job, signal="SIGTERM"))
    assert (state, end.process_code) == (State.INTERRUPTED, process_code)
    assert "after SIGTERM" in end.reason


def test_a_job_that_died_of_the_signal_that_it_was_given_was_interrupted() -> None:
    course = replace(READY, job=JOB, signal="SIGTERM", stages=stages(job=Status.NOT_RUN))
    state, _, end = settled(course)
    assert (state, end.process_code) == (State.INTERRUPTED, 143)


def test_stages_that_did_not_run_say_which_one_stood_in_the_way() -> None:
    course = replace(READY, stages=stages(gpu=Status.FAIL, load=Status.NOT_RUN))
    assert explained(course)["load"].finding == "stage gpu did not pass"
    assert explained(course)["host"].finding == ""


def test_stages_that_did_not_run_say_that_a_signal_came() -> None:
    course = replace(READY, stages=stages(load=Status.NOT_RUN), signal="SIGINT")
    assert explained(course)["load"].finding == "SIGINT received"
