"""Compares files of the hub's cache with what the hub has named them by.

The names are in the listing that the client keeps, and in the blobs' own names: a large file's blob
is named by the sha256 of its content, a small one's by git's hash of it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.facts.cache import BrokenFile, FileEntry, VerifyFacts
from app.plan import VerifyT
from app.probes.files import opened
from app.probes.hub_cache import Listed, read_listing

_SNAPSHOT = re.compile(r"(?P<base>.*/models--[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256_DIGITS = 64
_PIECE = 4 * 1024 * 1024
_SAY_EVERY_S = 5.0
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Means:
    """When a comparison must be over (monotonic), whom to tell, and the setting of the deadline."""

    until: float
    say: Callable[[str], object]
    limit: str = "BOOT_CACHE_TIMEOUT_S"


class _LateError(Exception):
    """The time is over."""


def verify(
    folder: Path, files: tuple[FileEntry, ...], how: VerifyT, means: Means
) -> VerifyFacts | None:
    """Compare every file of a snapshot; None where nothing was asked."""
    if how == "off":
        return None
    found = _SNAPSHOT.fullmatch(str(folder))
    if found is None:
        return VerifyFacts(skipped="the folder is no snapshot of the hub's cache")
    listing = read_listing(Path(found["base"]), found["commit"])
    if how == "size":
        if listing is None:
            return VerifyFacts(skipped="the hub's client has kept no listing of this commit")
        return _sizes(folder, files, listing)
    return _hashes(folder, files, listing or {}, means)


def _sizes(
    folder: Path, files: tuple[FileEntry, ...], listing: Mapping[str, Listed]
) -> VerifyFacts:
    broken = [
        BrokenFile(
            entry.name,
            f"{listing[entry.name].size:,} bytes",
            f"{entry.n_bytes:,} bytes",
            _to_delete(folder / entry.name),
        )
        for entry in files
        if entry.n_bytes is not None
        and entry.name in listing
        and listing[entry.name].size != entry.n_bytes
    ]
    known = [entry for entry in files if entry.name in listing]
    return VerifyFacts(
        n_compared=len(known),
        n_bytes=sum(entry.n_bytes or 0 for entry in known),
        not_comparable=tuple(entry.name for entry in files if entry.name not in listing),
        broken=tuple(broken),
    )


def _hashes(
    folder: Path, files: tuple[FileEntry, ...], listing: Mapping[str, Listed], means: Means
) -> VerifyFacts:
    expected = {
        entry.name: _expected(folder / entry.name, listing.get(entry.name)) for entry in files
    }
    names = [name for name, digest in expected.items() if digest is not None]
    unknown = tuple(name for name, digest in expected.items() if digest is None)
    reader = _Reader(sum(entry.n_bytes or 0 for entry in files if entry.name in names), means)
    broken: list[BrokenFile] = []
    for n_compared, name in enumerate(names):
        try:
            actual = reader.digest(
                folder / name, sha256=len(expected[name] or "") == _SHA256_DIGITS
            )
        except _LateError:
            return VerifyFacts(n_compared, reader.done, unknown, tuple(broken), late=means.limit)
        except OSError as error:
            problem = f"{name}: {error.strerror or error}"
            return VerifyFacts(
                n_compared, reader.done, unknown, tuple(broken), "", problem, error.errno
            )
        if actual != expected[name]:
            paths = _to_delete(folder / name)
            broken.append(BrokenFile(name, expected[name] or "", actual, paths))
    return VerifyFacts(len(names), reader.done, unknown, tuple(broken))


def _expected(path: Path, listed: Listed | None) -> str | None:
    """The hash that the hub gave: from its listing, else from the blob's name."""
    if listed is not None:
        digest = listed.sha256 or listed.blob_id
        return digest if _HASH.fullmatch(digest) else None
    try:
        target = path.readlink()
    except OSError:  # a copy, where the file system has no links
        return None
    return target.name if target.parent.name == "blobs" and _HASH.fullmatch(target.name) else None


def _to_delete(path: Path) -> tuple[str, ...]:
    """The link and the blob behind it; with one of them left the client would use it again."""
    real = path.resolve()
    return (str(path),) if real == path else (str(path), str(real))


class _Reader:
    """Hashes files one after the other, and tells how far it is."""

    def __init__(self, total: int, means: Means) -> None:
        self._total, self._means = total, means
        self._told = time.monotonic()
        self.done = 0

    def digest(self, path: Path, *, sha256: bool) -> str:
        """sha256 of the content, or git's hash of it (sha1 of a header and the content).

        Raises OSError for a file that cannot be read, _LateError when the time is over.
        """
        with opened(path) as file:
            if sha256:
                found = hashlib.sha256()
            else:
                n_bytes = path.stat().st_size
                found = hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)
            while piece := file.read(_PIECE):
                found.update(piece)
                self._beat(len(piece))
        return found.hexdigest()

    def _beat(self, n_bytes: int) -> None:
        self.done += n_bytes
        now = time.monotonic()
        if now >= self._means.until:
            raise _LateError
        if now - self._told >= _SAY_EVERY_S:
            self._told = now
            self._means.say(f"hashed {self.done / _MB:,.0f} of {self._total / _MB:,.0f} MB")
