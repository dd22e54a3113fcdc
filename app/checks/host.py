"""Judges of the host stage: can the boot write where it will, is there room, is the job there."""

from __future__ import annotations

import errno
from difflib import get_close_matches

from app.checks import Check
from app.facts.disk import fault_of as disk_fault
from app.facts.host import FolderFacts, HostFacts, size
from app.facts.job_target import Found, JobTargetFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
# Unsloth's 4-bit Gemma 3n E2B is about 8 GB, and the hub writes a shard before it names it.
_ROOM_FOR_MODEL = 12 * GIB
_ROOM_FOR_CACHES = GIB  # Triton and Inductor: hundreds of MB after a few runs
_ROOM_FOR_REHEARSAL = GIB // 4  # the tiny model and its generated code: tens of MB


def report_dir(facts: HostFacts, _plan: Plan) -> Finding:
    """Without a report nobody learns what happened, so this one comes first."""
    found = facts.report
    expected = "a folder in which this uid can create, fsync, rename and unlink a file"
    if found.problem:
        return failed(
            f"the report folder {one_line(found.folder.path)} cannot be used: {found.problem}",
            expected=expected,
            actual=found.problem,
            next_step=_report_step(found, facts.uid),
            fault=Fault.CONFIG if found.errno is None else None,  # a path that is wrong by itself
        )
    return passed(f"{found.folder.path} can be written", expected=expected, actual="written")


def _report_step(found: FolderFacts, uid: int) -> str:
    """A full or broken disk needs no rights."""
    path, other = one_line(found.folder.path), f"point {found.folder.variable} at another folder"
    if found.errno in _FULL:
        return f"make room on the disk of {path} (or raise the quota), or {other}"
    if disk_fault(found.errno) is Fault.READ_ERROR:
        return f"look at the mount of {path}, take another node, or {other}"
    return (
        f"mount a folder that uid {uid} may write to and point {found.folder.variable} at it, "
        "as an absolute path in UTF-8"
    )


def caches_writable(facts: HostFacts, _plan: Plan) -> Finding:
    """All of them, by name: libraries fail late and obscurely over the first that is not."""
    expected = "absolute paths in which this uid can create, fsync, rename and unlink a file"
    bad = [found for found in facts.caches if found.problem]
    if not bad:
        return passed(
            f"{len(facts.caches)} cache and temporary folders can be written",
            expected=expected,
            actual="; ".join(found.folder.path for found in facts.caches),
        )
    only_disk = all(disk_fault(found.errno) is Fault.READ_ERROR for found in bad)
    variables = ", ".join(dict.fromkeys(found.folder.variable for found in bad))
    step = (
        "free space on that disk, or take another node"
        if only_disk
        else f"set {variables} (or HOME, or XDG_CACHE_HOME) to absolute paths in UTF-8 "
        f"that uid {facts.uid} may write to"
    )
    return failed(
        f"{bad[0].folder.purpose}: {bad[0].problem}"
        + (f" (+{len(bad) - 1} more)" if len(bad) > 1 else ""),
        expected=expected,
        actual="; ".join(_named(found) for found in bad),
        next_step=step,
        fault=Fault.READ_ERROR if only_disk else None,
    )


def disk(facts: HostFacts, plan: Plan) -> Finding:
    """Only warns: what is needed depends on what is cached already, and FUSE mounts report 0."""
    known = [found for found in facts.caches if found.free_bytes is not None]
    if not known:
        return skipped("no cache folder's file system says how much is free")
    low = [found for found in known if (found.free_bytes or 0) < _room(found, facts, plan)]
    actual = "; ".join(f"{found.folder.purpose} {size(found.free_bytes)} free" for found in known)
    expected = f"{size(_room(known[0], facts, plan))} for the hub's cache, a little elsewhere"
    if low:
        return warned(
            f"{low[0].folder.purpose}: only {size(low[0].free_bytes)} free on {low[0].folder.path}",
            expected=expected,
            actual=actual,
            next_step=f"free space there, or move it with {low[0].folder.variable}",
        )
    return passed(
        f"at least {size(min(f.free_bytes or 0 for f in known))} free",
        expected=expected,
        actual=actual,
    )


