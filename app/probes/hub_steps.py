"""The way out of what came of asking the hub, in words for the person who submitted the job."""

from __future__ import annotations

from collections.abc import Mapping

from app.facts import disk
from app.facts.words import listed
from app.outcome import Fault, Finding, failed
from app.probes.hub_answer import Cause

_UNAUTHORIZED, _PROXY_WANTS_NAME, _TOO_MANY_REQUESTS, _NOT_HERE = 401, 407, 429, 451

_STEPS: dict[Fault, str] = {
    Fault.MODEL_ABSENT: "check BOOT_BASE_MODEL_ID and BOOT_REVISION; a private repository looks "
    "absent without a token that may read it (HF_TOKEN)",
    Fault.TEMPORARY: "try again later; a filled cache needs no hub",
    Fault.READ_ERROR: "look at the cache's disk (free space, mount), or take another node",
    Fault.CONFIG: "check HF_ENDPOINT and the proxy and CA variables",
    Fault.NODE_UNFIT: "set this node's clock: the hub's certificate is not valid at its time",
    Fault.HARDWARE_MISMATCH: "raise the memory limit of the container",
    Fault.INTERNAL: "rebuild the environment from its lock; a filled cache needs no download",
}
# No answer at all is seldom the hub's fault: the way to it is.
UNANSWERED = (
    "check this node's network, the proxy variables and HF_ENDPOINT, then try again; a filled "
    "cache needs no hub"
)
_RATE = "try again later; HF_TOKEN raises the rate limit, and a filled cache needs no hub"
_RATE_OF_TOKEN = (
    "try again later: all jobs of the token's account share its rate limit; a filled cache needs "
    "no hub"
)
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
_ELSEWHERE = (
    "name another model, or fill the cache where it may be had: the hub does not give it out here"
)
# By the class of an exception, the first that is among them.
_SETTINGS: Mapping[str, str] = {
    "SSLCertVerificationError": "name the file of this network's certificate authorities in "
    "SSL_CERT_FILE, and check HF_ENDPOINT and the proxy variables",
    "SSLError": "check the schemes (http, https) of HF_ENDPOINT and the proxy variables: what "
    "answers there speaks no TLS",
    "ProxyError": "have the proxy allow the hub's host, or name that in NO_PROXY if it can be "
    "reached directly",
    "InvalidURL": "correct HF_ENDPOINT and the proxy variables: one is no address",
    "UnsupportedProtocol": "correct HF_ENDPOINT: an address begins with http:// or https://",
    "LocalProtocolError": "correct HF_TOKEN, HF_ENDPOINT and the proxy variables: no header can "
    "hold one of them",
}
_RIGHTS = (
    "give this uid the right to write to the cache, or set HF_HOME to a folder where it may; a "
    "complete cache is only read"
)
_IN_THE_WAY = (
    "remove what lies there in the place of a folder of the cache, or set HF_HOME to another folder"
)
_LATE = (
    "raise {limit}, or fill the cache before; files that are complete are kept, and "
    "a new boot goes on from them"
)


def step_of(cause: Cause, *, has_token: bool, limit: str = "") -> str:
    """What the person who submitted the job can do; `limit` is the setting of the deadline."""
    told = _step_about(cause, limit) or _step_by_status(cause, has_token=has_token)
    if told:
        return told
    if cause.fault is Fault.ACCESS_DENIED:
        return _step_to_access(cause, has_token=has_token)
    if cause.fault is Fault.CONFIG:
        return _step_to_settings(cause)
    return _STEPS.get(cause.fault, _STEPS[Fault.INTERNAL])


def _step_about(cause: Cause, limit: str) -> str:
    """How a download ended otherwise than by an answer."""
    if cause.locks and cause.about == "stall":
        return (
            f"see whether another boot still downloads into this cache, else delete "
            f"{listed(cause.locks, 3)}; then try again"
        )
    if cause.about == "late" and not cause.step:
        return _LATE.format(limit=limit or "BOOT_CACHE_TIMEOUT_S")
    return cause.step


def _step_by_status(cause: Cause, *, has_token: bool) -> str:
    if cause.status == _TOO_MANY_REQUESTS:
        return _RATE_OF_TOKEN if has_token else _RATE
    if cause.status == _NOT_HERE:
        return _ELSEWHERE
    return UNANSWERED if cause.is_temporary and cause.status is None else ""


def _step_to_settings(cause: Cause) -> str:
    if cause.about == "stranger":
        return "correct HF_ENDPOINT and the proxy variables: what answers there is no hub"
    if cause.status == _PROXY_WANTS_NAME:
        return (
            "give a user and password that the proxy takes in HTTPS_PROXY or HTTP_PROXY, before "
            "the host and percent-encoded, or unset it"
        )
    for name, step in _SETTINGS.items():
        if name in cause.names:
            return step
    if cause.status is not None:
        return "check HF_ENDPOINT and the proxy variables: the request was refused, and will be"
    if disk.fault_of(cause.number):
        return _RIGHTS
    return _IN_THE_WAY if cause.number else _STEPS[Fault.CONFIG]


def _step_to_access(cause: Cause, *, has_token: bool) -> str:
    """Told apart by whether there was a token, and whether the hub took it (403) or not (401)."""
    if not has_token:
        return _NO_TOKEN
    return _BAD_TOKEN if cause.status == _UNAUTHORIZED else _MAY_NOT


def finding_of(
    cause: Cause, *, what: str, expected: str, has_token: bool = False, limit: str = ""
) -> Finding:
    """The failed check that it amounts to."""
    return failed(
        f"{what}: {cause.actual}",
        expected=expected,
        actual=cause.actual,
        next_step=step_of(cause, has_token=has_token, limit=limit),
        fault=cause.fault,
    )
