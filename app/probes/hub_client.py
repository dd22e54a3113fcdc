"""The hub's client as a download here uses it. Imported in the downloading child alone.

It is used as it is, but for what it has no setting for: how much of a body it gathers before it
writes, how long it waits by itself when the hub is busy, its locks, and a connection that is reset,
after which it would begin anew.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import constants, file_download, set_client_factory
from huggingface_hub.utils._fixes import WeakFileLock
from huggingface_hub.utils._http import default_client_factory, hf_raise_for_status
from huggingface_hub.utils.tqdm import tqdm

from app.probes.hub_errors import asked_to_wait

# The client's own 10 MiB look like a stall to us, and to another boot, on a line of 1 Mbit/s.
_CHUNK_BYTES = 256 * 1024
# A file system without locks: the client needs none to keep the cache whole, since every download
# writes to a file of its own name and renames it at the end.
_NO_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
# From making a lock file to writing its owner's number into it: no time at all, where that lives.
_TORN_S = 2.0


@dataclass
class State:
    """What the client is doing: the last HTTP status, locks that it waits for, bytes.

    `read_bytes` came over HTTP; `transferred_bytes` is what the client counts, with Xet's, which
    pass the HTTP client by, and in larger pieces.
    """

    read_bytes: int = 0
    transferred_bytes: int = 0
    status: int | None = None
    waiting: set[str] = field(default_factory=set)

    @property
    def received(self) -> int:
        """Bytes that have come."""
        return max(self.read_bytes, self.transferred_bytes)


def prepare(state: State, *, longest_wait_s: float, locks: bool) -> None:
    """Set the client up, once in a process.

    A wait that the hub asks for and that is longer than `longest_wait_s` becomes an error, which
    the parent waits out: it knows the deadline.
    """
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
    set_client_factory(lambda: _client(state, longest_wait_s))
    file_download.WeakFileLock = _locks(state, used=locks)  # type: ignore[attr-defined] # theirs


class _Counted(httpx.SyncByteStream):
    """A body whose bytes are counted as they come."""

    def __init__(self, inner: httpx.SyncByteStream, state: State) -> None:
        self._inner, self._state = inner, state

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._inner:
                self._state.read_bytes += len(chunk)
                yield chunk
        except httpx.ReadError as error:
            # The client resumes after a body that ends early, and not after a reset.
            raise httpx.RemoteProtocolError("the connection was reset") from error

    def close(self) -> None:
        self._inner.close()


def _client(state: State, longest_wait_s: float) -> httpx.Client:
    """The client's own HTTP client, which notes what it gets."""

    def note(response: httpx.Response) -> None:
        state.status = response.status_code
        if response.is_error and (asked_to_wait(response) or 0) > longest_wait_s:
            response.read()
            hf_raise_for_status(response)
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _Counted(response.stream, state)

    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), note]}
    return client


def _locks(state: State, *, used: bool) -> Any:  # noqa: ANN401 - takes the place of a vendor's
    """The client's lock, which tells when it waits, and is left out where none can be had."""

    @contextmanager
    def lock(lock_file: str | Path, *, timeout: float | None = None) -> Iterator[None]:
        with ExitStack() as stack:
            state.waiting.add(str(lock_file))
            try:
                if used:
                    _remove_torn(Path(lock_file))
                    stack.enter_context(WeakFileLock(lock_file, timeout=timeout))
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            finally:
                state.waiting.discard(str(lock_file))
            yield

    return lock


def _remove_torn(path: Path) -> None:
    """Without flock the file is the lock, and names its owner: an empty one was left by a kill.

    Nobody would ever take it over. With flock, all of them are empty and harmless.
    """
    found = _empty(path)
    if found is None or _has_flock(path):
        return
    time.sleep(_TORN_S)
    if _empty(path) == found:
        with suppress(OSError):
            path.unlink()


def _empty(path: Path) -> int | None:
    """The number of an empty file's inode, None for any other."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino if status.st_size == 0 else None


def _has_flock(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def counter(state: State) -> type[Any]:
    """A bar that draws nothing and counts what the client tells it has been transferred."""

    class Counter(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - tqdm's own
            self._counts = options.get("name", "") == "huggingface_hub.snapshot_download.transfer"
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                state.transferred_bytes += int(n or 0)

    return Counter
