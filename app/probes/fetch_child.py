"""Downloads one snapshot through the hub's client, in a process of its own that can be killed.

`python -P -m app.probes.fetch_child PARENT`: the order comes as one line of JSON on standard input
(the token among it, so that it stands in no argument and no environment), and lines of JSON go to
standard output: `listing`, then `progress` again and again, and last `done` or `cause`. After the
listing it waits for the line `go`. What libraries print goes nowhere. It dies with its parent.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from app.lifeline import die_with
from app.probes.hub_answer import Cause, CauseError, to_json
from app.probes.hub_cache import DEFAULT_REVISION, repository_folder, unfinished, wanted
from app.probes.hub_contents import misfit

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub._tree_cache import TreeCacheEntry

    from app.probes.hub_client import State

_BEAT_S = 0.5
# No download is silent for a day: what is older was left by a process that was killed.
_ABANDONED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to download. `asked` is the name before Unsloth's mapping.

    `locks`: whether to wait for another boot that downloads the same file. `ask_timeout_s` is for
    an answer which commit it is, `longest_wait_s` for a busy hub that asks to be left alone.
    """

    asked: str
    repository: str
    revision: str | None
    cache: str
    token: str | None
    endpoint: str | None
    pickles: bool
    locks: bool
    ask_timeout_s: float
    longest_wait_s: float

    @property
    def base(self) -> Path:
        """The repository's folder in the cache."""
        return repository_folder(self.cache, self.repository)


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
            self.tell(progress=[state.received, state.status, sorted(state.waiting)])
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
    order = Order(**json.loads(sys.stdin.readline()))
    try:
        _work(order, events)
    except ImportError as error:
        events.tell(cause=to_json(_not_importable(error)))
    except BaseException as error:
        events.tell(cause=_told(error, order))
        raise


def _told(error: BaseException, order: Order) -> dict[str, Any]:
    try:
        from app.probes.hub_errors import cause_of
    except ValueError as broken:  # a variable that the client cannot parse, at its import
        return to_json(_not_importable(broken))
    cause = cause_of(error)
    if cause.about == "revision" and order.asked != order.repository:
        from app.probes.hub_questions import has_revision

        elsewhere = has_revision(_api(order), order.asked, order.revision)
        cause = replace(cause, elsewhere=elsewhere)
    return to_json(cause)


def _not_importable(error: Exception) -> Cause:
    """The client itself: a broken environment, or a variable of its own with an odd value."""
    from app.outcome import Fault

    fault = Fault.CONFIG if isinstance(error, ValueError) else Fault.INTERNAL
    return Cause(fault, names=(type(error).__name__,), where="import huggingface_hub")


def _work(order: Order, events: _Events) -> None:
    from huggingface_hub import snapshot_download as download

    from app.probes.hub_client import State, counter, prepare
    from app.probes.hub_questions import commit_of, files_of

    state = State()
    prepare(state, longest_wait_s=order.longest_wait_s, locks=order.locks)
    threading.Thread(target=events.beat, args=(state,), daemon=True).start()
    api = _api(order)
    commit = commit_of(api, order.repository, order.revision, timeout_s=order.ask_timeout_s)
    entries = files_of(api, order.repository, commit, order.base)
    found = misfit(entries, pickles=order.pickles)
    if found is not None:
        raise CauseError(found)
    names = wanted(entries, pickles=order.pickles)
    snapshot = order.base / "snapshots" / commit
    events.tell(listing=_described(snapshot, {name: entries[name] for name in names}))
    if sys.stdin.readline().strip() != "go":
        return
    _remove_abandoned(order.base)
    download(
        order.repository,
        revision=commit,  # a commit: the client then never falls back to what happens to be there
        cache_dir=order.cache,
        token=order.token,
        endpoint=order.endpoint,
        allow_patterns=[glob.escape(name) for name in names],
        tqdm_class=counter(state),
    )
    _note_revision(order.base, order.revision or DEFAULT_REVISION, commit)
    events.tell(done={"commit": commit, "folder": str(snapshot)})


def _api(order: Order) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=order.endpoint, token=order.token)


def _described(snapshot: Path, entries: Mapping[str, TreeCacheEntry]) -> list[dict[str, Any]]:
    """What is to come: every file with the name of its blob, and whether it is there."""
    return [
        {
            "name": name,
            "size": entry.lfs_size or entry.size,
            "blob": entry.lfs_sha256 or entry.blob_id,
            "here": (snapshot / name).is_file(),
        }
        for name, entry in entries.items()
    ]


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
