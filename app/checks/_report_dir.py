"""The judge of the report's folder."""

from __future__ import annotations

from app.checks import Check
from app.facts.disk import FULL
from app.facts.disk import fault_of as disk_fault
from app.facts.host import FolderFacts, HostFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
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


def report_mount(facts: HostFacts, plan: Plan) -> Finding:
    """Whether the report outlives the container. Outside an image a folder does as well."""
    found = facts.report
    if plan.baked is None:
        return skipped("this boot runs in no image of ours")
    if found.problem or None in (found.device, facts.root_device):
        return skipped("nothing tells where the report folder lies")
    if found.device == facts.root_device:
        path = one_line(found.folder.path)
        return warned(
            f"the report goes with the container: {path} is no mount",
            expected="a mounted folder or volume",
            actual=f"{path} lies on the container's own file system",
            next_step=f'mount a folder there (docker run -v "$PWD/reports:{path}"), or copy the '
            "report out before the container is removed (docker cp)",
        )
    return passed(f"{found.folder.path} is mounted")


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
    Check(
        "host.report_mount",
        Fault.REPORT_UNWRITABLE,
        "st_dev of the report folder and of /",
        report_mount,
        Severity.WARNING,
        cause="The container was started without a mount for its reports, or BOOT_REPORT_DIR names "
        "a folder beside the mount.",
        fix="Mount a folder or a volume where BOOT_REPORT_DIR points (/reports in our images).",
    ),
)
