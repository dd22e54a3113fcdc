"""From an exception of the hub's client to what is wrong, by class and number, never by text.

The cause decides: huggingface_hub says "not in the cache" (LocalEntryNotFoundError) when the hub
answered 429. No text of an exception enters a finding, so no token can.
"""

from __future__ import annotations

import errno
import json
import re
import ssl
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from huggingface_hub import constants
from huggingface_hub import errors as hub
from huggingface_hub.utils._http import parse_ratelimit_headers

from app.errors import causes
from app.facts import disk
from app.facts.words import one_line
from app.outcome import Fault
from app.probes.hub_answer import AboutT, Cause, CauseError

# The certificate is not valid yet, or no longer (OpenSSL's verify codes).
_CLOCK = frozenset({9, 10})
_NO_ACCESS = frozenset({401, 403})
# Request timeout, range not there, too early, rate limit: the same request works later. The range
# is that of a download which was resumed: begun anew, there is none.
_LATER = frozenset({408, 416, 425, 429})
# Not here, not any more, or not for this country.
_ABSENT = frozenset({404, 410, 451})
# What a store of large files answers when its signed address has expired: a new attempt gets a
# new one.
_EXPIRED = frozenset({400, 401, 403})
# TLS spoken to a port that does not speak it, by OpenSSL's own names of its errors.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
# An address or a header that no server could take, a token with a line break in it for instance.
_WRONG_REQUEST = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)
# No answer, or one that is cut, or a page of somebody in between instead of the hub's JSON.
_UNREACHABLE = (
    *(httpx.TransportError, httpx.DecodingError, httpx.TooManyRedirects, json.JSONDecodeError),
    *(TimeoutError, ConnectionError, hub.XetDownloadError, hub.FileMetadataError),
)
# In this order: the client's "not in the cache" is the symptom of every line above it.
_BY_CLASS: tuple[tuple[tuple[type[BaseException], ...], Fault], ...] = (
    ((hub.OfflineModeIsEnabled,), Fault.MODEL_ABSENT),
    (_WRONG_REQUEST, Fault.CONFIG),
    (_UNREACHABLE, Fault.TEMPORARY),
    ((hub.LocalEntryNotFoundError,), Fault.MODEL_ABSENT),
)
# Of a file, whatever else went wrong before: a write that fails after a resumed transfer has the
# network's exception as its context.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_STATUS = re.compile(r"[1-5][0-9]{2}(?= )")
_LONGEST_NUMBER = 9  # digits of seconds: thirty years


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it came of.

    httpcore's pool hides what its own exceptions came of (`raise ... from None`): the refused
    connection, the certificate that is not valid.
    """
    for cause in causes(error):
        yield cause
        inner = cause.__context__
        hidden = cause.__suppress_context__ and cause.__cause__ is None
        if inner is not None and hidden and type(cause).__module__.startswith("httpcore"):
            yield from causes(inner)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status behind an exception, also that of a proxy that refuses a connection."""
    for cause in _chain_of(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx.Response):
            return response.status_code
        if isinstance(cause, httpx.ProxyError) and (found := _STATUS.match(str(cause))):
            return int(found[0])  # httpcore keeps it nowhere else
    return None


