"""The supervisor's one loop: waits for all children at once, and never longer than it may."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from app.child import Child, kill
from app.deadlines import Deadlines
from app.events import Ended, Event, ProtocolError, Turns, decode
from app.signals import Signals

# How soon a death is noticed whose pipe a child of the child keeps open.
_TURN_S = 0.25
_BEAT_S = 1.0
_KILL_S = 2.0  # a killed process is gone in milliseconds, or hangs in the kernel
_STACKS_S = 1.0
_SAME_SIGNAL_S = 1.0
_SETTLED_S = 0.1  # no more of a trace comes after this long


class ChildDied(Exception):  # noqa: N818 - an event in a child's life, told as one
    """A child ended before its last event, or said something that is none (`protocol`)."""

    def __init__(self, protocol: str = "") -> None:
        super().__init__(protocol)
        self.protocol = protocol


class DeadlineOver(Exception):  # noqa: N818 - told as an event too
    """The time of a stage, or of the whole guard, is over."""


class Watch:
    """`beat` is called about once a second with the child that is listened to."""

    def __init__(
        self, signals: Signals, beat: Callable[[Child], None], told: Callable[[str], None]
    ) -> None:
        self._signals, self._beat, self._told = signals, beat, told
        self._children: list[Child] = []
        self._next_beat = 0.0

    def add(self, child: Child) -> None:
        """Log what it prints, whatever else is waited for."""
        self._children.append(child)

    def events(
        self, child: Child, turns: Turns, deadlines: Deadlines, *, own_way: bool = False
    ) -> Iterator[Event]:
        """Yield events up to `Ended`. Raises ChildDied, DeadlineOver or Interrupted.

        A child that goes its own way may close its pipe and go on until it ends.
        """
        while True:
            self._wait(min(_TURN_S, max(0.0, deadlines.left())), listening=child)
            for name in self._signals.check():
                self._told(name)
            for event in self._heard(child, turns, own_way=own_way):
                yield event
                if isinstance(event, Ended):
                    return
            self._pump()
            if deadlines.left() <= 0:
                raise DeadlineOver
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + _BEAT_S
                self._beat(child)

    def stacks(self, child: Child) -> tuple[str, ...]:
        """Its Python stacks, as far as it can still write them."""
        before = child.trace_bytes()
        child.ask_for_stacks()
        size, since = before, time.monotonic()

        def settled() -> bool:
            nonlocal size, since
            now = child.trace_bytes()
            if now != size:
                size, since = now, time.monotonic()
            return size > before and time.monotonic() - since >= _SETTLED_S

        self._until(settled, _STACKS_S)
        return child.trace()

    def end(self, child: Child, grace_s: float, kill_s: float = _KILL_S) -> bool:
        """TERM, then KILL to its group; False where it is still there, stuck in the kernel."""
        if grace_s > 0 and not child.ended():
            child.signal_group(signal.SIGTERM)
            self._until(child.ended, grace_s)
        kill(child)
        child.given_up = not self._until(child.ended, kill_s)
        return not child.given_up

    def reaped(self, children: Sequence[Child], seconds: float) -> bool:
        """Whether all of them, killed already, have ended by then; but for those given up."""
        waited_for = [child for child in children if not child.given_up]
        done = self._until(lambda: all(map(Child.ended, waited_for)), seconds)
        for child in waited_for:
            child.given_up = not child.ended()
        return done

    def await_signal(self) -> None:
        """Give a signal a moment that is on its way to this process too."""
        self._until(lambda: bool(self._signals.received), _SAME_SIGNAL_S)

    def drain(self, child: Child) -> None:
        """Log the rest of what an ended child has printed; a grandchild may hold the pipe."""
        self._until(lambda: child.output_end, _TURN_S)

    def _heard(self, child: Child, turns: Turns, *, own_way: bool) -> Iterator[Event]:
        """The events that are there. Raises ChildDied when none can come any more."""
        gone = child.ended()  # asked first: what it has said before is then in the pipe
        try:
            lines = child.take_events()
            for line in lines or ():
                event = decode(line)
                turns.take(event, len(line))
                yield event
        except ProtocolError as error:
            raise ChildDied(str(error)) from error
        if child.events_end and own_way and not gone:
            return
        if child.events_end:
            if not self._until(child.ended, _KILL_S):
                raise ChildDied("it closed its event pipe and went on")
            raise ChildDied
        if gone and lines is None:
            raise ChildDied

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= end:
                return False
            self._wait(0.02)
            self._pump()
        return True

    def _wait(self, seconds: float, listening: Child | None = None) -> None:
        """Wait for a sign of life: output, a signal, and of one child also events."""
        poll = select.poll()
        poll.register(self._signals.wakeup, select.POLLIN)
        for child in self._children:
            for descriptor in child.readable(events=child is listening):
                poll.register(descriptor, select.POLLIN)
            for descriptor in child.writable():
                poll.register(descriptor, select.POLLOUT)
        poll.poll(seconds * 1000)
        self._signals.heard()

    def _pump(self) -> None:
        """Log what the children have printed, and go on telling them what waits."""
        for child in self._children:
            if not child.output_end:
                child.take_output()
            child.send_waiting()
