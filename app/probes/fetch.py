"""One repository of the hub at one commit: from the cache where it is complete, else downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay
from tenacity.wait import wait_random_exponential

from app.facts.words import listed
from app.outcome import Fault, Finding, failed
from app.probes.hub_errors import KNOWN, finding_of, is_temporary
from app.probes.weights import choose_weights, missing_weights

# What a load reads. Pickles, other frameworks' weights and second copies stay on the hub.
ALLOW = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
IGNORE = ("original/*", "onnx/*", "gguf/*", "consolidated*", "checkpoint-*/*", "runs/*")
_ATTEMPTS = 6
_LONGEST_WAIT_S = 30.0
_ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """What to find. `offline` names the variable that forbids the network, None when none does."""

    repository: str
    revision: str | None
    cache: str
    token: str | None
    endpoint: str | None
    allowed: bool
    offline: str | None
    deadline_s: float
    wait: Callable[[float], None]

    @property
    def branch(self) -> str:
        """The revision as the hub knows it."""
        return self.revision or constants.DEFAULT_REVISION


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder of the hub's cache that holds one commit."""

    folder: Path
    commit: str
    downloaded: bool
    reason: str


def fetch(request: Request) -> Snapshot | Finding:
    """The complete snapshot, or the failed check that says why there is none."""
    cached, lacking = _cached(request)
    if cached is not None and not lacking:
        return Snapshot(
            cached, cached.name, downloaded=False, reason=f"{request.branch} as it is in the cache"
        )
    if not request.allowed or request.offline:
        return _not_cached(request, lacking)
    retrying = Retrying(
        retry=retry_if_exception(is_temporary),
        stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(request.deadline_s),
        wait=wait_random_exponential(multiplier=1, max=_LONGEST_WAIT_S),
        sleep=request.wait,
        reraise=True,
    )
    host = urlsplit(request.endpoint or constants.ENDPOINT).hostname or "the hub"
    try:
        folder = retrying(_download, request)
    except KNOWN as error:
        found = finding_of(
            error,
            what=f"{request.repository} at {request.branch} could not be had from {host}",
            expected="the repository's files at that revision",
        )
        if found is None:
            raise
        return found
    return Snapshot(
        folder, folder.name, downloaded=True, reason=f"{request.branch} of {host}, downloaded now"
    )


def _cached(request: Request) -> tuple[Path | None, tuple[str, ...]]:
    """The snapshot in the cache and what it lacks; no snapshot is None.

    The client knows a snapshot to be incomplete only where it kept the repository's listing, hence
    the look at config and weights besides.
    """
    try:
        folder = Path(
            snapshot_download(
                request.repository,
                revision=request.revision,
                cache_dir=request.cache,
                local_files_only=True,
                allow_patterns=list(ALLOW),
                ignore_patterns=list(IGNORE),
            )
        )
    except LocalEntryNotFoundError as error:
        partial = getattr(error, "snapshot_path", None)
        return (None, ()) if partial is None else (Path(partial), ("files of the listing",))
    except OSError:
        return None, ()  # an unreadable cache: the download names what is wrong with it
    choice = choose_weights(folder)
    lacking = [] if not choice.config.problem else ["config.json"]
    lacking += missing_weights(folder) if choice.files else ["weights"]
    return folder, tuple(lacking)


def _download(request: Request) -> Path:
    """One attempt.

    The client falls back to whatever is cached when the hub does not answer; asking for the
    commit first makes that failure an exception, with its status.
    """
    api = HfApi(endpoint=request.endpoint, token=request.token)
    api.model_info(request.repository, revision=request.revision, timeout=_ASK_TIMEOUT_S)
    return Path(
        snapshot_download(
            request.repository,
            revision=request.revision,
            cache_dir=request.cache,
            token=request.token,
            endpoint=request.endpoint,
            allow_patterns=list(ALLOW),
            ignore_patterns=list(IGNORE),
        )
    )


def _not_cached(request: Request, lacking: tuple[str, ...]) -> Finding:
    why = f"{request.offline} is set" if request.offline else "BOOT_DOWNLOAD is never"
    undo = f"unset {request.offline}" if request.offline else "set BOOT_DOWNLOAD=if-missing"
    there = f"a snapshot without {listed(lacking)}" if lacking else "no snapshot"
    return failed(
        f"{request.repository} at {request.branch} is not complete in the cache, and {why}",
        expected=f"a complete snapshot below {request.cache}",
        actual=there,
        next_step=f"{undo}, or fill the cache first: hf download {request.repository} "
        f"--revision {request.branch}",
        fault=Fault.MODEL_ABSENT,
    )