def fault_of(error: BaseException) -> Fault | None:
    """The kind of fault; None for an exception that is not about the hub or the disk."""
    chain = list(_chain_of(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            code = getattr(cause, "verify_code", None)  # set by OpenSSL, not by the class
            return Fault.NODE_UNFIT if code in _CLOCK else Fault.CONFIG
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return Fault.CONFIG
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return disk.fault_of(cause.errno)
    said = _fault_said(chain) or _fault_of_proxy(chain) or _fault_of_status(error)
    if said is not None:
        return said
    for classes, fault in _BY_CLASS:
        if any(isinstance(cause, classes) for cause in chain):
            return fault
    return _fault_of_system(chain)


def _fault_said(chain: list[BaseException]) -> Fault | None:
    """What the hub said about the repository; being gated is a kind of not found to the client."""
    if any(isinstance(cause, hub.GatedRepoError | hub.DisabledRepoError) for cause in chain):
        return Fault.ACCESS_DENIED
    return Fault.MODEL_ABSENT if any(_is_absent(cause) for cause in chain) else None


def _is_absent(cause: BaseException) -> bool:
    """The hub said that it does not exist.

    A plain 401 is also raised as RepositoryNotFoundError; only with the hub's own error code (or
    404) is it a statement about the repository.
    """
    if isinstance(cause, hub.RevisionNotFoundError | hub.RemoteEntryNotFoundError):
        return True
    if not isinstance(cause, hub.RepositoryNotFoundError):
        return False
    said = cause.response.headers.get("X-Error-Code") == "RepoNotFound"
    return said or cause.response.status_code == httpx.codes.NOT_FOUND


def _fault_of_proxy(chain: list[BaseException]) -> Fault | None:
    """A proxy that wants a password or forbids the host will do so again."""
    for cause in chain:
        status = _status_of(cause) if isinstance(cause, httpx.ProxyError) else None
        if status is not None:
            later = status in _LATER or status >= httpx.codes.INTERNAL_SERVER_ERROR
            return Fault.TEMPORARY if later else Fault.CONFIG
    return None


def _fault_of_status(error: BaseException) -> Fault | None:
    status = _status_of(error)
    if status is None:
        return None
    if status in _EXPIRED and _is_of_a_store(error):
        return Fault.TEMPORARY
    if status in _NO_ACCESS:
        return Fault.ACCESS_DENIED
    if status in _LATER or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Fault.TEMPORARY
    if status in _ABSENT:
        return Fault.MODEL_ABSENT
    return Fault.CONFIG  # any other 4xx: this request is wrong, and stays wrong


def _is_of_a_store(error: BaseException) -> bool:
    """Whether not the hub answered but where it redirects large files to."""
    for cause in _chain_of(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx.Response):
            url = response.url
            told = any(name.startswith("x-error-") for name in response.headers)
            hub_itself = url.netloc == httpx.URL(constants.ENDPOINT).netloc
            return not (told or hub_itself or url.path.startswith("/api/"))
    return False


def _fault_of_system(chain: list[BaseException]) -> Fault | None:
    """A full or broken disk may be fine on another node; missing rights are not."""
    if any(isinstance(cause, MemoryError) for cause in chain):
        return Fault.HARDWARE_MISMATCH
    for cause in chain:
        if isinstance(cause, OSError) and cause.errno is not None:
            return disk.fault_of(cause.errno) or Fault.CONFIG
    # httpx's own OSError subclass without a number: a body that ended early.
    if any(isinstance(cause, OSError) for cause in chain):
        return Fault.TEMPORARY
    if any(isinstance(cause, ValueError) for cause in chain):
        return Fault.CONFIG
    return None


def cause_of(error: BaseException) -> Cause:
    """What an exception amounts to; one that is not about the hub or the disk is a bug of ours."""
    chain = list(_chain_of(error))
    for each in chain:
        if isinstance(each, CauseError):
            return each.cause
    # The number of an ssl.SSLError is OpenSSL's, of a gaierror getaddrinfo's (and negative).
    system = [c for c in chain if isinstance(c, OSError) and not isinstance(c, ssl.SSLError)]
    numbers = [c.errno for c in system if c.errno and c.errno > 0]
    fault = fault_of(error)
    return Cause(
        fault=fault or Fault.INTERNAL,
        names=tuple(dict.fromkeys(type(cause).__name__ for cause in chain)),
        status=_status_of(error),
        number=numbers[-1] if numbers else None,
        about=_about(chain),
        retry_after_s=_retry_after(chain),
        where=_path(system) if fault else _where(error),
        authorized=_is_authorized(chain),
        xet=_is_of_xet(chain),
    )


def asked_to_wait(response: httpx.Response) -> float | None:
    """Seconds after which a busy hub wants to be asked again, None where it does not say.

    Its own rate limit (`RateLimit: "api";r=0;t=55`), else Retry-After as seconds or as a date.
    """
    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text[:_LONGEST_NUMBER])
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # no date, or one without a zone
        return None


def _retry_after(chain: list[BaseException]) -> float | None:
    for cause in chain:
        response = getattr(cause, "response", None)
        if isinstance(response, httpx.Response):
            return asked_to_wait(response)
    return None


def _about(chain: list[BaseException]) -> AboutT:
    if any(isinstance(cause, hub.RevisionNotFoundError) for cause in chain):
        return "revision"
    absent = any(isinstance(cause, hub.RepositoryNotFoundError) for cause in chain)
    return "repository" if absent and _fault_said(chain) is Fault.MODEL_ABSENT else ""


def _is_authorized(chain: list[BaseException]) -> bool:
    responses = (getattr(cause, "response", None) for cause in chain)
    asked = [each.request for each in responses if isinstance(each, httpx.Response)]
    return any("Authorization" in request.headers for request in asked)


def _is_of_xet(chain: list[BaseException]) -> bool:
    """Whether it came up in the client's code for Xet, which not every mirror or firewall knows."""
    frames = [frame for each in chain for frame in traceback.extract_tb(each.__traceback__)]
    return any(frame.name == "xet_get" or "_xet" in Path(frame.filename).stem for frame in frames)


def _path(errors: list[OSError]) -> str:
    """The file that a system call failed on."""
    named = [error.filename for error in errors if isinstance(error.filename, str)]
    return one_line(named[-1], 400) if named else ""


def _where(error: BaseException) -> str:
    """The last line of code, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
