"""Finds the model: a folder, the rehearsal, or a repository of the hub at one commit."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app import rehearsal
from app.errors import BootError
from app.facts.cache import CacheFacts, FileEntry, VerifyFacts
from app.facts.host import cache_folders, expand
from app.plan import Plan
from app.probes.asked import absolute, doubted, in_the_way, not_utf8, refuse
from app.probes.fetch import Fetched, fetch
from app.probes.fetch_request import Means, Request
from app.probes.hub_cache import snapshot_at
from app.probes.names import read_tables, unsloth_models_folder
from app.probes.verify import verify
from app.probes.weights import missing_weights

# A first build takes about ten seconds on two cores.
_REHEARSAL_TIMEOUT_S = 600.0


def resolve_model(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    means: Means | None = None,
) -> CacheFacts:
    """Decide what is loaded, and see that its files are on this machine and as they should be."""
    means = means or Means()
    facts = _found(plan, environ, token, means)
    if facts.folder is None or facts.list_problem:
        return facts
    if facts.origin == "rehearsal":
        return replace(facts, verified=VerifyFacts(skipped="the rehearsal model is built here"))
    return replace(facts, verified=verify(facts.folder, facts.files, plan.verify, means))


def _found(plan: Plan, environ: Mapping[str, str], token: str | None, means: Means) -> CacheFacts:
    asked = plan.request.base_model_id
    folders = cache_folders(environ, plan.profile)
    if asked == rehearsal.MODEL_NAME:
        return _rehearsal(plan, Path(folders.root.path), environ)
    path = absolute(Path(expand(asked, environ)))
    found = in_the_way(path)
    if found is None:
        return _folder(plan, path)
    facts = CacheFacts(asked, asked, "hub", "")
    refused = refuse(asked, path, found)
    if refused is not None:
        return replace(facts, origin="folder", failure=refused)
    refused = not_utf8(folders.hub.path)
    if refused is not None:
        return replace(facts, failure=refused)
    try:
        facts = _mapped(plan, facts)
    except BootError as error:
        return replace(facts, failure=error.finding)
    # As the client has it, and absolute: the child may not depend on the working folder.
    hub = os.path.realpath(folders.hub.path)
    return _fetched(facts, fetch(Request(facts.model_id, hub, plan, environ, token, means)), path)


def _fetched(facts: CacheFacts, got: Fetched, path: Path) -> CacheFacts:
    if got.failure is not None:
        failure = got.failure if got.known else doubted(got.failure, facts.requested_id, path)
        return replace(facts, failure=failure, room=got.room)
    found = replace(
        facts,
        folder=got.folder,
        revision=got.commit,
        downloaded=got.downloaded,
        reason=f"{facts.reason}; {got.reason}",
        room=got.room,
        whole=got.whole,
    )
    return _with_files(found)


def _rehearsal(plan: Plan, cache: Path, environ: Mapping[str, str]) -> CacheFacts:
    facts = CacheFacts(
        rehearsal.MODEL_NAME,
        rehearsal.MODEL_NAME,
        "rehearsal",
        "built here, nothing is downloaded",
        ignored_revision=plan.revision,
    )
    refused = not_utf8(str(cache))
    if refused is not None:
        return replace(facts, failure=refused)
    try:
        folder = rehearsal.ensure(cache, environ, timeout_s=_REHEARSAL_TIMEOUT_S)
    except BootError as error:
        return replace(facts, failure=error.finding)
    return _with_files(replace(facts, folder=folder))


def _folder(plan: Plan, path: Path) -> CacheFacts:
    """A local folder is loaded as it is: no name mapping applies to it, in Unsloth neither."""
    asked = plan.request.base_model_id
    facts = CacheFacts(asked, str(path), "folder", "a local folder")
    refused = not_utf8(str(path))
    if refused is not None:
        return replace(facts, model_id=asked, failure=refused)
    snapshot = snapshot_at(path)  # a folder of the hub's cache knows its own origin
    if snapshot is not None:
        repository, commit = snapshot
        reason = f"{facts.reason}, a snapshot of {repository}"
        facts = replace(facts, reason=reason, revision=commit)
    if plan.revision not in {None, facts.revision}:
        facts = replace(facts, ignored_revision=plan.revision)
    return _with_files(replace(facts, folder=path))


def _mapped(plan: Plan, facts: CacheFacts) -> CacheFacts:
    """Unsloth's mapping, which its CPU backend does not do."""
    if not plan.profile.needs_gpu:
        return replace(facts, reason="the name as asked for: no mapping on the CPU backend")
    bits = plan.request.load_in_4bit
    name = read_tables(unsloth_models_folder()).resolve(facts.requested_id, load_in_4bit=bits)
    kind = "4-bit" if bits else "16-bit"
    if name == facts.requested_id:
        return replace(
            facts, reason=f"the name as asked for: Unsloth maps it to no {kind} repository"
        )
    reason = f"Unsloth's {kind} repository of {facts.requested_id}"
    if plan.revision is not None:
        # Unsloth drops a revision where it maps the name; here it is one of what is loaded.
        reason += f", and BOOT_REVISION {plan.revision} is a revision of that"
    return replace(facts, model_id=name, reason=reason)


def _with_files(facts: CacheFacts) -> CacheFacts:
    """List the folder, and what its own index names in vain."""
    if facts.folder is None:
        return facts
    try:
        files = _list_files(facts.folder)
        folders = () if files else _list_folders(facts.folder)
    except OSError as error:
        return replace(facts, list_problem=error.strerror or str(error), list_errno=error.errno)
    dangling = [entry.name for entry in files if entry.n_bytes is None]
    missing = dict.fromkeys((*missing_weights(facts.folder), *dangling))
    return replace(facts, files=files, folders=folders, missing=tuple(missing))


def _list_folders(folder: Path) -> tuple[str, ...]:
    """The folders in a folder, but for the one that a new disk has.

    Raises:
        OSError: the folder cannot be read.
    """
    found = (path for path in folder.iterdir() if path.name != "lost+found")
    return tuple(sorted(path.name for path in found if in_the_way(path) is None))


def _list_files(folder: Path) -> tuple[FileEntry, ...]:
    """The files of the folder itself, links followed; links that lead nowhere have no size.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[FileEntry] = []
    for name in sorted(path.name for path in folder.iterdir()):
        try:
            status = (folder / name).stat()
        except OSError:
            found.append(FileEntry(name, None))
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(FileEntry(name, status.st_size))
    return tuple(found)
