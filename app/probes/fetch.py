"""One repository of the hub at one commit: from the cache where it is complete, else downloaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from app.facts.cache import RoomFacts
from app.facts.host import size
from app.facts.words import listed
from app.outcome import Fault, Finding, failed
from app.probes.fetch_progress import Teller, Terminal
from app.probes.hub_answer import Cause
from app.probes.hub_cache import DEFAULT_REVISION, Cached, commits, find_snapshot, repository_folder
from app.probes.hub_steps import finding_of

_HUB = "https://huggingface.co"
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class Request:
    """What to find. `offline` names the variable that forbids the network, None when none does.

    `asked` is the name before Unsloth's mapping. `until` is when the stage must have an answer, by
    the monotonic clock; `limit` names that deadline. `terminal` is the path of a descriptor that
    may be a terminal.
    """

    asked: str
    repository: str
    revision: str | None
    cache: str
    token: str | None
    variables: Mapping[str, str]
    allowed: bool
    offline: str | None
    until: float
    limit: str
    stall_s: float
    pickles: bool
    wait: Callable[[float], None]
    say: Callable[[str], object]
    terminal: str | None = None

    @property
    def branch(self) -> str:
        """The revision as the hub knows it."""
        return self.revision or DEFAULT_REVISION

    @property
    def host(self) -> str:
        """Who is asked."""
        return urlsplit(self.variables.get("HF_ENDPOINT") or _HUB).hostname or "the hub"

    @property
    def base(self) -> Path:
        """The repository's folder in the cache."""
        return repository_folder(self.cache, self.repository)

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self.until - time.monotonic()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A folder of the hub's cache that holds one commit, or why there is none.

    `room` is None where nothing had to be downloaded. `whole` is set where the hub lists no more
    files of it that a load reads, `known` is False where nobody has said that there is such a
    repository.
    """

    folder: Path | None = None
    commit: str | None = None
    downloaded: bool = False
    reason: str = ""
    failure: Finding | None = None
    known: bool = True
    whole: bool = False
    room: RoomFacts | None = None


def fetch(request: Request) -> Fetched:
    """The complete snapshot, or the failed check that says why there is none."""
    cached = find_snapshot(
        request.cache, request.repository, request.revision, pickles=request.pickles
    )
    may_ask = request.allowed and not request.offline
    if cached is not None and not cached.lacking and not (cached.in_doubt and may_ask):
        return _from_cache(request, cached)
    if not may_ask:
        return Fetched(failure=_not_cached(request, cached), known=cached is not None)
    got = _download(request)
    if cached is not None and cached.in_doubt and _is_temporary(got.failure):
        # All that its own files name is there; what could not be asked is whether there is more.
        return _from_cache(request, cached)
    return got


def _from_cache(request: Request, cached: Cached) -> Fetched:
    reason = f"{request.branch} as it is in the cache"
    if cached.in_doubt:
        reason += f", beside {cached.n_unfinished} unfinished download(s)"
    whole = cached.listing is not None
    return Fetched(cached.folder, cached.commit, reason=reason, whole=whole)


def _is_temporary(failure: Finding | None) -> bool:
    return failure is not None and failure.fault is Fault.TEMPORARY


def _download(request: Request) -> Fetched:
    # Imported here, as is whatever it imports: a complete cache needs none of it.
    from app.probes.fetch_attempts import attempts
    from app.probes.fetch_run import Done

    dumb = request.variables.get("TERM", "") in {"", "dumb"}
    terminal = Terminal.of(request.terminal) if request.terminal and not dumb else None
    teller = Teller(request.repository, request.say, terminal)
    try:
        got, room = attempts(request, teller)
    finally:
        teller.end()
    if isinstance(got, Done):
        reason = f"{request.branch} of {request.host}, downloaded now"
        return Fetched(
            got.folder, got.commit, downloaded=True, reason=reason, room=room, whole=True
        )
    if isinstance(got, Cause):
        return Fetched(failure=_refused(request, got), room=room, known=_is_known(got, room))
    return Fetched(failure=_no_room(request, room), room=room)


def _is_known(cause: Cause, room: RoomFacts | None) -> bool:
    """Whether the hub knows such a repository: it listed it, or said what is wrong with it."""
    if room is not None or cause.about in {"revision", "contents"}:
        return True
    if cause.fault is Fault.TEMPORARY:  # a hub that is busy has been found
        return cause.status is not None or cause.about == "late"
    if cause.fault is Fault.ACCESS_DENIED:  # only a repository that is there is gated
        return cause.status != _UNAUTHORIZED or "GatedRepoError" in cause.names
    return cause.fault is not Fault.MODEL_ABSENT


def _refused(request: Request, cause: Cause) -> Finding:
    # A system call on a file failed, none of the network.
    local = bool(cause.number) and cause.fault in {Fault.READ_ERROR, Fault.CONFIG}
    what = f"{request.repository} at {request.branch}"
    what += " could not be " + ("written to the cache" if local else f"had from {request.host}")
    if cause.about == "contents":
        what = f"{request.repository} at {request.branch} is no model to train"
    found = finding_of(
        cause,
        what=what,
        expected="the repository's files at that revision",
        has_token=bool(request.token) or cause.authorized,
        limit=request.limit.partition("=")[0],
    )
    if (
        cause.fault is Fault.MODEL_ABSENT
        and cause.about != "contents"
        and request.variables.get("HF_ENDPOINT")
    ):
        step = f"{found.next_step}; and see that HF_ENDPOINT ({request.host}) is the hub you mean"
        found = replace(found, next_step=step)
    if cause.about != "revision" or request.asked == request.repository:
        return found
    has_it = {True: "which has it", False: "which has it not", None: "which was not asked"}
    return failed(
        f"{request.repository} has no revision {request.branch}: BOOT_REVISION is looked for in "
        f"the repository that Unsloth maps {request.asked} to ({has_it[cause.elsewhere]})",
        expected=f"a revision of {request.repository}",
        actual=cause.actual,
        next_step=f"take a revision of {request.repository}, or unset BOOT_REVISION; to load "
        f"{request.asked} itself, download it and give its folder in BOOT_BASE_MODEL_ID",
        fault=cause.fault,
    )


def _no_room(request: Request, room: RoomFacts | None) -> Finding:
    """The stage's other check says how much is needed; this one, what that led to."""
    needed = size(room.wanted_bytes) if room else "more"
    free = size(room.free_bytes) if room else "too little"
    return failed(
        f"{request.repository} was not downloaded: it needs {needed}, and {free} are free",
        expected=f"{needed} free on the disk of {request.cache}",
        actual=f"{free} free",
        next_step="free space there, or set HF_HOME to a folder on a larger disk",
        fault=Fault.READ_ERROR,
    )


def _not_cached(request: Request, cached: Cached | None) -> Finding:
    why = f"{request.offline} is set" if request.offline else "BOOT_DOWNLOAD is never"
    undo = f"unset {request.offline}" if request.offline else "set BOOT_DOWNLOAD=if-missing"
    there = f"a snapshot without {listed(cached.lacking)}" if cached else "no snapshot"
    what = f"lacks {listed(cached.lacking, 1)}" if cached else "is not"
    others = [] if cached else commits(request.cache, request.repository)
    if others:
        there = f"no snapshot of {request.branch}, but of {listed(others, 3)}"
        undo += f", or set BOOT_REVISION={others[0]}"
    return failed(
        f"{request.repository} at {request.branch} {what} in the cache, and {why}",
        expected=f"a complete snapshot below {request.cache}",
        actual=there,
        next_step=f"{undo}, or fill the cache first: hf download {request.repository} "
        f"--revision {request.branch}",
        fault=Fault.MODEL_ABSENT,
    )
