"""Tries a download again where that can help, and not past the stage's deadline."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_result
from tenacity.wait import wait_random_exponential

from app.facts.cache import RoomFacts
from app.facts.words import listed
from app.outcome import Fault
from app.probes.fetch_progress import Teller
from app.probes.fetch_run import Attempt, Done, NoRoom
from app.probes.hub_answer import Cause
from app.probes.hub_cache import blob_sizes
from app.probes.hub_steps import UNANSWERED

if TYPE_CHECKING:
    from app.probes.fetch import Request

# In a row without one more file: with the waits between, some 15 s of a hub that refuses. Within an
# attempt the client asks again by itself, which takes up to 25 s; after the second is the latest.
_ATTEMPTS = 5
_REFUSED_S = 40.0
_LONGEST_WAIT_S = 30.0
# Longer than the hub's own window (five minutes): a hub that asks for more is not waited for.
_LONGEST_ASKED_S = 600.0
_ASK_TIMEOUT_S = 30.0


def attempts(request: Request, teller: Teller) -> tuple[Done | Cause | NoRoom, RoomFacts | None]:
    """The last attempt's outcome, and the room that there was for it."""
    series = _Series(request, teller)
    retrying = Retrying(
        retry=retry_if_result(series.again),
        stop=series.enough,
        wait=series.pause,
        sleep=request.wait,
        before_sleep=series.tell,
        retry_error_callback=_last,
    )
    outcome: Done | Cause | NoRoom = retrying(series.attempt)
    return outcome, series.room


def _last(state: RetryCallState) -> Done | Cause | NoRoom:
    if state.outcome is None:
        raise AssertionError("only an attempt that has ended is the last one")
    result: Done | Cause | NoRoom = state.outcome.result()
    return result


class _Series:
    """One attempt after the other, each with what the one before has taught."""

    def __init__(self, request: Request, teller: Teller) -> None:
        self._request, self._teller = request, teller
        self.room: RoomFacts | None = None
        self._xet = self._locks = True
        self._plainly = False
        self._n_idle = 0
        self._n_files = 0
        self._idle_since = time.monotonic()

    def attempt(self) -> Done | Cause | NoRoom:
        """Run one."""
        request = self._request
        attempt = Attempt(
            request={
                "asked": request.asked,
                "repository": request.repository,
                "revision": request.revision,
                "cache": request.cache,
                "token": request.token,
                "endpoint": request.variables.get("HF_ENDPOINT", "").rstrip("/") or None,
                "pickles": request.pickles,
                "locks": self._locks,
                "ask_timeout_s": min(_ASK_TIMEOUT_S, request.stall_s),
                "longest_wait_s": min(_LONGEST_WAIT_S, request.stall_s / 2),
            },
            environ=request.variables,
            base=request.base,
            stall_s=request.stall_s,
            until=request.until,
            told=self._teller,
        )
        found = attempt.run(xet=self._xet)
        self.room = attempt.room or self.room
        if isinstance(found, Cause):
            return self._learn(found)
        return found

    def _learn(self, cause: Cause) -> Cause:
        """What the next attempt does otherwise."""
        whole = sum(1 for name in blob_sizes(self._request.base) if "." not in name)
        if whole > self._n_files:
            self._n_idle, self._idle_since = 0, time.monotonic()
        self._n_idle += 1
        self._n_files = max(whole, self._n_files)
        self._plainly = cause.xet and self._xet
        if cause.about == "late":
            return self._late(cause)
        if cause.locks and self._locks:
            self._locks = False
        elif cause.xet or cause.about in {"stall", "died"} or cause.fault is Fault.INTERNAL:
            self._xet = False
        return cause

    def again(self, outcome: Done | Cause | NoRoom) -> bool:
        """Whether another attempt can help.

        A crash is tried once more, without Xet's native code, and so is what only Xet's way says: a
        mirror that has no such service answers anything to it.
        """
        if not isinstance(outcome, Cause) or outcome.about == "late":
            return False
        once = outcome.fault is Fault.INTERNAL and self._n_idle <= 1
        return outcome.is_temporary or once or self._plainly

    def pause(self, state: RetryCallState) -> float:
        """Seconds to wait: what the hub asked for, else longer each time; never all at once."""
        outcome = state.outcome.result() if state.outcome else None
        if isinstance(outcome, Cause) and outcome.retry_after_s is not None:
            return outcome.retry_after_s + random.uniform(0, 1)  # noqa: S311 - no secret
        return wait_random_exponential(multiplier=1, max=_LONGEST_WAIT_S)(state)

    def enough(self, state: RetryCallState) -> bool:
        """Whether to give up: nothing moves, or the next attempt would come too late."""
        asked = state.upcoming_sleep
        outcome = state.outcome.result() if state.outcome else None
        refused = isinstance(outcome, Cause) and outcome.about != "stall"
        return (
            self._n_idle >= _ATTEMPTS
            or (refused and self._n_idle > 1 and self._idle_for_s > _REFUSED_S)
            or asked > _LONGEST_ASKED_S + 1
            or asked >= self._request.until - time.monotonic()
        )

    @property
    def _idle_for_s(self) -> float:
        return time.monotonic() - self._idle_since

    def tell(self, state: RetryCallState) -> None:
        """Say why it takes longer."""
        outcome = state.outcome.result() if state.outcome else None
        if not isinstance(outcome, Cause):
            return
        how = "" if self._xet else ", without Xet"
        how += "" if self._locks else f", without waiting for {listed(outcome.locks, 3)}"
        self._request.say(
            f"{self._request.repository}: {outcome.actual}; trying again in "
            f"{state.upcoming_sleep:.0f} s{how}"
        )

    def _late(self, cause: Cause) -> Cause:
        """At the deadline: a hub that has not even listed the files is no slow download."""
        limit = self._request.limit
        if self.room is not None:
            return replace(cause, said=f"it was not complete at the deadline ({limit})")
        said = f"no answer up to the deadline ({limit})"
        said += f", the last was HTTP {cause.status}" if cause.status else ""
        return replace(cause, said=said, step=UNANSWERED)
