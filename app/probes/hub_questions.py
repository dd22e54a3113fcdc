"""What the hub is asked before a download: which commit it is, and which files that has.

Asked through the client, which is imported in the downloading child alone.
"""

from __future__ import annotations

from pathlib import Path

import httpx
from huggingface_hub import HfApi
from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from app.probes.files import stays_inside
from app.probes.hub_answer import CauseError, stranger
from app.probes.hub_cache import COMMIT

# What comes of reading JSON of another shape.
_ODD = (KeyError, TypeError, AttributeError, RecursionError)
_ASIDE_S = 5.0  # for a question whose answer only makes a finding clearer


def commit_of(api: HfApi, repository: str, revision: str | None, *, timeout_s: float) -> str:
    """The commit that a revision is. Raises the client's errors, CauseError for no hub's answer."""
    try:
        info = api.model_info(repository, revision=revision, timeout=timeout_s)
    except _ODD as error:
        raise stranger(error) from error
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise stranger()
    return info.sha


def has_revision(api: HfApi, repository: str, revision: str | None) -> bool | None:
    """Whether a repository has the revision; None where the hub does not say."""
    try:
        commit_of(api, repository, revision, timeout_s=_ASIDE_S)
    except RevisionNotFoundError:
        return False
    except (httpx.HTTPError, OSError, ValueError, CauseError):
        return None
    return True


def files_of(api: HfApi, repository: str, commit: str, base: Path) -> dict[str, TreeCacheEntry]:
    """All files of the commit, kept as the client keeps them, so that it does not ask again.

    `base` is the repository's folder in the cache. Raises as `commit_of` does.
    """
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
