"""Settings that are valid each for itself and cannot be meant together.

A leaf: imports only `app.settings_errors` and `app.settings_names`.
"""

from __future__ import annotations

from app.settings_errors import Problem
from app.settings_names import PREFIX

# What can only be a model on this machine; a relative folder looks like a name of the hub.
_LOCAL = ("/", "./", "../", "rehearsal:")


def nothing_to_train(one: str, other: str, *, either: bool) -> list[Problem]:
    """Of two switches, named by their fields, one at least must be on."""
    if either:
        return []
    return [
        Problem(
            f"{PREFIX}{one.upper()} or {PREFIX}{other.upper()}",
            expected="true",
            actual="false in both",
            suggestion="set one of the two to true: with neither there is nothing to train",
        )
    ]


def revision_of_local(revision: str | None, model: str | None) -> list[Problem]:
    """Only models of the hub have revisions."""
    if revision is None or not (model or "").startswith(_LOCAL):
        return []
    return [
        Problem(
            f"{PREFIX}REVISION",
            expected="unset for a local model",
            actual="set",
            suggestion="unset it: only models of the hub have revisions",
        )
    ]


def stops_early(stage: str | None, where: str) -> list[Problem]:
    """A boot that ends before what comes after its pass would silently not run it.

    `where` says what is to run then, as in "where BOOT_JOB is set".
    """
    if stage in (None, "job"):
        return []
    return [
        Problem(
            f"{PREFIX}STOP_AFTER",
            expected=f"unset or job {where}",
            actual=repr(stage),
            suggestion="unset it, or unset what is to run after the pass: a boot that stops"
            f" after {stage} would not run it",
        )
    ]


def two_to_run(job: str | None) -> list[Problem]:
    """A job beside a command: nobody can tell which of the two was meant."""
    if job is None:
        return []
    return [
        Problem(
            f"{PREFIX}JOB",
            expected="unset where a command follows --",
            actual="set",
            suggestion="unset it or leave the command away: one of the two is run after a pass",
        )
    ]
