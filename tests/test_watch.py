"""Facts about the supervisor's loop: events, deaths, deadlines and signals as they come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import watch as module
from app.child import Child
from app.deadlines import Deadlines
from app.events import Ended, Event, StageFinished, StageStarted, Turns
from app.limits import Limits
from app.outcome import Status
from app.signals import Interrupted
from app.stages import WORKER_STAGES
from app.watch import ChildDied, DeadlineOver
from tests.boots import runs, state, until
from tests.fakes_core import Children, a_stage, children, lines, no_deadline

END = Ended(peak_bytes=1)
ALL = [*(event for name in WORKER_STAGES for event in a_stage(name)), END]
GENEROUS_S = 20.0  # a wait that ended by its bound, not by what it waited for, takes longer


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Children]:
    with children(tmp_path) as found:
        yield found


def listen(
    start: Children, child: Child, deadlines: Deadlines | None = None, stop: str | None = None
) -> Iterator[Event]:
    return start.watch.events(child, Turns(WORKER_STAGES, stop), deadlines or no_deadline())


def ready(start: Children, child: Child) -> None:
    """Wait for what it prints first."""

    def said() -> bool:
        child.take_output()
        return bool(start.said)

    until(said, "the child's word")


def within(seconds: float) -> Deadlines:
    return Deadlines(Limits(total=seconds))


def test_a_whole_conversation_comes_in_order(start: Children) -> None:
    child = start.start(f"os.write(events, {lines(*ALL)!r}); time.sleep(60)")
    assert list(listen(start, child)) == ALL


def test_nothing_that_comes_after_the_end_is_waited_for(start: Children) -> None:
    said = [*a_stage("stack"), END]
    child = start.start(f"os.write(events, {lines(*said)!r}); os.close(events); time.sleep(60)")
    began = time.monotonic()
    assert list(listen(start, child, stop="stack")) == said
    assert time.monotonic() - began < GENEROUS_S


@pytest.mark.parametrize(
    ("code", "protocol", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "", -signal.SIGSEGV),
        ("os._exit(3)", "", 3),
        ("os._exit(0)", "", 0),
        ("os.write(events, b'half a li'); os._exit(0)", "", 0),
        ("os.write(events, b'garbage\\n'); time.sleep(60)", "no event", None),
        ("os.write(events, b'\\n'); time.sleep(60)", "no event", None),
        (f"os.write(events, {lines(END)!r}); time.sleep(60)", "before stack", None),
        (f"os.write(events, {lines(*a_stage('load'))!r}); time.sleep(60)", "out of turn", None),
    ],
)
def test_every_death_and_every_lie_is_noticed(
    start: Children, code: str, protocol: str, status: int | None
) -> None:
    child = start.start(code)
    with pytest.raises(ChildDied) as caught:
        list(listen(start, child))
    assert protocol in caught.value.protocol
    assert bool(protocol) is bool(caught.value.protocol)
    if status is not None:
        assert child.status is not None
        assert os.waitstatus_to_exitcode(child.status) == status


def test_events_before_a_death_are_not_lost(start: Children) -> None:
    said = a_stage("stack")[:2]
    child = start.start(f"os.write(events, {lines(*said)!r}); os._exit(1)")
    found = listen(start, child)
    assert [next(found), next(found)] == said
    with pytest.raises(ChildDied):
        next(found)
    assert child.exit_code == 1


def test_a_child_that_closes_its_pipe_and_goes_on_is_not_waited_for(
    start: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KILL_S", 0.1)
    with pytest.raises(ChildDied, match="closed its event pipe"):
        list(listen(start, start.start("os.close(events); time.sleep(60)")))


def test_a_grandchild_that_keeps_the_pipes_open_does_not_hide_a_death(start: Children) -> None:
    code = "if os.fork(): os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    child = start.start(code)
    began = time.monotonic()
    with pytest.raises(ChildDied):
        list(listen(start, child))
    start.watch.drain(child)  # its output has no end either
    assert child.killed_by == signal.SIGKILL
    assert time.monotonic() - began < GENEROUS_S


def test_a_flood_of_output_holds_up_neither_events_nor_deadline(start: Children) -> None:
    flood = "import threading\n"
    flood += "def run():\n    while True: os.write(1, b'flood\\n' * 5000)\n"
    flood += "threading.Thread(target=run, daemon=True).start()\n"
    said = a_stage("stack")
    code = f"{flood}time.sleep(0.5); os.write(events, {lines(*said)!r}); time.sleep(60)"
    child = start.start(code)
    found: list[Event] = []
    began = time.monotonic()
    with pytest.raises(DeadlineOver):
        found.extend(listen(start, child, within(3)))
    assert found == said
    assert time.monotonic() - began < GENEROUS_S


def test_another_childs_output_is_logged_meanwhile(start: Children) -> None:
    start.start("os.write(1, b'hello\\n'); time.sleep(60)")
    waited_for = start.start("time.sleep(60)")
    with pytest.raises(DeadlineOver):
        list(listen(start, waited_for, within(1)))
    assert start.said == ["hello"]


def test_another_childs_death_is_not_this_ones(start: Children) -> None:
    """A worker that dies while it imports is judged when the preflight has passed."""
    start.start("os._exit(1)")
    waited_for = start.start("time.sleep(60)")
    with pytest.raises(DeadlineOver):
        list(listen(start, waited_for, within(1)))


def test_a_child_is_looked_at_about_once_a_second(start: Children) -> None:
    child = start.start("time.sleep(60)")
    with pytest.raises(DeadlineOver):
        list(listen(start, child, within(2.5)))
    assert 1 <= len(start.beats) <= 4
    assert set(start.beats) == {child.pid}


def test_a_request_to_end_is_acted_on_at_once(start: Children) -> None:
    with start.signalled():
        child = start.start("os.kill(parent, signal.SIGTERM); time.sleep(60)")
        began = time.monotonic()
        with pytest.raises(Interrupted, match="SIGTERM"):
            list(listen(start, child, within(GENEROUS_S)))
        assert time.monotonic() - began < GENEROUS_S


def test_what_is_for_a_job_is_only_told(start: Children) -> None:
    with start.signalled():
        child = start.start("os.kill(parent, signal.SIGUSR1); time.sleep(60)")
        with pytest.raises(DeadlineOver):
            list(listen(start, child, within(1)))
    assert start.told == ["SIGUSR1"]


def test_a_child_that_sleeps_says_where_it_stands(start: Children) -> None:
    code = (
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from app.lifeline import trace_into; trace_into(trace)\n"
        "def slept(): time.sleep(60)\n"
        "os.write(1, b'ready\\n'); slept()"
    )
    child = start.start(code)
    ready(start, child)
    stacks = start.watch.stacks(child)
    assert any("in slept" in line for line in stacks)
    assert not child.ended()


def test_stacks_are_not_waited_for_for_ever(start: Children) -> None:
    """One that is stopped writes none."""
    child = start.start("os.kill(os.getpid(), signal.SIGSTOP)")
    until(lambda: state(child.pid) == "T", "the stop")
    began = time.monotonic()
    assert start.watch.stacks(child) == ()
    assert time.monotonic() - began < GENEROUS_S


def test_a_child_is_asked_before_it_is_killed(start: Children) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: os._exit(5)); os.write(1, b'ready\\n')\n"
    child = start.start(f"{code}time.sleep(60)")
    ready(start, child)
    assert start.watch.end(child, 10)
    assert child.exit_code == 5


@pytest.mark.parametrize(
    "code",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'ready\\n'); time.sleep(60)",
        "os.write(1, b'ready\\n'); os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_one_that_does_not_listen_is_killed(start: Children, code: str) -> None:
    child = start.start(code)
    ready(start, child)
    assert start.watch.end(child, 0.2)
    assert child.killed_by == signal.SIGKILL


def test_an_end_takes_the_whole_group(start: Children) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); pid = os.fork()\n"
    code += "if pid: os.write(events, b'%d\\n' % pid); signal.signal(15, signal.SIG_DFL)\n"
    child = start.start(f"{code}time.sleep(60)")
    found: list[bytes] = []

    def told() -> bool:
        found.extend(child.take_events() or ())
        return bool(found)

    until(told, "the grandchild's number")
    assert start.watch.end(child, 0.5)
    until(lambda: not runs(int(found[0])), "the grandchild's end")


def test_what_not_even_kill_ends_is_given_up(
    start: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that `ended` never tells of, as one in an uninterruptible wait."""
    monkeypatch.setattr(module, "_KILL_S", 0.3)
    child = start.start("time.sleep(60)")
    monkeypatch.setattr(Child, "ended", lambda _self: False)
    began = time.monotonic()
    assert not start.watch.end(child, 0.3)
    assert start.watch.reaped([child], GENEROUS_S)  # and not waited for once more
    assert time.monotonic() - began < GENEROUS_S
    child.given_up = False
    monkeypatch.undo()


def test_a_stage_that_ends_late_is_late(start: Children) -> None:
    """The deadline counts although the child still speaks."""
    said: list[Event] = [
        StageStarted(name="stack"),
        StageFinished(name="stack", status=Status.PASS, finding=""),
    ]
    code = f"os.write(events, {lines(*said)!r}); time.sleep(60)"
    with pytest.raises(DeadlineOver):
        list(listen(start, start.start(code), within(1)))
