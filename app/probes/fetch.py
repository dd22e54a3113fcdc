"""One repository of the hub at one commit: from the cache where it is complete, else downloaded.

How a download goes, from here down:

1. `fetch` (here) looks into the cache by `hub_cache`, has a download made where it may, and puts
   what came of it into words, with the way out by `hub_steps` and the proxy's name by
   `fetch_proxy`. A complete cache needs nothing of what follows, and imports none of it.
   `fetch_request` is what all of them are given.
2. `fetch_attempts` makes one attempt after the other, as long as another one can help: it waits as
   long as a busy hub asks for, switches Xet off after a stall, passes by a lock that nobody frees.
3. `fetch_run` is one attempt: it starts a child and is its watchdog, which kills it after the stall
   time without a new byte, and at the end of the stage's time. It sees that the disk has room.
   `fetch_progress` shows how far the files are.
4. `fetch_child` is that child. It asks for commit and files (`hub_questions`), refuses what is no
   model to train (`hub_contents`), and has the hub's client download the rest, as `hub_client` has
   set it up. It imports that client, which the other modules above never do.

Whatever goes wrong is a `Cause` (`hub_answer`): `hub_errors` makes it of the client's exception in
the child, the pipe carries it to the watchdog, and there it is raised as a `CauseError`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from app.facts import disk
from app.facts.cache import RoomFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed
from app.probes.fetch_progress import Teller, Terminal
from app.probes.fetch_proxy import Proxy, proxy_of
from app.probes.fetch_request import HUB, Request
from app.probes.hub_answer import Cause, CauseError
from app.probes.hub_cache import Cached, commits, find_snapshot
from app.probes.hub_steps import UNANSWERED, finding_of

_UNAUTHORIZED = 401


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
    plan = request.plan
    try:
        cached = find_snapshot(
            request.cache, request.repository, plan.revision, pickles=plan.allow_pickle
        )
    except OSError as error:
        return Fetched(failure=_unreadable(request, error))
    if cached is not None and not cached.lacking and not (cached.in_doubt and request.may_ask):
        return _from_cache(request, cached)
    if not request.may_ask:
        return Fetched(failure=_not_cached(request, cached), known=cached is not None)
    got = _download(request)
    is_temporary = got.failure is not None and got.failure.fault is Fault.TEMPORARY
    if cached is not None and cached.in_doubt and is_temporary:
        # All that its own files name is there; what could not be asked is whether there is more.
        return _from_cache(request, cached)
    return got


def _from_cache(request: Request, cached: Cached) -> Fetched:
    reason = f"{request.branch} as it is in the cache"
    if cached.in_doubt:
        reason += f", beside {cached.n_unfinished} unfinished download(s)"
    whole = cached.listing is not None
    return Fetched(cached.folder, cached.commit, reason=reason, whole=whole)


def _download(request: Request) -> Fetched:
    from app.probes.fetch_attempts import Attempts

    dumb = request.variables.get("TERM", "") in {"", "dumb"}
    path = request.means.terminal
    terminal = Terminal.of(path) if path and not dumb else None
    teller = Teller(request.repository, request.means.say, terminal)
    attempts = Attempts(request, teller)
    try:
        done = attempts.run()
    except CauseError as error:
        failure = _refused(request, error.cause)
        known = attempts.room is not None or is_known(error.cause)
        return Fetched(failure=failure, known=known, room=attempts.room)
    finally:
        teller.end()
    reason = f"{request.branch} of {request.host}, downloaded now"
    return Fetched(
        done.folder,
        done.commit,
        downloaded=True,
        reason=reason,
        whole=True,
        room=attempts.room,
    )


def is_known(cause: Cause) -> bool:
    """Whether the hub knows such a repository: it has said something about it."""
    if cause.about in {"revision", "contents"}:
        return True
    if cause.fault is Fault.TEMPORARY:  # a hub that is busy has been found
        return cause.status is not None or cause.about == "late"
    if cause.fault is Fault.ACCESS_DENIED:  # only a repository that is there is gated
        return cause.status != _UNAUTHORIZED or "GatedRepoError" in cause.names
    return cause.fault is not Fault.MODEL_ABSENT


def _refused(request: Request, cause: Cause) -> Finding:
    if cause.about == "revision" and request.asked != request.repository:
        return _of_the_mapped_repository(request, cause)
    proxy = _proxy(request, cause)
    found = finding_of(
        cause,
        what=_what(request, cause, proxy),
        expected="the repository's files at that revision",
        has_token=bool(request.token) or cause.authorized,
        limit=request.means.setting,
    )
    if proxy is not None and found.next_step == UNANSWERED:
        step = f"see that this node reaches the proxy {proxy.address} and that it reaches the hub, "
        step += f"or correct {proxy.variable}; then try again; a filled cache needs no hub"
        return replace(found, next_step=step)
    if cause.fault is Fault.MODEL_ABSENT and cause.about != "contents" and request.endpoint:
        step = f"{found.next_step}; and see that HF_ENDPOINT ({request.host}) is the hub you mean"
        return replace(found, next_step=step)
    return found


def _proxy(request: Request, cause: Cause) -> Proxy | None:
    """The proxy on the way, where that may be what refused: not the hub has answered."""
    answered = cause.status is not None and "ProxyError" not in cause.names
    silent = cause.about in {"late", "stall"}
    if answered or cause.fault is Fault.INTERNAL or not (cause.names or silent):
        return None
    return proxy_of(request.variables, request.endpoint or HUB)


def _named(request: Request) -> str:
    """The repository, and why it is another one than was asked for."""
    if request.asked == request.repository:
        return request.repository
    kind = "4-bit" if request.plan.request.load_in_4bit else "16-bit"
    return f"{request.repository} (Unsloth's {kind} repository of {request.asked})"


def _what(request: Request, cause: Cause, proxy: Proxy | None) -> str:
    """What has gone wrong, before why."""
    what = f"{_named(request)} at {request.branch}"
    if cause.about == "contents":
        return f"{what} is no model to train"
    if cause.about == "room":
        return f"{what} was not downloaded"
    # A system call on a file failed, none of the network.
    if cause.number and cause.fault in {Fault.READ_ERROR, Fault.CONFIG}:
        return f"{what} could not be written to the cache"
    way = f" through the proxy {proxy.address}" if proxy is not None else ""
    return f"{what} could not be had from {request.host}{way}"


def _of_the_mapped_repository(request: Request, cause: Cause) -> Finding:
    has_it = {True: "which has it", False: "which has none either", None: "which does not say"}
    return failed(
        f"{request.repository} has no revision {request.branch}: BOOT_REVISION is looked for in "
        f"the repository that Unsloth maps {request.asked} to ({has_it[cause.elsewhere]})",
        expected=f"a revision of {request.repository}",
        actual=cause.actual,
        next_step=f"take a revision of {request.repository}, or unset BOOT_REVISION; to load "
        f"{request.asked} itself, download it and give its folder in BOOT_BASE_MODEL_ID",
        fault=cause.fault,
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
        f"{_named(request)} at {request.branch} {what} in the cache, and {why}",
        expected=f"a complete snapshot below {request.cache}",
        actual=there,
        next_step=f"{undo}, or fill the cache first: hf download {request.repository} "
        f"--revision {request.branch}",
        fault=Fault.MODEL_ABSENT,
    )


def _unreadable(request: Request, error: OSError) -> Finding:
    """A download would not mend it: it writes to the same place."""
    path = one_line(os.fsdecode(error.filename or request.base), 400)
    actual = f"{error.strerror or error} at {path}"
    denied = disk.fault_of(error.errno) is Fault.CONFIG
    return failed(
        f"{request.repository} in the cache cannot be read: {actual}",
        expected="files and folders of the cache that this uid may read",
        actual=actual,
        next_step="give this uid the right to read all of the repository's folder in the cache and "
        "to enter it, or set HF_HOME to a cache of its own"
        if denied
        else "look at the cache's disk or mount, or take another node",
        fault=Fault.CONFIG if denied else Fault.READ_ERROR,
    )
