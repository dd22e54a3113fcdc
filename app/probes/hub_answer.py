"""What came of asking the hub, in words of ours: crosses the pipe from the child that downloads.

Light on purpose: the client and its HTTP library are imported in that child alone. No text of an
exception or of an answer stands in it, so no token can.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.facts.words import listed, signal_name
from app.outcome import Fault, Finding, failed

AboutT = Literal["", "repository", "revision", "stall", "late", "died", "wait"]
_UNAUTHORIZED, _TOO_MANY_REQUESTS = 401, 429


@dataclass(frozen=True, slots=True)
class Cause:
    """Why there are no files.

    `names` are the classes of the exceptions, outermost first; `status` the HTTP status; `number`
    the system's. `about` says what the hub does not have, or how the download ended otherwise.
    `retry_after_s` is what a busy hub asked for. `where` is the code that raised what nobody
    foresaw. `locks` are the lock files that a stalled download waited for.
    """

    fault: Fault
    names: tuple[str, ...] = ()
    status: int | None = None
    number: int | None = None
    about: AboutT = ""
    retry_after_s: float | None = None
    where: str = ""
    locks: tuple[str, ...] = ()
    said: str = ""  # a sentence of ours
    elsewhere: bool | None = None  # whether the unmapped repository has the missing revision

    @property
    def is_temporary(self) -> bool:
        """Whether asking again can help."""
        return self.fault is Fault.TEMPORARY

    @property
    def actual(self) -> str:
        """In one line."""
        if self.said:
            return self.said
        names = " <- ".join(self.names)
        if self.status is not None:
            head = f"HTTP {self.status}"
        elif self.number:
            head = errno.errorcode.get(self.number, str(self.number))
        else:
            head = ""
        text = f"{head} ({names})" if head and names else head or names
        return f"{text} in {self.where}" if self.where else text


def to_json(cause: Cause) -> dict[str, Any]:
    """As the pipe carries it."""
    return asdict(cause)


def from_json(data: Mapping[str, Any]) -> Cause:
    """Back again. Raises KeyError, TypeError, ValueError for what is no cause."""
    fields = dict(data)
    fields["fault"] = Fault(fields["fault"])
    fields["names"] = tuple(str(name) for name in fields.get("names", ()))
    fields["locks"] = tuple(str(name) for name in fields.get("locks", ()))
    return Cause(**fields)


# What ends a process from outside: no page of a mapped file could be had, or no memory.
_SIGNALS: dict[int, Fault] = {
    signal.SIGBUS: Fault.READ_ERROR,
    signal.SIGKILL: Fault.HARDWARE_MISMATCH,
}


def death_of(code: int) -> Cause:
    """A child that ended without a word, by its status or, negative, a signal."""
    if code >= 0:
        said = f"the downloading process ended with status {code} and no word"
        return Cause(Fault.INTERNAL, about="died", said=said)
    fault = _SIGNALS.get(-code, Fault.INTERNAL)
    said = f"the downloading process was ended by {signal_name(-code)}"
    return Cause(fault, about="died", said=said)


_STEPS: dict[Fault, str] = {
    Fault.MODEL_ABSENT: "check BOOT_BASE_MODEL_ID and BOOT_REVISION; a private repository looks "
    "absent without a token that may read it (HF_TOKEN)",
    Fault.TEMPORARY: "try again later; a filled cache needs no hub",
    Fault.READ_ERROR: "free space on the cache's disk, or take another node",
    Fault.CONFIG: "check HF_ENDPOINT, the proxy and CA variables, and that this uid may write to "
    "the cache",
    Fault.NODE_UNFIT: "set this node's clock: the hub's certificate is not valid at its time",
    Fault.HARDWARE_MISMATCH: "raise the memory limit of the container",
    Fault.INTERNAL: "rebuild the environment from its lock; a filled cache needs no download",
}
# No answer at all is seldom the hub's fault: the way to it is.
_NO_ANSWER = (
    "check this node's network, the proxy variables and HF_ENDPOINT, then try again; a filled "
    "cache needs no hub"
)
_RATE = "try again later; HF_TOKEN raises the rate limit, and a filled cache needs no hub"
_NO_TOKEN = (
    "set HF_TOKEN (or the file /run/secrets/hf_token) to a token that may read it; where the model "
    "is gated, accept its licence on its page with that account first"
)
_BAD_TOKEN = (
    "make a new HF_TOKEN: the hub does not take this one, or it may not see the repository; where "
    "the model is gated, accept its licence on its page with that account"
)
_MAY_NOT = (
    "accept the model's licence on its page with the account of HF_TOKEN, and see that the token "
    "may read gated repositories"
)
_LATE = (
    "raise BOOT_CACHE_TIMEOUT_S, or fill the cache before; files that are complete are kept, and "
    "a new boot goes on from them"
)


def step_of(cause: Cause, *, has_token: bool) -> str:
    """What the person who submitted the job can do."""
    if cause.locks and cause.about == "stall":
        return (
            f"see whether another boot still downloads into this cache, else delete "
            f"{listed(cause.locks, 3)}; then try again"
        )
    if cause.about == "late":
        return _LATE
    if cause.status == _TOO_MANY_REQUESTS:
        return _RATE
    if cause.is_temporary and cause.status is None:
        return _NO_ANSWER
    if cause.fault is Fault.ACCESS_DENIED:
        return _step_to_access(cause, has_token=has_token)
    return _STEPS.get(cause.fault, _STEPS[Fault.INTERNAL])


def _step_to_access(cause: Cause, *, has_token: bool) -> str:
    """Told apart by whether there was a token, and whether the hub took it (403) or not (401)."""
    if not has_token:
        return _NO_TOKEN
    return _BAD_TOKEN if cause.status == _UNAUTHORIZED else _MAY_NOT


def finding_of(cause: Cause, *, what: str, expected: str, has_token: bool = False) -> Finding:
    """The failed check that it amounts to."""
    return failed(
        f"{what}: {cause.actual}",
        expected=expected,
        actual=cause.actual,
        next_step=step_of(cause, has_token=has_token),
        fault=cause.fault,
    )
