"""Tries a download again where that can help, and not past the stage's deadline."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import wait_random_exponential

from app.facts.cache import RoomFacts
from app.facts.words import listed
from app.outcome import Fault
from app.probes.fetch_progress import Teller
from app.probes.fetch_request import Request
from app.probes.fetch_run import LONGEST_WAIT_S, Attempt, Done
from app.probes.hub_answer import Cause, CauseError
from app.probes.hub_cache import INCOMPLETE, blob_sizes
from app.probes.hub_steps import UNANSWERED

# In a row without one more file: with the waits between, some 15 s of a hub that refuses. Within an
# attempt the client asks again by itself, which takes up to 25 s; after the second is the latest.
_ATTEMPTS = 5
_REFUSED_S = 40.0
# Longer than the hub's own window (five minutes): a hub that asks for more is not waited for.
_LONGEST_ASKED_S = 600.0
# Of the statuses of HTTP: what a hub answers that is there and has no time, and from where on it
# is the hub that failed.
_BUSY, _FAILED = frozenset({408, 425, 429}), 500


class Attempts:
    """One attempt after the other, each with what the one before has taught.

    `room` is what the last attempt found that there is, None where none came so far.
    """

    def __init__(self, request: Request, teller: Teller) -> None:
        self.room: RoomFacts | None = None
        self._request, self._teller = request, teller
        self._xet = self._locks = True
        self._plainly = False  # only Xet's way has failed, and the next attempt does without
        self._n_idle = 0  # attempts in a row that brought no file
        self._n_files = 0
        self._idle_since = time.monotonic()
        self._n_tries = 0
        self._listed = False  # the hub has listed the files to this attempt
        self._last: Cause | None = None  # why an attempt failed, other than for want of time
        self._is_over = False  # no time is left for one more

    def run(self) -> Done:
        """The snapshot. Raises CauseError for the reason why the attempts failed."""
        try:
            return self._retry()
        except CauseError as error:
            raise CauseError(self._counted(error.cause)) from error

    def _retry(self) -> Done:
        retrying = Retrying(
            retry=retry_if_exception(self._helps),
            stop=self._is_enough,
            wait=_pause,
            sleep=self._request.means.wait,
            before_sleep=self._tell,
            reraise=True,
        )
        return retrying(self._attempt)

    def _attempt(self) -> Done:
        self._n_tries += 1
        self._listed = False
        try:
            attempt = Attempt(self._request, self._teller, xet=self._xet, locks=self._locks)
            try:
                return attempt.end()
            finally:
                attempt.kill()
                self.room = attempt.room or self.room
                self._listed = attempt.room is not None
        except CauseError as error:
            raise CauseError(self._learn(error.cause)) from error

    def _learn(self, cause: Cause) -> Cause:
        """What the next attempt does otherwise."""
        blobs = blob_sizes(self._request.base)
        n_files = sum(1 for name in blobs if not name.endswith(INCOMPLETE))
        if n_files > self._n_files:
            self._n_idle, self._idle_since = 0, time.monotonic()
            self._n_files = n_files
        self._n_idle += 1
        self._plainly = cause.xet and self._xet
        if cause.about == "late":
            return self._late(cause)
        if cause.about != "stall" or cause.status is not None:
            self._last = cause
        if cause.locks and self._locks:
            self._locks = False
        elif cause.xet or cause.about in {"stall", "died"} or cause.fault is Fault.INTERNAL:
            self._xet = False
        return cause

    def _late(self, cause: Cause) -> Cause:
        """At the deadline: a hub that has not even listed the files is no slow download.

        What is in the way is then what an attempt before this one has found, or the answer that
        the client was about to ask for once more: the deadline only ended the waiting.
        """
        limit = self._request.means.limit_name
        last = self._last
        busy = cause.status is not None and _is_busy(cause.status)
        if busy and (last is None or last.status != cause.status):
            last = Cause(Fault.TEMPORARY, status=cause.status)
        if last is not None and last.is_temporary and (busy or not self._listed):
            # What it asked for has been waited out.
            return replace(last, retry_after_s=None)
        before = f"; before that, {last.actual}" if last is not None else ""
        if self.room is not None:
            return replace(cause, said=f"it was not complete at the deadline ({limit}){before}")
        said = f"no answer up to the deadline ({limit})"
        said += f", the last was HTTP {cause.status}" if cause.status else ""
        return replace(cause, said=said + before, step=UNANSWERED)

    def _counted(self, cause: Cause) -> Cause:
        """With how often it was tried, and the deadline where that is why it is not any more."""
        if not cause.is_temporary or cause.about in {"late", "room"}:
            return cause
        said = cause.actual
        if self._n_tries > 1 or self._is_over:
            said += ", tried " + ("once" if self._n_tries == 1 else f"{self._n_tries} times")
        if self._is_over:
            said += f" before the deadline ({self._request.means.limit_name})"
        if cause.retry_after_s:
            said += f"; it asks to wait for {cause.retry_after_s:.0f} s"
        return replace(cause, said=said)

    def _helps(self, error: BaseException) -> bool:
        """Whether another attempt can help.

        A crash is tried once more, without Xet's native code, and so is what only Xet's way says: a
        mirror that has no such service answers anything to it.
        """
        if not isinstance(error, CauseError) or error.cause.about == "late":
            return False
        once = error.cause.fault is Fault.INTERNAL and self._n_idle <= 1
        return error.cause.is_temporary or once or self._plainly

    def _is_enough(self, state: RetryCallState) -> bool:
        """Whether to give up: nothing moves, or the next attempt would come too late."""
        pause_s = state.upcoming_sleep
        refused = _cause_of(state).about != "stall"
        self._is_over = pause_s >= self._request.means.left_s
        idle_s = time.monotonic() - self._idle_since
        return (
            self._n_idle >= _ATTEMPTS
            or (refused and self._n_idle > 1 and idle_s > _REFUSED_S)
            or pause_s > _LONGEST_ASKED_S + 1
            or self._is_over
        )

    def _tell(self, state: RetryCallState) -> None:
        """Say why it takes longer."""
        cause = _cause_of(state)
        how = "" if self._xet else ", without Xet"
        how += "" if self._locks else f", without waiting for {listed(cause.locks, 3)}"
        self._request.means.say(
            f"{self._request.repository}: {cause.actual}; trying again in "
            f"{state.upcoming_sleep:.0f} s{how}"
        )


def _is_busy(status: int) -> bool:
    """Whether the same request may be answered later."""
    return status in _BUSY or status >= _FAILED


def _pause(state: RetryCallState) -> float:
    """Seconds to wait: what the hub asked for, else longer each time; never all at once."""
    asked_s = _cause_of(state).retry_after_s
    if asked_s is not None:
        return asked_s + random.uniform(0, 1)  # noqa: S311 - no secret
    return wait_random_exponential(multiplier=1, max=LONGEST_WAIT_S)(state)


def _cause_of(state: RetryCallState) -> Cause:
    """Of the attempt that has failed."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, CauseError):
        return error.cause
    raise AssertionError("only an attempt with a cause is followed by another")
