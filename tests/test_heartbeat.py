"""Facts about the samples that tell a slow stage from a stuck one."""

from __future__ import annotations

import pytest

from app.facts.process import Sample
from app.heartbeat import Heartbeat, told
from app.report import Activity

GIB = 2**30


class Machine:
    """A process, a device and a clock as the test wants them."""

    def __init__(self) -> None:
        self.now = 50.0
        self.sample = Sample(rss_bytes=GIB, state="S")
        self.gpu: tuple[int | None, int | None] = (None, None)
        self.heart = Heartbeat(lambda _pid: self.sample, lambda: self.gpu, lambda: self.now)
        self.heart.begin(1)

    def after(self, seconds: float, *, cpu_s: float = 0.0, read_bytes: int = 0) -> None:
        """Time passes, and the process uses so much in it."""
        self.now += seconds
        self.sample = Sample(
            rss_bytes=self.sample.rss_bytes,
            cpu_s=self.sample.cpu_s + cpu_s,
            read_bytes=self.sample.read_bytes + read_bytes,
            state=self.sample.state,
        )

    def seconds(self, n: int, *, cpu_s: float = 0.0, read_bytes: int = 0) -> Activity:
        """A look a second; what the last one shows."""
        for _ in range(n - 1):
            self.after(1, cpu_s=cpu_s, read_bytes=read_bytes)
            self.heart.beat(1)
        self.after(1, cpu_s=cpu_s, read_bytes=read_bytes)
        return self.heart.beat(1)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_process_that_does_nothing_is_idle_for_as_long(machine: Machine) -> None:
    found = machine.seconds(20)
    assert (found.idle_s, found.samples, found.state) == (20, 20, "S")


@pytest.mark.parametrize("used", [{"cpu_s": 0.5}, {"read_bytes": 10_000_000}])
def test_a_slow_process_is_not_stuck(machine: Machine, used: dict[str, int]) -> None:
    assert machine.seconds(20, **used).idle_s == 0


def test_threads_that_wait_in_a_loop_are_no_progress(machine: Machine) -> None:
    """One percent of a processor, and what such threads read of /proc."""
    assert machine.seconds(20, cpu_s=0.01, read_bytes=1000).idle_s == 20


def test_one_tick_of_the_kernels_clock_in_a_short_while_is_no_progress(machine: Machine) -> None:
    """At a deadline the last look comes at any time after the one before; a tick is 10 ms."""
    machine.seconds(60, cpu_s=0.01)
    machine.after(0.1, cpu_s=0.01)
    assert machine.heart.beat(1).idle_s > 50


def test_figures_are_those_of_the_stage_and_not_of_the_process(machine: Machine) -> None:
    machine.after(5, cpu_s=4, read_bytes=100_000_000)
    machine.heart.beat(1)
    machine.heart.begin(1)
    machine.after(1, cpu_s=1, read_bytes=7)
    found = machine.heart.beat(1)
    assert (found.cpu_s, found.read_bytes, found.samples, found.idle_s) == (1, 7, 1, 0)


def test_the_peak_outlasts_what_is_freed(machine: Machine) -> None:
    machine.sample = Sample(rss_bytes=3 * GIB)
    machine.heart.beat(1)
    machine.sample = Sample(rss_bytes=GIB)
    found = machine.heart.beat(1)
    assert (found.rss_bytes, found.rss_peak_bytes) == (GIB, 3 * GIB)
    assert machine.heart.peak_bytes == 3 * GIB


def test_a_process_that_is_gone_counts_nothing_below_zero(machine: Machine) -> None:
    machine.after(1, cpu_s=5, read_bytes=5)
    machine.heart.begin(1)
    machine.sample = Sample()
    found = machine.heart.beat(1)
    assert (found.cpu_s, found.read_bytes, found.rss_bytes) == (0, 0, 0)


def test_one_line_tells_a_person_what_happens(machine: Machine) -> None:
    machine.gpu = (5 * GIB, 37)
    machine.after(30, cpu_s=12.4, read_bytes=2**21)
    assert told(machine.heart.beat(1), 30.2) == (
        "30 s, 1.0 GiB resident, 2 MiB read, 12 s of processor time, 5.0 GiB on the device, "
        "device 37 % busy"
    )


def test_the_line_says_when_nothing_moves(machine: Machine) -> None:
    machine.after(42)
    line = told(machine.heart.beat(1), 42)
    assert line.endswith("nothing moved for 42 s")
    assert "device" not in line
