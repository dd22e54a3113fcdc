"""Judges of the process itself: its account and its working folder."""

from __future__ import annotations

import os

from app.checks import Check
from app.facts.disk import fault_of as disk_fault
from app.facts.host import HostFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, warned
from app.plan import Plan

_OWN_RIGHTS = 0o700  # the bits of a umask that take the owner's rights


def account(facts: HostFacts, _plan: Plan) -> Finding:
    """A uid without an entry is handled; what it can write is judged by folder."""
    found, umask = facts.account, facts.machine.umask
    name = f" ({one_line(found.name)})" if found.name else ", without a passwd entry"
    home = "unset" if found.home is None else one_line(found.home) or "empty"
    expected = "an account that may use the files that it makes"
    if umask is None or not umask & _OWN_RIGHTS:
        return passed(f"uid {found.uid}{name}, gid {found.gid}, HOME {home}", expected=expected)
    reason = f"umask {umask:03o} takes from uid {found.uid} the rights to its own files"
    actual, step = f"umask {umask:03o}", "set umask 022 (or 077) where the job is started"
    judged = failed if found.uid else warned  # mostly root may use them all the same
    return judged(reason, expected=expected, actual=actual, next_step=step)


def working_folder(facts: HostFacts, _plan: Plan) -> Finding:
    """Relative paths begin there; without one Intel's MKL, a part of torch, ends the process."""
    number = facts.working_folder_errno
    expected = "a working folder that is there"
    if number is None:
        return passed("the working folder is there", expected=expected)
    disk = disk_fault(number) is Fault.READ_ERROR
    return failed(
        f"the working folder has no path: {os.strerror(number)}",
        expected=expected,
        actual=f"getcwd: {os.strerror(number)}",
        next_step="look at the mount that holds it, or start in a folder on another disk"
        if disk
        else "start in a folder that exists: it was removed after the job was started or submitted",
        fault=Fault.READ_ERROR if disk else None,
    )


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.account",
        Fault.CONFIG,
        "getuid, the account database, HOME and the umask",
        account,
        cause="The shell or service that started the job has set a umask that takes the owner's "
        "own rights. A uid without a passwd entry is handled; what it may not write is named by "
        "the checks of folders.",
        fix="Set umask 022 (or 077) where the job is started.",
    ),
    Check(
        "host.working_folder",
        Fault.CONFIG,
        "getcwd",
        working_folder,
        cause="The folder that the job was started in was removed since (a job's scratch folder, a "
        "checkout that was replaced), or its network mount is gone.",
        fix="Start it in a folder that stays: --chdir in Slurm, workingDir in Kubernetes, "
        "--workdir in Docker.",
    ),
)
