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

from app.facts.words import signal_name
from app.outcome import Fault

AboutT = Literal[
    "", "repository", "revision", "stall", "late", "died", "stranger", "contents", "room"
]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why there are no files.

    `names` are the classes of the exceptions, outermost first; `status` the HTTP status; `number`
    the system's. `about` says what the hub does not have, or how the download ended otherwise
    (`room`: it was not begun). `retry_after_s` is what a busy hub asked for. `where` is the file
    that a system call failed on, or the code that raised what nobody foresaw. `locks` are the lock
    files that a stalled download waited for.
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
    step: str = ""  # the way out, where it is known with the cause
    authorized: bool = False  # a token was sent, which the client may have found by itself
    xet: bool = False  # Xet's way to large files failed, not the plain one
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
            head = next((said for name, said in _WORDS.items() if name in self.names), "")
        text = f"{head} ({names})" if head and names else head or names
        return f"{text} in {self.where}" if self.where else text


class CauseError(Exception):
    """Raised where a cause is known already."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.said)
        self.cause = cause


def stranger(error: BaseException | None = None) -> CauseError:
    """What answers is JSON, and not what a hub says."""
    names = (type(error).__name__,) if error is not None else ()
    said = "the answer is JSON, and not that of a hub"
    return CauseError(Cause(Fault.CONFIG, names, about="stranger", said=said))


# What a class of exceptions means, the most telling first.
_WORDS: Mapping[str, str] = {
    "SSLCertVerificationError": "its certificate is not trusted here",
    "SSLError": "it cannot be spoken to by TLS",
    "ProxyError": "the proxy did not pass it on",
    "gaierror": "its name is not known (DNS)",
    "InvalidURL": "its address is none",
    "UnsupportedProtocol": "its address has no http:// or https://",
    "JSONDecodeError": "it answers with something that is not the hub's JSON (a page?)",
    "FileMetadataError": "it answers without the hub's headers (a page?)",
    "TooManyRedirects": "it redirects in a ring",
    "DecodingError": "its answer cannot be decompressed",
    "RemoteProtocolError": "the connection ended in the middle of an answer, or spoke no HTTP",
    "ReadTimeout": "no answer in time",
    "ConnectTimeout": "no answer in time",
    "ConnectError": "no connection",
    "RecursionError": "its answer is nested too deeply",
}


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