def memory(facts: HostFacts, _plan: Plan) -> Finding:
    """Records what there is; the need is forecast where the model is known."""
    found = facts.memory
    if found.total_bytes is None and found.limit_bytes is None:
        return skipped("neither /proc/meminfo nor a control group says how much memory there is")
    limit = (
        f"limit {size(found.limit_bytes)} ({found.limited_by})" if found.limit_bytes else "no limit"
    )
    return passed(
        f"{size(found.available_bytes)} available of {size(found.total_bytes)}, {limit}",
        actual=f"total {found.total_bytes}, limit {found.limit_bytes}, "
        f"available {found.available_bytes} bytes, {facts.n_cpus} CPUs",
    )


def job(facts: HostFacts, _plan: Plan) -> Finding:
    """A misspelt target, found now and not after the model is loaded."""
    found = facts.job
    if found is None:
        return skipped("no BOOT_JOB is asked for")
    module, _, function = found.target.partition(":")
    expected = f"a module {module} with a function {function}"
    if found.found is Found.FUNCTION:
        return passed(f"{found.target} is in {one_line(found.file)}", expected=expected)
    if found.found in (Found.MODULE, Found.UNKNOWN):
        reason = f"whether {found.target} is there shows only on import: {found.why}"
        return passed(reason, expected=expected, actual=found.file or found.why)
    reason, actual, step = _wrong_job(found, module, function)
    fault = disk_fault(found.errno) if found.found is Found.UNREADABLE else None
    return failed(reason, expected=expected, actual=actual, next_step=step, fault=fault)


def _wrong_job(found: JobTargetFacts, module: str, function: str) -> tuple[str, str, str]:
    """Reason, actual and next step of a target that cannot be called."""
    file = one_line(found.file)
    where = file + (f", line {found.line}" if found.line else "")
    match found.found:
        case Found.NO_MODULE:
            reason = f"the job's module is not found: {found.why}"
            return reason, f"looked in {listed(found.searched)}", _module_step(module)
        case Found.NO_FUNCTION:
            reason = f"the job's module has no {function}: {file or found.why}"
            actual = f"defined there: {listed(found.names) or 'no function'}"
            return reason, actual, _function_step(module, function, found.names)
        case Found.NOT_CALLED_SO:
            reason = f"the job's function cannot be called as it will be: {found.why}"
            step = f"define it as def {function}(model, tokenizer, report) ({where})"
            return reason, f"{found.why} ({where})", step
        case Found.BROKEN:
            reason = f"the job's module is no valid Python: {found.why} ({where})"
            return reason, f"{found.why} ({where})", f"correct {where}"
    reason = f"the job's module cannot be read: {found.why} ({file})"
    return reason, found.why, f"let this user read {file}, or look at its disk"


def _module_step(module: str) -> str:
    """Where a module has to lie."""
    first = module.partition(".")[0]
    if first == "app":
        return "give the package another name: `app` is bootguard's own, and comes first"
    return (
        f"correct BOOT_JOB, or let the folder that holds {first} be the working folder or in"
        f" PYTHONPATH: the working folder comes last, and the first {first} on the path counts"
    )


def _function_step(module: str, function: str, names: tuple[str, ...]) -> str:
    near = get_close_matches(function, names, n=1)
    if near:
        return f"set BOOT_JOB={module}:{one_line(near[0])}, or define {function} in {module}"
    return f"define {function} in {module}, or name another function in BOOT_JOB"


def _room(found: FolderFacts, facts: HostFacts, plan: Plan) -> int:
    """Bytes that should be free there before the boot."""
    if plan.profile.rehearsal:
        return _ROOM_FOR_REHEARSAL
    return _ROOM_FOR_MODEL if found is facts.caches[0] else _ROOM_FOR_CACHES


def _named(found: FolderFacts) -> str:
    folder = found.folder
    return f"{folder.purpose} [{folder.variable}] {one_line(folder.path, 400)}: {found.problem}"


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.report_dir",
        Fault.REPORT_UNWRITABLE,
        "a real write as this uid",
        report_dir,
    ),
    Check("host.caches_writable", Fault.CONFIG, "a real write as this uid", caches_writable),
    Check("host.job", Fault.CONFIG, "the module's file, not imported", job),
    Check("host.disk", Fault.CONFIG, "statvfs", disk, Severity.WARNING),
    Check(
        "host.memory",
        Fault.NODE_UNFIT,
        "/proc/meminfo and control groups",
        memory,
        Severity.WARNING,
    ),
)
