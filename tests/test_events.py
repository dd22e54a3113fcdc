"""Facts about the pipe between supervisor and worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import ModelRequest
from app.events import (
    MAX_EVENTS,
    CheckEnded,
    Ended,
    Event,
    Order,
    PlanKnown,
    ProtocolError,
    SectionKnown,
    StageFinished,
    StageStarted,
    Turns,
    decode,
    decode_order,
    encode,
)
from app.outcome import Severity, Status
from app.plan import Plan, Resolved
from app.profiles import PROFILES
from app.report import CheckRecord
from app.stages import SUPERVISOR_STAGES, WORKER_STAGES
from tests.fakes_core import PLAN, a_journal, a_stage

RECORD = CheckRecord(
    stage="load", id="load.x", status=Status.PASS, severity=Severity.CRITICAL, reason="a\nb"
)


@pytest.mark.parametrize(
    "event",
    [
        StageStarted(name="load"),
        CheckEnded(record=RECORD),
        SectionKnown(name="software", data={"python": "3.11"}),
        StageFinished(name="load", status=Status.WARN, finding="a"),
        PlanKnown(plan=PLAN),
        Ended(peak_bytes=1),
    ],
)
def test_an_event_is_one_line_and_comes_back_as_it_was(event: Event) -> None:
    line = encode(event)
    assert line.count(b"\n") == 1
    assert decode(line) == event


@pytest.mark.parametrize("name", PROFILES)
def test_a_plan_crosses_the_pipe_unchanged(name: str) -> None:
    resolved = Resolved("some/model", "abc", Path("/models/x"), "it is there")
    plan = Plan(PROFILES[name], ModelRequest(), Path("reports"), steps=7, resolved=resolved)
    order = decode_order(encode(Order(kind="go", plan=plan, stop_after="load")))
    assert order.plan == plan


def test_the_job_gets_the_report_and_where_to_look_for_its_module() -> None:
    report = a_journal().as_it_stands()
    sent = Order(kind="job", plan=PLAN, report=report, job_path=("/jobs", "/more"))
    order = decode_order(encode(sent))
    assert (order.report, order.job_path) == (report, ("/jobs", "/more"))


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)
    with pytest.raises(ProtocolError):
        decode_order(line)


def test_another_version_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(encode(Ended(peak_bytes=1)).replace(b'"v":1', b'"v":2'))


def test_a_refused_line_is_not_echoed() -> None:
    """What a library prints into the wrong pipe may hold a secret."""
    with pytest.raises(ProtocolError) as caught:
        decode(b'{"kind": "ended", "v": 1, "peak_bytes": "hf_secret"}')
    assert "hf_secret" not in str(caught.value)


def take(stop_after: str | None, events: list[Event]) -> None:
    turns = Turns(WORKER_STAGES, stop_after)
    for event in events:
        turns.take(event)


ALL = [event for name in WORKER_STAGES for event in a_stage(name)]
END = Ended(peak_bytes=1)


@pytest.mark.parametrize(
    ("stop_after", "events"),
    [
        (None, [*ALL, END]),
        ("job", [*ALL, END]),
        ("stack", [*a_stage("stack"), END]),
        (None, [*a_stage("stack"), *a_stage("load", Status.FAIL), END]),
    ],
)
def test_a_worker_that_did_what_it_was_told_is_believed(
    stop_after: str | None, events: list[Event]
) -> None:
    take(stop_after, events)


@pytest.mark.parametrize(
    "events",
    [
        [END],
        [*a_stage("stack"), END],
        a_stage("load"),
        a_stage("host"),
        a_stage("no such stage"),
        [*a_stage("stack"), *a_stage("stack")],
        [StageStarted(name="stack"), StageStarted(name="load")],
        [StageStarted(name="stack"), END],
        [StageStarted(name="stack"), *a_stage("load")[1:]],
        [StageFinished(name="stack", status=Status.PASS, finding="")],
        [CheckEnded(record=RECORD)],
        [SectionKnown(name="software", data={})],
        [*a_stage("stack", Status.FAIL), *a_stage("load")],
    ],
)
def test_a_worker_that_skips_or_repeats_is_not(events: list[Event]) -> None:
    with pytest.raises(ProtocolError):
        take(None, events)


PREFLIGHT = SUPERVISOR_STAGES[1:]


def test_the_preflight_tells_its_plan_when_all_its_stages_have_ended() -> None:
    turns = Turns(PREFLIGHT)
    for event in (event for name in PREFLIGHT for event in a_stage(name)):
        turns.take(event)
    turns.take(PlanKnown(plan=PLAN))
    turns.take(END)


def test_a_plan_before_the_stages_that_make_it_is_none() -> None:
    turns = Turns(PREFLIGHT)
    for event in a_stage("host"):
        turns.take(event)
    with pytest.raises(ProtocolError, match="before gpu has ended"):
        turns.take(PlanKnown(plan=PLAN))


def test_a_job_is_one_stage() -> None:
    turns = Turns(("job",))
    for event in a_stage("job", Status.FAIL):
        turns.take(event)
    turns.take(END)


def test_a_child_that_never_stops_talking_is_cut_off() -> None:
    turns = Turns(WORKER_STAGES)
    turns.take(StageStarted(name="stack"))
    check = CheckEnded(record=RECORD.model_copy(update={"stage": "stack"}))
    for _ in range(MAX_EVENTS - 1):
        turns.take(check)
    with pytest.raises(ProtocolError, match="more than"):
        turns.take(check)
