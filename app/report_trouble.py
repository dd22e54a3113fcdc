"""Checks about the report itself: a folder that takes none, or that others write to as well."""

from __future__ import annotations

import errno

from app.outcome import Fault, failed, warned
from app.report import CheckRecord

_MOUNT = "mount a writable volume there, or point BOOT_REPORT_DIR at one"
_ROOM = "make room there, or point BOOT_REPORT_DIR at another volume"
_LIMITS = "raise the limits of processes and of open files (pids.max, ulimit -u and -n)"
_NEXT_STEPS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EAGAIN: _LIMITS,
    errno.EMFILE: _LIMITS,
    errno.ENFILE: _LIMITS,
}


def unwritable(stage: str, place: str, error: OSError) -> CheckRecord:
    """The report could not be written there, found in that stage."""
    finding = failed(
        f"the report cannot be written to {place}: {error}",
        expected="a writable folder with room for the report",
        actual=f"{type(error).__name__} errno {error.errno}",
        next_step=_NEXT_STEPS.get(error.errno or 0, _MOUNT),
        fault=Fault.REPORT_UNWRITABLE,
    )
    return CheckRecord.of(stage, "host.report_written", finding, source="BOOT_REPORT_DIR")


def shared(place: str) -> CheckRecord:
    """Two boots write into one folder: neither may do so unseen."""
    finding = warned(
        f"another boot writes {place} too: each moves the other's report to previous/",
        expected="a report folder for each boot that runs",
        actual="another boot's report in our place",
        next_step="give each boot a BOOT_REPORT_DIR of its own",
    )
    return CheckRecord.of("host", "host.report_shared", finding, source="BOOT_REPORT_DIR")
