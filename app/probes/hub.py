"""Finds the model: a folder, the rehearsal, or a repository of the hub at one commit."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app import rehearsal
from app.errors import BootError
from app.facts.cache import CacheFacts, FileEntry
from app.facts.host import cache_folders, expand, offline_variable
from app.facts.words import is_utf8, one_line
from app.outcome import Fault, Finding, failed
from app.plan import Plan
from app.probes.names import read_tables, unsloth_models_folder
from app.probes.weights import missing_weights

if TYPE_CHECKING:
    from app.probes.fetch import Snapshot

# A first build takes about ten seconds on two cores.
REHEARSAL_TIMEOUT_S = 600.0
_LONGEST_NAME = 96  # characters, of a repository
# .../models--org--name/snapshots/<commit>: a folder of the hub's cache knows its own origin.
_SNAPSHOT = re.compile(r".*/models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")


def resolve_model(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    deadline_s: float = 1800.0,
    wait: Callable[[float], None] = time.sleep,
) -> CacheFacts:
    """Decide what is loaded, and see that its files are on this machine.

    `deadline_s` ends the retries, not a transfer that makes progress.
    """
    asked = plan.request.base_model_id
    folders = cache_folders(environ, plan.profile)
    if asked == rehearsal.MODEL_NAME:
        return _rehearsal(plan, Path(folders.root.path), environ)
    path = Path(expand(asked, environ))
    found = _in_the_way(path)
    if found is None:
        return _folder(plan, path.absolute())
    facts = CacheFacts(asked, asked, "hub", "")
    refused = _refuse(asked, path, found)
    if refused is not None:
        return replace(facts, origin="folder", failure=refused)
    refused = _not_utf8(folders.hub.path)
    if refused is not None:
        return replace(facts, failure=refused)
    facts = _mapped(plan, facts)
    # Imported here: the client costs a third of a second that folders and rehearsals need not pay.
    from app.probes.fetch import Request, fetch

    request = Request(
        repository=facts.model_id,
        revision=plan.revision,
        cache=folders.hub.path,
        token=token,
        endpoint=environ.get("HF_ENDPOINT") or None,
        allowed=plan.download == "if-missing",
        offline=offline_variable(environ),
        deadline_s=deadline_s,
        wait=wait,
    )
    return _fetched(facts, fetch(request), path)


def _fetched(facts: CacheFacts, got: Snapshot | Finding, path: Path) -> CacheFacts:
    if isinstance(got, Finding):
        return replace(facts, failure=_doubted(got, facts.requested_id, path))
    found = replace(
        facts,
        folder=got.folder,
        revision=got.commit,
        downloaded=got.downloaded,
        reason=f"{facts.reason}; {got.reason}",
    )
    return _with_files(found)


def _doubted(failure: Finding, asked: str, path: Path) -> Finding:
    """A relative folder that is not there looks like a name of the hub, so both are said."""
    shown = one_line(str(path.absolute()), 200)
    return replace(
        failure,
        reason=f"there is no folder {shown}, so {asked} is taken for a name of the hub: "
        f"{failure.reason}",
        next_step=f"{failure.next_step}; for a folder, mount it there or give its whole path in "
        "BOOT_BASE_MODEL_ID",
    )


def _rehearsal(plan: Plan, cache: Path, environ: Mapping[str, str]) -> CacheFacts:
    facts = CacheFacts(
        rehearsal.MODEL_NAME,
        rehearsal.MODEL_NAME,
        "rehearsal",
        "built here, nothing is downloaded",
        ignored_revision=plan.revision,
    )
    refused = _not_utf8(str(cache))
    if refused is not None:
        return replace(facts, failure=refused)
    try:
        folder = rehearsal.ensure(cache, environ, timeout_s=REHEARSAL_TIMEOUT_S)
    except BootError as error:
        return replace(facts, failure=error.finding)
    return _with_files(replace(facts, folder=folder))


def _folder(plan: Plan, path: Path) -> CacheFacts:
    """A local folder is loaded as it is: no name mapping applies to it, in Unsloth neither."""
    refused = _not_utf8(str(path))
    if refused is not None:
        asked = plan.request.base_model_id
        return CacheFacts(asked, asked, "folder", "a local folder", failure=refused)
    found = _SNAPSHOT.fullmatch(str(path))
    facts = CacheFacts(
        requested_id=plan.request.base_model_id,
        model_id=str(path),
        origin="folder",
        reason=f"a local folder, a snapshot of {found['repo'].replace('--', '/')}"
        if found
        else "a local folder",
        folder=path,
        revision=found["commit"] if found else None,
    )
    if plan.revision not in {None, facts.revision}:
        facts = replace(facts, ignored_revision=plan.revision)
    return _with_files(facts)


def _in_the_way(path: Path) -> str | None:
    """None for a folder; else what is there instead, empty when nothing is."""
    try:
        return None if stat.S_ISDIR(path.stat().st_mode) else "a file, and a model is a folder"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def _not_utf8(path: str) -> Finding | None:
    """Why a folder must not hold the model; safetensors opens no such file, nor does a report."""
    if is_utf8(path):
        return None
    return failed(
        f"the path {one_line(path, 400)} is no UTF-8, and weights in it cannot be opened",
        expected="a path in UTF-8",
        actual=one_line(path, 400),
        next_step="name or mount the folder under a path in UTF-8 (BOOT_BASE_MODEL_ID, the working "
        "folder, HF_HOME, XDG_CACHE_HOME, HOME)",
        fault=Fault.CONFIG,
    )


def _refuse(asked: str, path: Path, found: str) -> Finding | None:
    """What is neither an existing folder nor a possible name of the hub."""
    if found or asked.startswith(("/", ".", "~", "$")) or asked.count("/") > 1 or asked[-1:] == "/":
        return failed(
            f"there is no model folder {one_line(str(path))}" + (f": {found}" if found else ""),
            expected="a folder with config.json, tokenizer and *.safetensors",
            actual=found or "nothing at that path",
            next_step="mount the model into the container where this uid may read it, or correct "
            "BOOT_BASE_MODEL_ID",
            fault=Fault.MODEL_ABSENT,
        )
    # huggingface_hub's rule (utils/_validators.py), without its import.
    parts = asked.split("/")
    valid = (
        len(asked) <= _LONGEST_NAME
        and "--" not in asked
        and ".." not in asked
        and all(re.fullmatch(r"\w(?:[\w.-]*\w)?", part, re.ASCII) for part in parts)
    )
    if valid and not asked.endswith(".git"):
        return None
    return failed(
        f"{asked!r} is neither a folder nor a name of the hub",
        expected="a folder, organisation/name, or " + rehearsal.MODEL_NAME,
        actual=repr(asked),
        next_step="correct BOOT_BASE_MODEL_ID",
        fault=Fault.CONFIG,
    )


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
    return replace(
        facts, model_id=name, reason=f"Unsloth's {kind} repository of {facts.requested_id}"
    )


def _with_files(facts: CacheFacts) -> CacheFacts:
    """List the folder, and what its own index names in vain."""
    if facts.folder is None:
        return facts
    try:
        files = list_files(facts.folder)
    except OSError as error:
        return replace(facts, list_problem=error.strerror or str(error), list_errno=error.errno)
    dangling = [entry.name for entry in files if entry.n_bytes is None]
    missing = missing_weights(facts.folder)
    return replace(facts, files=files, missing=tuple(dict.fromkeys((*missing, *dangling))))


def list_files(folder: Path) -> tuple[FileEntry, ...]:
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
