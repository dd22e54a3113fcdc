"""Facts of deadlines: every stage has one, 0 turns it off, and nothing else does."""

from __future__ import annotations

import pytest

from app.limits import NEVER, Limits
from app.settings_deadlines import TIMED_STAGES, DeadlineSettings
from app.settings_model import variable_of
from app.stages import STAGES
from tests.settings_help import CPU, loaded, problem_of

DEADLINES = [variable_of(field) for field in DeadlineSettings.model_fields if field != "grace_s"]


def test_every_stage_but_settings_and_job_has_a_deadline_by_default() -> None:
    assert {"settings", *TIMED_STAGES, "job"} == set(STAGES)
    limits = loaded(CPU).limits()
    assert set(limits.stages) == set(TIMED_STAGES)
    assert all(0 < limits.of(stage) < NEVER for stage in TIMED_STAGES)
    assert 0 < limits.total < NEVER
    assert (limits.of("settings"), limits.of("job"), limits.job) == (NEVER, NEVER, NEVER)
    assert limits.grace == 5


def test_no_stage_alone_outlasts_the_guard() -> None:
    limits = loaded(CPU).limits()
    assert max(limits.stages.values()) < limits.total


def test_limits_are_what_was_set_and_zero_is_never() -> None:
    environ = {f"BOOT_{stage.upper()}_TIMEOUT_S": f"{n}.5" for n, stage in enumerate(TIMED_STAGES)}
    environ |= {"BOOT_TOTAL_TIMEOUT_S": "0", "BOOT_JOB_TIMEOUT_S": "604800", "BOOT_GRACE_S": "2.5"}
    limits = loaded({**CPU, **environ, "BOOT_HOST_TIMEOUT_S": "0"}).limits()
    expected = {stage: n + 0.5 for n, stage in enumerate(TIMED_STAGES)} | {"host": NEVER}
    assert limits == Limits(expected, total=NEVER, job=604800.0, grace=2.5)
    assert limits.of("job") == 604800


@pytest.mark.parametrize("variable", DEADLINES)
@pytest.mark.parametrize(("value", "is_"), [("0", 0), ("-0", 0), ("0.001", 0.001), ("1e3", 1000)])
def test_seconds_take_fractions(variable: str, value: str, is_: float) -> None:
    found = getattr(loaded({**CPU, variable: value}), variable.removeprefix("BOOT_").lower())
    assert found == is_
    assert str(found)[0] != "-"


@pytest.mark.parametrize("variable", [*DEADLINES, "BOOT_GRACE_S"])
@pytest.mark.parametrize(
    "value",
    [
        *("nan", "inf", "-1", "-0.001", "604800.1", "1e999", "1e-400", "0.0001", "5s", " 5", "5 "),
        *("1_0", "0x5", "true", "1,5", "9" * 5000),
    ],
)
def test_what_is_no_time_is_refused(variable: str, value: str) -> None:
    """A value too small for a float would otherwise be 0, which is no deadline at all."""
    assert problem_of({**CPU, variable: value}).name == variable


def test_the_grace_is_never_nothing_and_never_an_hour() -> None:
    for value in ("0", "0.5", "601"):
        assert "seconds from 1 to 600" in problem_of({**CPU, "BOOT_GRACE_S": value}).expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, True])
def test_the_class_itself_takes_no_odd_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        DeadlineSettings(host_timeout_s=value)
    assert DeadlineSettings(host_timeout_s=1).host_timeout_s == 1
