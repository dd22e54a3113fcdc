"""Whose fault a file of the model is that cannot be used, and the way out of it."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from app.facts.checkpoint import CheckpointFacts
from app.facts.disk import fault_of
from app.facts.words import listed
from app.outcome import Fault

# The folder is wrong, on any disk and for any account: something else is where a file should be.
_FOLDER = frozenset((errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG))


def fault_in(facts: CheckpointFacts, names: Iterable[str]) -> Fault | None:
    """A file that cannot be read is no broken file: rights are configuration, the rest a disk."""
    numbers = {facts.errnos[name] for name in names if name in facts.errnos} - _FOLDER
    if not numbers:
        return None
    denied = any(fault_of(number) is Fault.CONFIG for number in numbers)
    return Fault.CONFIG if denied else Fault.READ_ERROR


def step_for(facts: CheckpointFacts, problems: Mapping[str, str]) -> str:
    """What to do about files, by name and what is wrong with each."""
    names = listed(problems, 3)
    denied = [n for n in problems if fault_of(facts.errnos.get(n)) is Fault.CONFIG]
    if denied:
        return (
            f"give uid {facts.uid} the right to read {listed(denied, 3)} and to enter "
            f"{facts.folder}, or run as its owner"
        )
    if fault_in(facts, problems) is Fault.READ_ERROR:
        return "look at the mount, or take another node"
    if any("Git LFS" in problem for problem in problems.values()):
        return f"run `git lfs pull` in {facts.folder}"
    if all("byte order mark" in problem for problem in problems.values()):
        return f"save {names} as plain UTF-8, without the byte order mark"
    absent = all(
        problem == "missing" or facts.errnos.get(name) == errno.ENOENT
        for name, problem in problems.items()
    )
    if absent:
        return f"fetch {names} of the same revision from the model's source"
    return f"delete {names} and fetch it again from the model's source"
