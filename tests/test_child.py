"""Facts about a child as the supervisor holds it: what it says, prints and how it ends.

The children are real, and tiny: they run before any code of the product's.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import child as module
from app.child import Child, kill
from app.events import Ended, Order, ProtocolError, decode_order
from tests.boots import runs, until
from tests.fakes_core import PLAN, Children, a_journal, children, lines

TOKEN = "kL9vQ2xZ7pRt4WmN8sYc3HdB"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Children]:
    with children(tmp_path) as found:
        yield found


def ended(start: Children, child: Child) -> None:
    """Its end, and all that it has printed."""
    until(child.ended, "the child's end")
    start.watch.drain(child)


def heard(child: Child) -> list[bytes]:
    """The next lines on the event pipe."""
    found: list[bytes] = []

    def said() -> bool:
        found.extend(child.take_events() or ())
        return bool(found) or child.events_end

    until(said, "an event")
    return found


def all_taken(child: Child) -> None:
    """All of its output, up to the end."""

    def taken() -> bool:
        child.take_output()
        return child.output_end

    until(taken, "the output's end")


# What it prints.


def test_lines_are_clean(start: Children) -> None:
    """Progress bars come with carriage returns, banners with colours, some with broken UTF-8."""
    printed = b"a\r50%\r\n\x1b[1mb\x1b[0m\n\xff\n"
    child = start.start(f"os.write(1, {printed!r}); os.write(2, b'c'); os._exit(7)")
    ended(start, child)
    child.take_output()
    assert start.said == ["a", "50%", "b", "\ufffd", "c"]
    assert child.last_lines() == tuple(start.said)


def test_a_character_that_comes_in_two_pieces_is_whole(start: Children) -> None:
    code = "os.write(1, b'\\xc3'); time.sleep(0.3); os.write(1, b'\\xa9\\n'); os._exit(0)"
    ended(start, start.start(code))
    assert start.said == ["\u00e9"]


def test_a_flood_is_cut_to_what_a_log_can_take(start: Children) -> None:
    """And says how much was left out; the last lines are kept whatever the log has taken."""
    n_lines = 50_000
    child = start.start(
        f"for n in range({n_lines}): sys.stdout.write('line %d\\n' % n)\n"
        "sys.stdout.flush(); os._exit(0)"
    )
    all_taken(child)
    assert len(start.said) < 10_000
    assert child.last_lines()[-1] == f"line {n_lines - 1}"
    until(child.ended, "the child's end")
    start.forget(child)
    child.close()
    told = [line for line in start.said if "left out" in line]
    n_left_out = sum(int(line.lstrip("(").split()[0]) for line in told)
    assert n_left_out + len(start.said) - len(told) == n_lines


def test_a_line_without_end_is_held_in_bounds(start: Children) -> None:
    child = start.start("os.write(1, b'x' * 300_000 + b'\\nend\\n'); os._exit(0)")
    all_taken(child)
    child.ended()
    assert max(map(len, start.said)) <= 2000
    assert start.said[-1] == "end"
    assert len(start.said) < 10


@pytest.mark.parametrize("n_before", [1975, 1985, 1995, 65515, 65525, 67515, 67525])
def test_a_secret_is_not_shown_in_halves_where_a_line_is_cut(n_before: int) -> None:
    """What is cut in two is no more the text that is looked for, and half a token is much of it."""
    said: list[str] = []
    kept = module._Lines(said.append)
    data = b"x" * n_before + b" " + TOKEN.encode() + b" y" * 2000 + b"\n"
    for at in range(0, len(data), 65536):
        kept.feed(data[at : at + 65536])
    kept.flush()
    log = io.StringIO()
    journal = a_journal(log=log, secret=TOKEN)
    for line in said:
        journal.child_said("worker", line)
    shown = "".join(log.getvalue().split())
    pieces = [TOKEN[at : at + 8] for at in range(len(TOKEN) - 7)]
    assert not [piece for piece in pieces if piece in shown]


# What it says.


def test_events_are_whole_lines_however_they_come(start: Children) -> None:
    line = lines(Ended(peak_bytes=1))
    code = f"os.write(events, {line[:9]!r}); time.sleep(0.3); os.write(events, {line[9:] + line!r})"
    child = start.start(f"{code}; time.sleep(60)")
    assert heard(child) == [line.rstrip()] * 2
    assert child.take_events() is None


def test_the_end_of_the_events_is_known(start: Children) -> None:
    child = start.start("os.write(events, b'half'); os._exit(0)")
    until(lambda: (child.take_events(), child.events_end)[1], "the end of the pipe")
    assert child.readable(events=True) == child.readable(events=False)


def test_an_event_without_end_is_refused(start: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 100_000)
    child = start.start("while True: os.write(events, b'x' * 4096)")
    with pytest.raises(ProtocolError, match="without end"):
        until(lambda: child.take_events() and False, "the refusal")


# What it is told.


def test_an_order_larger_than_a_pipe_arrives_whole_and_holds_nobody_up(start: Children) -> None:
    """A report is larger than the 64 kB that a pipe takes at once."""
    code = (
        "time.sleep(0.3); data = b''\n"
        "while not data.endswith(b'\\n'): data += os.read(0, 65536)\n"
        "os.write(events, b'%d\\n' % len(data)); time.sleep(60)"
    )
    child = start.start(code)
    report = a_journal().as_it_stands().model_copy(update={"settings": {"x": "y" * 500_000}})
    order = Order(kind="job", plan=PLAN, report=report)
    began = time.monotonic()
    child.order(order)
    assert time.monotonic() - began < 5
    assert child.writable()

    def sent() -> bool:
        child.send_waiting()
        return not child.writable()

    until(sent, "the order's way")
    (size,) = heard(child)
    assert int(size) > 500_000


def test_orders_come_in_order(start: Children) -> None:
    code = (
        "data = b''\n"
        "while data.count(b'\\n') < 2: data += os.read(0, 65536)\n"
        "os.write(events, data); time.sleep(60)"
    )
    child = start.start(code)
    for kind in ("prepare", "go"):
        child.order(Order(kind=kind, plan=PLAN))
    found: list[bytes] = []
    while len(found) < 2:
        found += heard(child)
    assert [decode_order(line).kind for line in found] == ["prepare", "go"]


def test_orders_to_one_that_is_gone_are_dropped(start: Children) -> None:
    child = start.start("os._exit(0)")
    until(child.ended, "the child's end")
    child.order(Order(kind="prepare", plan=PLAN))
    assert not child.writable()


# Its end.


@pytest.mark.parametrize(
    ("code", "exit_code", "killed_by"),
    [
        ("os._exit(0)", 0, None),
        ("os._exit(3)", 3, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", None, signal.SIGSEGV),
        ("os.kill(os.getpid(), 40)", None, 40),
    ],
)
def test_an_end_has_a_status_or_a_signal(
    start: Children, code: str, exit_code: int | None, killed_by: int | None
) -> None:
    child = start.start(code)
    assert (child.exit_code, child.killed_by) == (None, None)
    until(child.ended, "the child's end")
    assert (child.exit_code, child.killed_by) == (exit_code, killed_by)
    assert child.ended()


def test_who_is_gone_is_sent_no_signal(start: Children) -> None:
    """Its number may be another process's by then."""
    child = start.start("os._exit(0)")
    until(child.ended, "the child's end")
    child.signal(signal.SIGTERM)
    child.signal_group(signal.SIGTERM)
    child.ask_for_stacks()


def test_a_child_that_somebody_else_has_reaped_has_ended(start: Children) -> None:
    child = start.start("os._exit(0)")
    os.waitpid(child.pid, 0)
    assert child.ended()


def test_the_group_ends_with_its_leader(start: Children) -> None:
    code = (
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(60)\n"
        "os.write(events, b'%d\\n' % pid); time.sleep(60)"
    )
    child = start.start(code)
    grandchild = int(heard(child)[0])
    kill(child)
    until(child.ended, "the child's end")
    until(lambda: not runs(grandchild), "the grandchild's end")


def test_a_group_outlives_its_leader_and_is_still_found(start: Children) -> None:
    code = "pid = os.fork()\nif pid: os.write(events, b'%d\\n' % pid); os._exit(0)\ntime.sleep(60)"
    child = start.start(code)
    grandchild = int(heard(child)[0])
    until(child.ended, "the child's end")
    assert runs(grandchild)
    kill(child)
    until(lambda: not runs(grandchild), "the grandchild's end")


def test_a_closed_child_has_said_its_last_line(start: Children) -> None:
    """Also one without a line end."""
    child = start.start("os.write(1, b'last words'); os._exit(0)")
    ended(start, child)
    start.forget(child)
    child.close()
    assert start.said == ["last words"]
