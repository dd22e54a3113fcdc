"""The hub's cache as it lies on the disk, read without the client: its import costs 0.3 s.

The layout is huggingface_hub 1.33's: `models--org--name/` with `refs/<revision>` (a commit),
`snapshots/<commit>/` (links into `blobs/`, which are named by their hash), and since 1.32
`trees/<commit>.json`, the listing that the hub gave for the commit.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.facts import disk
from app.probes.files import read_bytes, stays_inside
from app.probes.weights import CONFIG, JSON_LIMIT, choose_weights

DEFAULT_REVISION = "main"
# What a load reads. Other frameworks' weights and second copies stay on the hub.
_ALLOW = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
# Asked for besides where pickles are allowed and the repository has no safetensors.
_PICKLES = ("pytorch_model*.bin",)
_IGNORE = ("original/*", "onnx/*", "gguf/*", "consolidated*", "checkpoint-*/*", "runs/*")
INCOMPLETE = ".incomplete"  # the end of the client's name for a download that has not ended
COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r".*/models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")
# One of them, or nothing can be tokenised: fast; sentencepiece; byte pairs; words; tiktoken.
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("vocab.json", "vocab.txt", "tekken.json", "source.spm"),
)
_LISTING_VERSION = 1
_LONGEST_REF = 256  # bytes; a commit has 40


@dataclass(frozen=True, slots=True)
class Listed:
    """One file as the hub listed it: size in bytes, the git hash of its blob, sha256 of large ones.

    For a large file the git hash is that of its pointer, not of its content.
    """

    size: int
    blob_id: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Cached:
    """A snapshot of the cache. `lacking` are files or kinds of files that it has not."""

    folder: Path
    commit: str
    lacking: tuple[str, ...]
    listing: Mapping[str, Listed] | None
    n_unfinished: int = 0

    @property
    def in_doubt(self) -> bool:
        """Complete by its own files, but without a listing and beside an unfinished download."""
        return not self.lacking and self.listing is None and self.n_unfinished > 0


def repository_folder(cache: str, repository: str) -> Path:
    """Where the cache keeps a model repository."""
    return Path(cache) / ("models--" + repository.replace("/", "--"))


def snapshot_at(folder: Path) -> tuple[str, str] | None:
    """Repository and commit of a snapshot of the cache, by its path; None for another folder."""
    found = _SNAPSHOT.fullmatch(str(folder))
    return None if found is None else (found["repository"].replace("--", "/"), found["commit"])


def wanted(names: Iterable[str], *, pickles: bool = False) -> list[str]:
    """The files of a repository that a load reads, by the client's own way to match patterns."""
    found = list(names)
    if pickles and not any(name.endswith(".safetensors") for name in found):
        allow: tuple[str, ...] = (*_ALLOW, *_PICKLES)
    else:
        allow = _ALLOW
    return [
        name
        for name in found
        if any(fnmatch.fnmatch(name, pattern) for pattern in allow)
        and not any(fnmatch.fnmatch(name, pattern) for pattern in _IGNORE)
    ]


def find_snapshot(
    cache: str, repository: str, revision: str | None, *, pickles: bool = False
) -> Cached | None:
    """The snapshot of that revision, complete or not; None where the cache has none.

    Raises:
        OSError: this uid may not look, or the disk does not answer.
    """
    base = repository_folder(cache, repository)
    commit = _commit(base, revision or DEFAULT_REVISION)
    folder = base / "snapshots" / (commit or "")
    if commit is None or not folder.is_dir():
        return None
    listing = read_listing(base, commit)
    names = wanted(listing, pickles=pickles) if listing else []
    if names:
        lacking = [name for name in names if not (folder / name).is_file()]
    else:
        lacking = _lacking(folder, pickles=pickles)
    return Cached(folder, commit, tuple(lacking), listing, len(unfinished(base)))


def commits(cache: str, repository: str) -> tuple[str, ...]:
    """Every commit that the cache has a snapshot of, complete or not."""
    try:
        names = os.listdir(repository_folder(cache, repository) / "snapshots")  # noqa: PTH208
    except OSError:
        return ()
    return tuple(sorted(name for name in names if COMMIT.fullmatch(name)))


def read_listing(base: Path, commit: str) -> dict[str, Listed] | None:
    """The hub's listing of a commit, None where the client has kept none that can be read."""
    try:
        text, size = read_bytes(base / "trees" / f"{commit}.json", JSON_LIMIT)
        data = json.loads(text) if size <= JSON_LIMIT else None
        if not isinstance(data, dict) or data.get("format_version") != _LISTING_VERSION:
            return None
        found = {name: _listed(entry) for name, entry in data["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    # Names come from outside, and are looked up below the snapshot.
    return {name: entry for name, entry in found.items() if stays_inside(name)}


def unfinished(base: Path) -> list[Path]:
    """Downloads into this repository that have not ended, or that a killed process has left."""
    try:
        names = os.listdir(base / "blobs")  # noqa: PTH208 - names only
    except OSError:
        return []
    return [base / "blobs" / name for name in names if name.endswith(INCOMPLETE)]


def blob_sizes(base: Path) -> dict[str, int]:
    """How far every file is that is or becomes a blob: a number that grows while one is written.

    Length and allocation together, in bytes: a file may be made as long as it will be first.
    """
    found: dict[str, int] = {}
    try:
        with os.scandir(base / "blobs") as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:  # renamed or removed meanwhile
                    continue
                found[entry.name] = status.st_size + status.st_blocks * 512
    except OSError:
        return {}
    return found


def _commit(base: Path, revision: str) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    if not stays_inside(revision):
        return None
    try:
        text, _ = read_bytes(base / "refs" / revision, _LONGEST_REF)
    except OSError as error:
        if disk.fault_of(error.errno):
            raise
        return None
    except ValueError:  # a name that no file can have
        return None
    commit = text.decode(errors="replace").strip()
    return commit if COMMIT.fullmatch(commit) else None


def _lacking(folder: Path, *, pickles: bool) -> list[str]:
    """Without a listing: config, a tokenizer, and every weight file that config or index name.

    A file that is there and broken is not lacking: the checkpoint stage says what it is.
    """
    lacking = [] if (folder / CONFIG).is_file() else [CONFIG]
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        lacking.append("a tokenizer")
    choice = choose_weights(folder)
    missing = [name for name in choice.files if not (folder / name).is_file()]
    lacking += missing
    has_pickles = pickles and any(folder.glob(_PICKLES[0]))
    if not choice.files and not choice.index_problem and not has_pickles:
        lacking.append("weights")
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        return lacking
    dangling = [name for name in sorted(names) if not (folder / name).exists()]
    return [*lacking, *(name for name in dangling if name not in lacking)]


def _listed(entry: Mapping[str, object]) -> Listed:
    size, blob, sha256 = entry["size"], entry["blob_id"], entry.get("lfs_sha256")
    if not isinstance(size, int) or not isinstance(blob, str):
        raise TypeError("no size or no hash")
    large = entry.get("lfs_size")
    return Listed(
        size=large if isinstance(large, int) and isinstance(sha256, str) else size,
        blob_id=blob,
        sha256=sha256 if isinstance(sha256, str) else None,
    )
