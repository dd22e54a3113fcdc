"""Judges of folders: can the boot write where it will, lock files, run code from there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

from app.checks import Check
from app.checks._reach import only_read
from app.facts.disk import fault_of as disk_fault
from app.facts.host import FolderFacts, HostFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan

# Where shared objects are made and then loaded; Unsloth's folder holds Python only.
_LOADED_FROM = frozenset(("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"))


def caches_writable(facts: HostFacts, plan: Plan) -> Finding:
    """All of them, by name: libraries fail late and obscurely over the first that is not."""
    expected = "absolute paths in which this uid can create, fsync, rename and unlink a file"
    bad = [found for found in facts.caches if found.problem]
    shared = [found for found in bad if only_read(found, plan, facts)]
    bad = [found for found in bad if found not in shared]
    if not bad:
        kept = "; the hub's cache is only read, as it cannot be written" if shared else ""
        return passed(
            f"{len(facts.caches) - len(shared)} cache and temporary folders can be written{kept}",
            expected=expected,
            actual="; ".join(
                _named(found) if found.problem else found.folder.path for found in facts.caches
            ),
        )
    only_disk = all(disk_fault(found.errno) is Fault.READ_ERROR for found in bad)
    step = "free space on that disk, or take another node" if only_disk else _cache_step(bad, facts)
    return failed(
        f"{bad[0].folder.purpose}: {bad[0].problem}"
        + (f" (+{len(bad) - 1} more)" if len(bad) > 1 else ""),
        expected=expected,
        actual="; ".join(_named(found) for found in bad),
        next_step=step,
        fault=Fault.READ_ERROR if only_disk else None,
    )


def _cache_step(bad: Sequence[FolderFacts], facts: HostFacts) -> str:
    """The fewest variables that mend it: what lies below another bad folder moves with that."""
    account = facts.account
    roots = [found for found in bad if found.folder.variable == "XDG_CACHE_HOME"]
    apart = [
        found
        for found in bad
        if found in roots
        or not any(found.folder.path.startswith(f"{root.folder.path}/") for root in roots)
    ]
    empty = [found.folder.variable for found in apart if found.folder.empty]
    names = _variables(found for found in apart if not found.folder.empty)
    home = f"{('~' if account.home is None else account.home).rstrip('/')}/.cache/"
    by_home = any(found.folder.path.startswith(home) for found in bad)
    steps = [f"unset {', '.join(empty)}"] if empty else []
    if names:
        steps.append(
            f"set {names}{' (or HOME)' if by_home else ''} to absolute paths in UTF-8 that uid "
            f"{account.uid} may write to"
        )
    absent = [found for found in apart if not found.folder.made and found.errno == errno.ENOENT]
    steps += [f"or make the folder {one_line(found.folder.path)}" for found in absent]
    return ", ".join(steps)


def _variables(found: Iterable[FolderFacts]) -> str:
    return ", ".join(dict.fromkeys(each.folder.variable for each in found))


def caches_executable(facts: HostFacts, plan: Plan) -> Finding:
    """Triton and Inductor build shared objects at run time and load them where they wrote them."""
    if not plan.profile.needs_gpu:
        return skipped("no code is generated for a device in a rehearsal")
    watched = [found for found in facts.caches if found.folder.variable in _LOADED_FROM]
    tried = [found for found in watched if found.executable is not None]
    if not tried:
        return skipped("the folders of generated code could not be written, so not tried either")
    expected = "folders from which a shared object can be loaded (no noexec mount)"
    bad = [found for found in tried if not found.executable]
    if bad:
        variables = _variables(bad)
        return failed(
            f"{bad[0].folder.purpose}: code in {one_line(bad[0].folder.path)} cannot be run: "
            "the mount forbids it",
            expected=expected,
            actual=listed(f"{found.folder.path} ({_kind(found)}, noexec)" for found in bad),
            next_step=f"mount it without noexec, or set {variables} to folders on another disk",
        )
    return passed("generated code can be loaded from the caches", expected=expected)


def cache_locks(facts: HostFacts, _plan: Plan) -> Finding:
    """The hub's client locks every file that it fetches, so that two boots can share a cache."""
    hub = facts.caches[0]
    expected = "a file system on which a file can be locked (flock)"
    if hub.problem:
        return skipped("the hub's cache cannot be written")
    if hub.lock_errno is None:
        return passed("files of the hub's cache can be locked", expected=expected)
    why = os.strerror(hub.lock_errno)
    if hub.lock_errno == errno.ENOSYS:
        # filelock 4.3 then takes a lock file for the lock, and the hub's client logs that it does.
        return passed(
            f"the hub's cache has no locks ({why}): its client falls back to lock files",
            expected=expected,
            actual=_kind(hub),
        )
    return warned(
        f"files of the hub's cache in {one_line(hub.folder.path)} cannot be locked: {why}",
        expected=expected,
        actual=f"{_kind(hub)}: {why}",
        next_step="mount the file system with locks (NFS: nfsvers=4, or local_lock=flock), or move "
        f"the cache with {hub.folder.variable}; a download there fails",
    )


def _kind(found: FolderFacts) -> str:
    return found.file_system or "an unknown file system"


def _named(found: FolderFacts) -> str:
    folder = found.folder
    return f"{folder.purpose} [{folder.variable}] {one_line(folder.path, 400)}: {found.problem}"


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.caches_writable",
        Fault.CONFIG,
        "a real write as this uid",
        caches_writable,
        cause="HOME is / or unset for a uid without an account, a volume belongs to root, a root "
        "file system is read-only, or a disk or quota is full.",
        fix="Set HF_HOME and XDG_CACHE_HOME to a mounted folder that this uid may write to, as an "
        "absolute path, and TMPDIR where /tmp is read-only. A hub's cache that is read-only is "
        "fine where it holds the whole model.",
    ),
    Check(
        "host.caches_executable",
        Fault.CONFIG,
        "code mapped from a file there",
        caches_executable,
        cause="The volume of the caches is mounted with noexec, as many sites mount /tmp and home "
        "folders. Triton and Inductor load shared objects from where they have built them.",
        fix="Mount the volume without noexec, or set TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR "
        "to folders on another one.",
    ),
    Check(
        "host.cache_locks",
        Fault.CONFIG,
        "flock on a file there",
        cache_locks,
        Severity.WARNING,
        cause="The hub's cache lies on a network file system whose server gives out no locks.",
        fix="Mount it with locks (NFS version 4, or local_lock=flock where one node writes), or "
        "move the cache with HF_HOME to a disk of the node.",
    ),
)
