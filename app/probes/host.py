"""Gathers the facts of the node: who runs here, what can be written, what is asked to run."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from app.facts.host import Folder, FolderFacts, HostFacts, cache_folders
from app.facts.job_target import JobTargetFacts
from app.facts.words import is_utf8, one_line
from app.plan import Plan
from app.probes.job_target import look, search_path_here
from app.probes.memory import probe_memory

_PROBE = ".bootguard-probe-"
_STALE_AFTER_S = 600.0  # a probe takes milliseconds


def probe_host(plan: Plan, environ: Mapping[str, str]) -> HostFacts:
    """Write to every folder that this boot will use, and read the rest."""
    report = Folder("report", str(plan.report_dir.absolute()), "BOOT_REPORT_DIR")
    folders = cache_folders(environ, plan.profile)
    return HostFacts(
        hostname=socket.gethostname(),
        uid=os.getuid(),
        n_cpus=len(os.sched_getaffinity(0)),
        report=probe_folder(report),
        caches=tuple(probe_folder(folder) for folder in folders.all()),
        memory=probe_memory(Path("/proc")),
        job=_job(plan, environ),
    )


def _job(plan: Plan, environ: Mapping[str, str]) -> JobTargetFacts | None:
    """The job's target as the worker will look for it."""
    return None if plan.job is None else look(plan.job, search_path_here(environ))


def probe_folder(folder: Folder) -> FolderFacts:
    """Do in the folder what will be done there, as this uid; it is created where missing.

    Permission bits prove nothing: root squash, read-only mounts, quotas and full disks show up
    only in a real write.
    """
    if not Path(folder.path).is_absolute():
        why = "a literal ~: HOME is unset and this uid has no account" if "~" in folder.path else ""
        return FolderFacts(folder, f"{folder.path!r} is not an absolute path{why and f' ({why})'}")
    if not is_utf8(folder.path):
        shown = one_line(folder.path, 400)
        return FolderFacts(folder, f"{shown} is no UTF-8, and few libraries can open such a path")
    path = Path(folder.path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_through(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        number = error.errno if isinstance(error, OSError) else None
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = getattr(error, "filename", None) or folder.path
        return FolderFacts(folder, f"{problem} ({where})", number, *_space(path))
    return FolderFacts(folder, "", None, *_space(path))


def write_through(folder: Path) -> None:
    """Create, fsync, rename and unlink one small file; leaves nothing behind.

    Raises:
        OSError: one of the four did not work.
    """
    _clear_stale(folder)
    name = f"{_PROBE}{os.getpid()}-{secrets.token_hex(4)}"
    first, second = folder / name, folder / f"{name}.renamed"
    try:
        handle = os.open(first, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # A page: a full disk still gives out empty files.
            os.write(handle, b"\0" * 4096)
            os.fsync(handle)
        finally:
            os.close(handle)
        first.rename(second)
        second.unlink()
    except OSError:
        for left in (first, second):
            with contextlib.suppress(OSError):
                left.unlink()
        raise


def _clear_stale(folder: Path) -> None:
    """Remove what killed boots have left; the age keeps it off those that run."""
    oldest = time.time() - _STALE_AFTER_S
    for left in folder.glob(f"{_PROBE}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < oldest:
                left.unlink()


def _space(path: Path) -> tuple[int | None, int | None]:
    """Bytes free to this uid and in total on the file system, None where it cannot be asked."""
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
