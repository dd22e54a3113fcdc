"""Compares files of the hub's cache with what the hub has named them by.

The names are in the listing that the client keeps, and in the blobs' own names: a large file's blob
is named by the sha256 of its content, a small one's by git's hash of it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.facts.cache import BrokenFile, FileEntry, VerifyFacts
from app.plan import VerifyT
from app.probes.fetch_request import Means
from app.probes.files import opened
from app.probes.hub_cache import Listed, read_listing, snapshot_at

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256_DIGITS = 64
_PIECE = 4 * 1024 * 1024
_SAY_EVERY_S = 5.0
_MB = 1e6


class _LateError(Exception):
    """The time is over."""


def verify(
    folder: Path, files: tuple[FileEntry, ...], how: VerifyT, means: Means
) -> VerifyFacts | None:
    """Compare every file of a snapshot; None where nothing was asked.

    A link that leads nowhere is a missing file, and no broken one.
    """
    if how == "off":
        return None
    snapshot = snapshot_at(folder)
    if snapshot is None:
        return VerifyFacts(skipped="the folder is no snapshot of the hub's cache")
    listing = read_listing(folder.parents[1], snapshot[1])
    sizes = {entry.name: entry.n_bytes for entry in files if entry.n_bytes is not None}
    if how == "sha256":
        return _hashes(folder, sizes, listing or {}, means)
    if listing is None:
        return VerifyFacts(skipped="the hub's client has kept no listing of this commit")
    return _sizes(folder, sizes, listing)


def _sizes(folder: Path, sizes: Mapping[str, int], listing: Mapping[str, Listed]) -> VerifyFacts:
    known = {name: n_bytes for name, n_bytes in sizes.items() if name in listing}
    broken = [
        BrokenFile(
            name,
            f"{listing[name].size:,} bytes",
            f"{n_bytes:,} bytes",
            _to_delete(folder / name),
        )
        for name, n_bytes in known.items()
        if n_bytes != listing[name].size
    ]
    return VerifyFacts(
        n_compared=len(known),
        n_bytes=sum(known.values()),
        not_comparable=tuple(name for name in sizes if name not in listing),
        broken=tuple(broken),
    )


def _hashes(
    folder: Path, sizes: Mapping[str, int], listing: Mapping[str, Listed], means: Means
) -> VerifyFacts:
    digests = {name: _expected(folder / name, listing.get(name)) for name in sizes}
    expected = {name: digest for name, digest in digests.items() if digest is not None}
    found = VerifyFacts(not_comparable=tuple(name for name in sizes if name not in expected))
    reader = _Reader(sum(sizes[name] for name in expected), means)
    for name, digest in expected.items():
        path = folder / name
        try:
            actual = reader.digest(path, sha256=len(digest) == _SHA256_DIGITS)
        except _LateError:
            return replace(found, late=means.setting)
        except OSError as error:
            problem = f"{name}: {error.strerror or error}"
            return replace(found, problem=problem, errno=error.errno)
        found = replace(found, n_compared=found.n_compared + 1, n_bytes=reader.done)
        if actual != digest:
            broken = BrokenFile(name, digest, actual, _to_delete(path))
            found = replace(found, broken=(*found.broken, broken))
    return found


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
        if self._means.left_s <= 0:
            raise _LateError
        if now - self._told >= _SAY_EVERY_S:
            self._told = now
            self._means.say(f"hashed {self.done / _MB:,.0f} of {self._total / _MB:,.0f} MB")
