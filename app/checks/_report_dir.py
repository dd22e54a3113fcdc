"""The judge of the report's folder."""

from __future__ import annotations

from app.checks import Check
from app.facts.disk import FULL
from app.facts.disk import fault_of as disk_fault
from app.facts.host import FolderFacts, HostFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan


def report_dir(facts: HostFacts, _plan: Plan) -> Finding:
    """Without a report nobody learns what happened, so this one comes first."""
    found = facts.report
    if facts.working_folder_errno is not None and not found.folder.path.startswith("/"):
        return skipped("its path is relative to a working folder that is not there")
    expected = "a folder in which this uid can create, fsync, rename and unlink a file"
    if found.problem:
        return failed(
            f"the report folder {one_line(found.folder.path)} cannot be used: {found.problem}",
            expected=expected,
            actual=found.problem,
            next_step=_report_step(found, facts.account.uid),
            fault=Fault.CONFIG if found.errno is None else None,  # a path that is wrong by itself
        )
    return passed(f"{found.folder.path} can be written", expected=expected, actual="written")


def _report_step(found: FolderFacts, uid: int) -> str:
    """A full or broken disk needs no rights."""
    path, other = one_line(found.folder.path), f"point {found.folder.variable} at another folder"
    if found.errno in FULL:
        return f"make room on the disk of {path} (or raise the quota), or {other}"
    if disk_fault(found.errno) is Fault.READ_ERROR:
        return f"look at the mount of {path}, take another node, or {other}"
    return (
        f"mount a folder that uid {uid} may write to and point {found.folder.variable} at it, "
        "as an absolute path in UTF-8"
    )


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.report_dir",
        Fault.REPORT_UNWRITABLE,
        "a real write as this uid",
        report_dir,
        cause="The folder is not mounted, belongs to another uid, is read-only, or its disk is "
        "full.",
        fix="Mount a folder that the container's uid may write to, and name it in BOOT_REPORT_DIR.",
    ),
)
