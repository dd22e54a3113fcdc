"""Facts about signals as the supervisor takes them. Real ones, sent to this process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from app import signals as module
from app.signals import ENDING, TOLD, Interrupted, Late, Signals, exit_status
from tests.boots import ROOT
from tests.fakes_core import installed


@pytest.fixture
def signals() -> Iterator[Signals]:
    with installed() as found:
        yield found


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs handlers between two steps of its own


@pytest.mark.parametrize("number", ENDING)
def test_a_request_to_end_is_noted_and_acted_on_between_two_steps(
    signals: Signals, number: signal.Signals
) -> None:
    send(number)
    assert signals.received == [number.name]
    with pytest.raises(Interrupted) as caught:
        signals.check()
    assert caught.value.name == number.name


@pytest.mark.parametrize("number", TOLD)
def test_what_tells_a_job_something_ends_no_guard(signals: Signals, number: signal.Signals) -> None:
    send(number)
    assert signals.check() == [number.name]
    assert signals.check() == []
    assert not signals.received


def test_nothing_came_is_nothing_told(signals: Signals) -> None:
    assert signals.check() == []


@pytest.mark.parametrize("number", [*ENDING, *TOLD])
def test_a_signal_ends_a_wait(signals: Signals, number: signal.Signals) -> None:
    """Python goes on with a poll that a handler has interrupted."""
    send(number)
    poll = select.poll()
    poll.register(signals.wakeup, select.POLLIN)
    assert poll.poll(5000)
    signals.heard()
    assert not poll.poll(0)


def test_a_flood_of_signals_blocks_nothing(signals: Signals) -> None:
    for _ in range(70_000):  # more than a pipe holds
        os.kill(os.getpid(), signal.SIGUSR1)
    assert 0 < len(signals.check()) < 100
    signals.heard()


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143), ("SIGXCPU", 143)]
)
def test_the_status_says_which_request(name: str, code: int) -> None:
    assert exit_status(name) == code


def test_the_same_request_by_two_ways_is_one(signals: Signals) -> None:
    """As srun does. Were it two, this process would be gone."""
    send(signal.SIGTERM)
    send(signal.SIGTERM)
    assert signals.received == ["SIGTERM", "SIGTERM"]
    with pytest.raises(Interrupted):
        signals.check()


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [("SIGTERM", "SIGTERM", 143), ("SIGTERM", "SIGINT", 130), ("SIGINT", "SIGTERM", 143)],
)
def test_a_second_request_is_immediate(first: str, second: str, code: int) -> None:
    """Whoever asks twice does not want to wait, whatever this process is in."""
    program = (
        "import os, signal, time; from app.signals import Signals\n"
        "signals = Signals(); signals.install()\n"
        f"os.kill(os.getpid(), signal.{first}); time.sleep(0.6)\n"
        f"os.kill(os.getpid(), signal.{second}); time.sleep(0.1); print('still here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_job_is_forwarded_everything_and_no_step_is_ended(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAME_S", -1.0)  # every request counts as another one
    told: list[int] = []
    signals.forward = told.append
    sent = [signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2]
    for number in sent:
        send(number)
    assert told == sent
    assert signals.check() == [signal.Signals(number).name for number in sent]
    assert signals.received == ["SIGTERM", "SIGTERM"]  # HUP is what a job takes it for


def test_a_step_that_takes_too_long_is_late(signals: Signals) -> None:
    began = time.monotonic()
    with pytest.raises(Late), signals.within(0.05):
        time.sleep(20)
    assert time.monotonic() - began < 10


def test_a_request_ends_a_bounded_step_at_once(signals: Signals) -> None:
    began = time.monotonic()
    pid = os.getpid()
    teller = subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -TERM {pid}"])
    with pytest.raises(Interrupted), signals.within(20):
        time.sleep(20)
    assert time.monotonic() - began < 10
    assert teller.wait() == 0


def test_a_request_before_a_bounded_step_keeps_it_from_beginning(signals: Signals) -> None:
    send(signal.SIGTERM)
    with pytest.raises(Interrupted), signals.within(20):
        pytest.fail("it began")


def test_after_a_bounded_step_no_alarm_comes(signals: Signals) -> None:
    with signals.within(0.1):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    send(signal.SIGTERM)  # noted only: nothing is raised outside of the step
    assert signals.received == ["SIGTERM"]


def test_after_the_end_is_told_nothing_ends_it_otherwise(signals: Signals) -> None:
    """An orchestrator that reads another status than the report's would act on it."""
    signals.hold()
    send(signal.SIGTERM)
    assert signals.received == []


def test_what_the_caller_had_blocked_or_ignored_is_heard_all_the_same() -> None:
    kept = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        with installed() as signals:
            send(signal.SIGTERM)
            send(signal.SIGINT)
            assert signals.received == ["SIGTERM", "SIGINT"]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, kept)


def test_what_nohup_asks_for_is_left_alone() -> None:
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with installed() as signals:
            send(signal.SIGHUP)
            assert signals.received == []
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_a_stray_alarm_is_not_taken_for_lateness() -> None:
    """Somebody else's, long after the step that an alarm has bounded."""
    program = (
        "import os, signal; from app.signals import Late, Signals\n"
        "signals = Signals()\n"
        "with signals.within(5): pass\n"
        "try: os.kill(os.getpid(), signal.SIGALRM); [None for _ in range(100)]\n"
        "except Late: print('late')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
