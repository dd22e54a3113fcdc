"""From an exception of the hub's client to what is wrong, by class and number, never by text.

The cause decides: huggingface_hub says "not in the cache" (LocalEntryNotFoundError) when the hub
answered 429. No text of an exception enters a finding, so no token can.
"""

from __future__ import annotations

import errno
import json
import ssl

import httpx
from huggingface_hub import errors as hub

from app.errors import causes
from app.facts import disk
from app.outcome import Fault, Finding, failed

# The certificate is not valid yet, or no longer (OpenSSL's verify codes).
_CLOCK = frozenset({9, 10})
_NO_ACCESS = frozenset({401, 403})
# Request timeout, too early, rate limit: the same request works later.
_LATER = frozenset({408, 425, 429})
# An address or a header that no server could take, a token with a line break in it for instance.
_WRONG_REQUEST = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)
# No answer, or one that is cut, or a page of somebody in between instead of the hub's JSON.
_UNREACHABLE = (
    *(httpx.TransportError, httpx.DecodingError, httpx.TooManyRedirects, json.JSONDecodeError),
    *(TimeoutError, ConnectionError, hub.XetDownloadError),
)
# In this order: the client's "not in the cache" is the symptom of every line above it.
_BY_CLASS: tuple[tuple[tuple[type[BaseException], ...], Fault], ...] = (
    ((hub.OfflineModeIsEnabled,), Fault.MODEL_ABSENT),
    (_WRONG_REQUEST, Fault.CONFIG),
    (_UNREACHABLE, Fault.TEMPORARY),
    ((hub.LocalEntryNotFoundError,), Fault.MODEL_ABSENT),
)
# What `fault_of` can tell something about; anything else is not the hub's.
KNOWN = (
    *(httpx.HTTPError, httpx.InvalidURL, OSError, ValueError),
    *(hub.EntryNotFoundError, hub.RevisionResolutionError, hub.XetDownloadError),
)


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an exception."""
    for cause in causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx.Response):
            return response.status_code
    return None


def is_temporary(error: BaseException) -> bool:
    """Whether asking again can help."""
    return fault_of(error) is Fault.TEMPORARY


def fault_of(error: BaseException) -> Fault | None:
    """The kind of fault; None for an exception that is not about the hub or the disk."""
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            code = getattr(cause, "verify_code", None)  # set by OpenSSL, not by the class
            return Fault.NODE_UNFIT if code in _CLOCK else Fault.CONFIG
    said = _fault_said(chain) or _fault_of_status(status_of(error))
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


def _fault_of_status(status: int | None) -> Fault | None:
    if status is None:
        return None
    if status in _NO_ACCESS:
        return Fault.ACCESS_DENIED
    if status in _LATER or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Fault.TEMPORARY
    if status in {httpx.codes.NOT_FOUND, httpx.codes.GONE}:
        return Fault.MODEL_ABSENT
    return Fault.CONFIG  # any other 4xx: this request is wrong, and stays wrong


def _fault_of_system(chain: list[BaseException]) -> Fault | None:
    """A full or broken disk may be fine on another node; missing rights are not."""
    for cause in chain:
        if isinstance(cause, OSError) and cause.errno is not None:
            return disk.fault_of(cause.errno) or Fault.CONFIG
    # httpx's own OSError subclass without a number: a body that ended early.
    if any(isinstance(cause, OSError) for cause in chain):
        return Fault.TEMPORARY
    if any(isinstance(cause, ValueError) for cause in chain):
        return Fault.CONFIG
    return None


_STEPS: dict[Fault, str] = {
    Fault.MODEL_ABSENT: "check BOOT_BASE_MODEL_ID and BOOT_REVISION; a private repository looks "
    "absent without a token that may read it (HF_TOKEN)",
    Fault.ACCESS_DENIED: "accept the model's licence on its page, and set HF_TOKEN to a token of "
    "that account that may read it",
    Fault.TEMPORARY: "try again later; a filled cache needs no hub",
    Fault.READ_ERROR: "free space on the cache's disk, or take another node",
    Fault.CONFIG: "check HF_ENDPOINT, the proxy and CA variables, and that this uid may write to "
    "the cache",
    Fault.NODE_UNFIT: "set this node's clock: the hub's certificate is not valid at its time",
}


# No answer at all is seldom the hub's fault: the way to it is.
_NO_ANSWER = (
    "check this node's network, the proxy variables and HF_ENDPOINT, then try again; a filled "
    "cache needs no hub"
)
_RATE = "try again later; HF_TOKEN raises the rate limit, and a filled cache needs no hub"


def _step(fault: Fault, status: int | None) -> str:
    if fault is Fault.TEMPORARY and status is None:
        return _NO_ANSWER
    return _RATE if status == httpx.codes.TOO_MANY_REQUESTS else _STEPS[fault]


def finding_of(error: BaseException, *, what: str, expected: str) -> Finding | None:
    """The failed check that an exception amounts to; None when it must be raised on."""
    fault = fault_of(error)
    if fault is None:
        return None
    status = status_of(error)
    said = f"HTTP {status}" if status is not None else ""
    numbers = [c.errno for c in causes(error) if isinstance(c, OSError) and c.errno]
    if not said and numbers:
        said = errno.errorcode.get(numbers[-1], str(numbers[-1]))
    names = " <- ".join(dict.fromkeys(type(cause).__name__ for cause in causes(error)))
    actual = f"{said} ({names})" if said else names
    return failed(
        f"{what}: {actual}",
        expected=expected,
        actual=actual,
        next_step=_step(fault, status),
        fault=fault,
    )
