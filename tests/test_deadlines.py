"""Facts about when a stage, and the whole guard, must have ended."""

from __future__ import annotations

import pytest

from app.deadlines import Deadlines
from app.limits import NEVER, Limits


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_stage_has_its_time_from_its_start(clock: Clock) -> None:
    deadlines = Deadlines(Limits(stages={"host": 10, "load": 30}), clock)
    clock.now += 1000
    deadlines.begin("host")
    clock.now += 4
    assert deadlines.left() == pytest.approx(6)
    deadlines.begin("load")
    assert deadlines.left() == pytest.approx(30)
    assert deadlines.named() == "BOOT_LOAD_TIMEOUT_S=30"


def test_no_stage_may_outlast_the_guard(clock: Clock) -> None:
    deadlines = Deadlines(Limits(stages={"host": 10, "load": 30}, total=20), clock)
    deadlines.begin("host")
    assert (deadlines.left(), deadlines.named()) == (10, "BOOT_HOST_TIMEOUT_S=10")
    clock.now += 9
    deadlines.begin("load")
    assert (deadlines.left(), deadlines.named()) == (11, "BOOT_TOTAL_TIMEOUT_S=20")
    clock.now += 12
    assert deadlines.left() < 0


def test_a_job_has_its_own_time_and_no_other(clock: Clock) -> None:
    deadlines = Deadlines(Limits(stages={"numerics": 1}, total=5, job=50), clock)
    deadlines.begin("numerics")
    clock.now += 4
    deadlines.begin("job")
    deadlines.begin_job()
    assert (deadlines.left(), deadlines.named()) == (50, "BOOT_JOB_TIMEOUT_S=50")
    clock.now += 49.5
    assert deadlines.left() == pytest.approx(0.5)


def test_without_limits_there_is_always_time(clock: Clock) -> None:
    deadlines = Deadlines(Limits(), clock)
    deadlines.begin("load")
    clock.now += 1e9
    assert deadlines.left() == NEVER
    deadlines.begin_job()
    assert deadlines.left() == NEVER


def test_fractions_of_a_second_are_named_as_they_were_set(clock: Clock) -> None:
    deadlines = Deadlines(Limits(stages={"gpu": 0.25}), clock)
    deadlines.begin("gpu")
    assert deadlines.named() == "BOOT_GPU_TIMEOUT_S=0.25"
