"""Judges of the cache stage: is it known which model this is, and is all of it here."""

from __future__ import annotations

from app.checks import Check
from app.facts.cache import CacheFacts
from app.facts.disk import fault_of
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan


def resolved(facts: CacheFacts, _plan: Plan) -> Finding:
    """One repository at one commit, or one folder."""
    if facts.failure is not None:
        return facts.failure
    where = f"{facts.model_id}" + (f" at {facts.revision}" if facts.revision else "")
    expected = f"the files of {facts.requested_id}"
    if facts.ignored_revision is not None:
        return warned(
            f"BOOT_REVISION is not used: {facts.reason}",
            expected=f"revision {facts.ignored_revision}",
            actual=where,
            next_step="unset BOOT_REVISION, or name a repository of the hub",
        )
    return passed(f"{where} ({facts.reason})", expected=expected, actual=str(facts.folder))


def complete(facts: CacheFacts, _plan: Plan) -> Finding:
    """Everything that the folder itself promises is in it."""
    if facts.folder is None:
        return skipped("the model was not found")
    n_bytes = sum(entry.n_bytes or 0 for entry in facts.files)
    expected = "every file that the folder's index names, and no link that leads nowhere"
    if facts.list_problem:
        denied = fault_of(facts.list_errno) is Fault.CONFIG
        return failed(
            f"{facts.folder} cannot be listed: {facts.list_problem}",
            expected="a folder that this uid may read",
            actual=facts.list_problem,
            next_step="give this uid the right to read and enter it"
            if denied
            else "look at the mount, or take another node",
            fault=Fault.CONFIG if denied else Fault.READ_ERROR,
        )
    if facts.missing and facts.origin == "folder":
        return skipped(f"{facts.missing[0]} is missing: the checkpoint stage judges local folders")
    if facts.missing:
        return failed(
            f"{len(facts.missing)} file(s) of {facts.folder} are missing: {facts.missing[0]}",
            expected=expected,
            actual=f"missing: {listed(facts.missing)}",
            next_step="delete the repository's folder in the cache, and let it be downloaded again",
        )
    if not facts.files:
        # Nothing at all is an absent model (a volume that is not mounted), not a broken one.
        return failed(
            f"{facts.folder} holds no file",
            expected=expected,
            actual="no file",
            next_step="mount the model there, or correct BOOT_BASE_MODEL_ID",
            fault=Fault.MODEL_ABSENT,
        )
    return passed(
        f"{len(facts.files)} files, {n_bytes:,} bytes",
        expected=expected,
        actual=f"{len(facts.files)} files",
    )


CHECKS: tuple[Check[CacheFacts], ...] = (
    Check("cache.resolved", Fault.MODEL_ABSENT, "BOOT_BASE_MODEL_ID, BOOT_REVISION", resolved),
    Check("cache.complete", Fault.DATA_INVALID, "the folder's own index", complete),
)
