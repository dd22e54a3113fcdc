"""Downloads one snapshot through the hub's client, in a process of its own that can be killed.

`python -P -m app.probes.fetch_child PARENT`: the request comes as one line of JSON on standard
input (the token among it, so that it stands in no argument and no environment), and lines of JSON
go to standard output: `listing`, then `progress` again and again, and last `done` or `cause`. What
libraries print goes nowhere. It dies with its parent.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from app.lifeline import die_with
from app.probes.hub_answer import Cause, CauseError, stranger, to_json
from app.probes.hub_cache import (
    COMMIT,
    DEFAULT_REVISION,
    repository_folder,
    stays_inside,
    unfinished,
    wanted,
)
from app.probes.hub_contents import misfit

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub._tree_cache import TreeCacheEntry

    from app.probes.hub_client import State

_BEAT_S = 0.5
# No download is silent for a day: what is older was left by a process that was killed.
_ABANDONED_S = 24 * 3600.0
# What comes of reading JSON of another shape.
_ODD = (KeyError, TypeError, AttributeError, RecursionError)


class _Events:
    """The pipe to the parent; whole lines, from two threads."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, **event: Any) -> None:  # noqa: ANN401 - JSON
        """Send one event."""
        with self._lock:
            self._pipe.write(json.dumps(event).encode() + b"\n")
            self._pipe.flush()

    def beat(self, state: State) -> None:
        """Tell the state for ever; ends with the process."""
        while True:
            self.tell(
                progress={
                    "received": state.received,
                    "status": state.status,
                    "waiting": sorted(state.waiting),
                }
            )
            time.sleep(_BEAT_S)


def main() -> None:
    """The child's whole life."""
    pipe = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    if not die_with(int(sys.argv[1])):
        return
    events = _Events(pipe)
    request = json.loads(sys.stdin.readline())
    try:
        _work(request, events)
    except ImportError as error:
        events.tell(cause=to_json(_not_importable(error)))
    except BaseException as error:
        events.tell(cause=_told(error, request))
        raise


def _told(error: BaseException, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        from app.probes.hub_errors import cause_of
    except ValueError as broken:  # a variable that the client cannot parse, at its import
        return to_json(_not_importable(broken))
    cause = cause_of(error)
    if cause.about == "revision" and request["asked"] != request["repository"]:
        cause = replace(cause, elsewhere=_has_revision(request))
    return to_json(cause)


def _not_importable(error: Exception) -> Cause:
    """The client itself: a broken environment, or a variable of its own with an odd value."""
    from app.outcome import Fault

    fault = Fault.CONFIG if isinstance(error, ValueError) else Fault.INTERNAL
    return Cause(fault, names=(type(error).__name__,), where="import huggingface_hub")


def _work(request: Mapping[str, Any], events: _Events) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub import snapshot_download as download

    from app.probes.hub_client import State, counter, prepare

    state = State()
    prepare(state, longest_wait_s=request["longest_wait_s"], locks=request["locks"])
    threading.Thread(target=events.beat, args=(state,), daemon=True).start()
    api = HfApi(endpoint=request["endpoint"], token=request["token"])
    commit = _commit(api, request, timeout_s=request["ask_timeout_s"])
    base = repository_folder(
        str(Path(request["cache"]).expanduser().resolve()), request["repository"]
    )
    entries = _listing(api, base, request["repository"], commit)
    found = misfit(entries, pickles=request["pickles"])
    if found is not None:
        raise CauseError(found)
    names = wanted(entries, pickles=request["pickles"])
    events.tell(listing=_described(base, commit, {name: entries[name] for name in names}))
    if sys.stdin.readline().strip() != "go":
        return
    _remove_abandoned(base)
    download(
        request["repository"],
        revision=commit,  # a commit: the client then never falls back to what happens to be there
        cache_dir=request["cache"],
        token=request["token"],
        endpoint=request["endpoint"],
        allow_patterns=[glob.escape(name) for name in names],
        tqdm_class=counter(state),
    )
    _note_revision(base, request["revision"] or DEFAULT_REVISION, commit)
    events.tell(done={"commit": commit, "folder": str(base / "snapshots" / commit)})


def _commit(api: HfApi, request: Mapping[str, Any], *, timeout_s: float) -> str:
    """Ask which commit it is. Raises the client's errors, CauseError for no hub's answer."""
    try:
        info = api.model_info(
            request["repository"], revision=request["revision"], timeout=timeout_s
        )
    except _ODD as error:
        raise stranger(error) from error
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise stranger()
    return info.sha


def _has_revision(request: Mapping[str, Any]) -> bool | None:
    """Whether the repository that was asked for has the revision; None where it does not say."""
    import httpx
    from huggingface_hub import HfApi

    api = HfApi(endpoint=request["endpoint"], token=request["token"])
    try:
        _commit(api, {**request, "repository": request["asked"]}, timeout_s=5.0)
    except (httpx.HTTPError, OSError, ValueError, CauseError):
        return None
    return True


def _listing(api: HfApi, base: Path, repository: str, commit: str) -> dict[str, TreeCacheEntry]:
    """All files of the commit, kept as the client keeps them, so that it does not ask again."""
    from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache
    from huggingface_hub.hf_api import RepoFile

    found = read_tree_cache(str(base), commit)
    if found:  # an empty one is what a hub said that was not well
        return found
    try:
        found = {
            file.path: TreeCacheEntry(
                size=file.size,
                blob_id=file.blob_id,
                lfs_sha256=file.lfs.sha256 if file.lfs else None,
                lfs_size=file.lfs.size if file.lfs else None,
                xet_hash=file.xet_hash,
            )
            for file in api.list_repo_tree(repository, recursive=True, revision=commit)
            if isinstance(file, RepoFile)
        }
    except _ODD as error:
        raise stranger(error) from error
    if not all(stays_inside(name) for name in found):
        raise stranger()
    if found:
        write_tree_cache(str(base), commit, found)
    return found


def _described(base: Path, commit: str, entries: Mapping[str, TreeCacheEntry]) -> dict[str, Any]:
    """What is to come: every file with the name of its blob, and whether it is there."""
    folder = base / "snapshots" / commit
    return {
        "commit": commit,
        "files": [
            {
                "name": name,
                "size": entry.lfs_size or entry.size,
                "blob": entry.lfs_sha256 or entry.blob_id,
                "here": (folder / name).is_file(),
            }
            for name, entry in entries.items()
        ],
    }


def _remove_abandoned(base: Path) -> None:
    for path in unfinished(base):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
        except OSError:  # another boot was faster, or it is not ours to remove
            continue


def _note_revision(base: Path, revision: str, commit: str) -> None:
    """Write `refs/<revision>` once the snapshot is whole; a cache that refuses it is no failure."""
    if revision == commit:
        return
    path = base / "refs" / revision
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, made = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(number, "w") as file:
            file.write(commit)
        Path(made).chmod(0o644)  # as the umask leaves others' files; mkstemp's is for us alone
        Path(made).replace(path)
    except OSError:
        return


if __name__ == "__main__":
    main()
