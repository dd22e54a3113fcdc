"""Facts about running stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from app.checks import Check
from app.config import ModelRequest
from app.errors import BootError
from app.outcome import Fault, Finding, Severity, Status, combine, failed, passed, skipped, warned
from app.pipeline import Part, Published, Stage, chain, run_stage, run_stages
from app.plan import Plan
from app.profiles import CPU
from app.report import CheckRecord
from app.sections import Section, Software

PLAN = Plan(profile=CPU, request=ModelRequest(), report_dir=Path("reports"))


class Told:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.checks: list[CheckRecord] = []
        self.sections: dict[str, Published] = {}
        self.finished: list[tuple[str, Status, str]] = []
        self.troubles: list[tuple[str, BaseException]] = []

    def stage_started(self, name: str) -> None:
        self.started.append(name)

    def check(self, record: CheckRecord) -> None:
        self.checks.append(record)

    def section(self, name: str, section: Published) -> None:
        self.sections[name] = section

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        self.finished.append((name, status, finding))

    def trouble(self, name: str, error: BaseException) -> None:
        self.troubles.append((name, error))


class Session:
    plan = PLAN


def a_check(name: str, judge: Callable[[str, Plan], Finding]) -> Check[str]:
    return Check(f"s.{name}", Fault.DATA_INVALID, "the test", judge)


def a_stage(
    *checks: Check[str], gather: Callable[[], str] = lambda: "facts", name: str = "s"
) -> Stage:
    return Stage(name, (Part(gather, checks),))


def ok(_facts: str, _plan: Plan) -> Finding:
    return passed("as it should be")


def bad(_facts: str, _plan: Plan) -> Finding:
    return failed("broken", expected="whole", actual="half", next_step="mend it")


def explodes(_facts: str, _plan: Plan) -> Finding:
    raise ValueError("outer") from KeyError("inner")


def test_all_checks_of_a_stage_run_whatever_the_others_found() -> None:
    told = Told()
    status = run_stage(
        a_stage(a_check("a", bad), a_check("b", explodes), a_check("c", ok)), Session(), told
    )
    assert [record.status for record in told.checks] == [Status.FAIL, Status.ERROR, Status.PASS]
    assert status is Status.ERROR


def test_a_failure_carries_what_its_check_declares() -> None:
    told = Told()
    run_stage(a_stage(a_check("a", bad)), Session(), told)
    (record,) = told.checks
    assert (record.fault, record.source, record.severity) == (
        Fault.DATA_INVALID,
        "the test",
        Severity.CRITICAL,
    )
    assert told.finished == [("s", Status.FAIL, "broken")]


def test_an_exception_keeps_its_type_text_and_innermost_cause() -> None:
    told = Told()
    run_stage(a_stage(a_check("a", explodes)), Session(), told)
    reason = told.checks[0].reason
    assert reason.startswith("ValueError: outer")
    assert "KeyError: 'inner'" in reason
    assert told.checks[0].fault is Fault.INTERNAL
    assert [(name, str(error)) for name, error in told.troubles] == [("s", "outer")]


def test_a_stage_shows_the_finding_that_decides_the_exit_status() -> None:
    def wrong(_facts: str, _plan: Plan) -> Finding:
        return failed("wrong", expected="", actual="", next_step="", fault=Fault.CONFIG)

    told = Told()
    run_stage(a_stage(a_check("a", explodes), a_check("b", wrong)), Session(), told)
    assert told.finished == [("s", Status.ERROR, "wrong (+1 more)")]


def test_checks_whose_facts_are_missing_are_not_run_and_not_passed() -> None:
    def gather() -> str:
        raise BootError("no such folder", fault=Fault.MODEL_ABSENT, next_step="look")

    told = Told()
    status = run_stage(a_stage(a_check("a", ok), gather=gather), Session(), told)
    assert [(r.id, r.status) for r in told.checks] == [
        ("s.gather", Status.FAIL),
        ("s.a", Status.NOT_RUN),
    ]
    assert told.checks[0].fault is Fault.MODEL_ABSENT
    assert status is Status.FAIL


def test_a_second_part_is_not_gathered_after_a_first_that_could_not_be() -> None:
    def gather() -> str:
        raise OSError("gone")

    def never() -> str:
        pytest.fail("gathered")

    told = Told()
    stage = Stage("s", (Part(gather, (a_check("a", ok),)), Part(never, (a_check("b", ok),))))
    run_stage(stage, Session(), told)
    assert [r.id for r in told.checks if r.status is Status.NOT_RUN] == ["s.a", "s.b"]


def test_a_section_that_does_not_fit_the_schema_is_our_bug_and_said_so() -> None:
    def publish(_facts: str) -> Mapping[str, Section]:
        return {"software": Software.model_validate({"python": 3})}

    told = Told()
    stage = Stage("s", (Part(lambda: "facts", (a_check("a", ok),), publish),))
    assert run_stage(stage, Session(), told) is Status.ERROR
    assert told.checks[-1].fault is Fault.INTERNAL
    assert not told.sections


def test_later_stages_do_not_run_after_one_that_did_not_pass() -> None:
    told = Told()
    stages = (a_stage(a_check("a", bad), name="one"), a_stage(a_check("b", ok), name="two"))
    assert not run_stages(stages, Session(), told, stop_after=None)
    assert told.started == ["one"]


def test_a_boot_that_is_told_to_stop_stops_after_that_stage() -> None:
    told = Told()
    stages = tuple(a_stage(a_check("a", ok), name=name) for name in ("one", "two", "three"))
    assert not run_stages(stages, Session(), told, stop_after="two")
    assert told.started == ["one", "two"]


@pytest.mark.parametrize(
    ("findings", "status"),
    [
        ([], Status.PASS),
        ([passed("")], Status.PASS),
        ([skipped("why")], Status.SKIP),
        ([skipped("why"), passed("")], Status.PASS),
        ([passed(""), warned("w", expected="", actual="", next_step="")], Status.WARN),
        ([bad("", PLAN), warned("w", expected="", actual="", next_step="")], Status.FAIL),
    ],
)
def test_a_stage_is_as_good_as_its_worst_check(findings: list[Finding], status: Status) -> None:
    assert combine([finding.status for finding in findings]) is status


def test_a_chain_of_causes_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert chain(first) == "ValueError: a <- ValueError: b"
