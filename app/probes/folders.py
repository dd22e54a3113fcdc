"""Does in a folder what will be done there, and asks its file system what it has and allows."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from app.facts.host import Folder, FolderFacts
from app.facts.scratch import FILE, PROBE, RENAMED
from app.facts.words import error_text, is_utf8, one_line
from app.probes.mounts import Mount, kind_of

_STALE_AFTER_S = 600.0  # a probe takes milliseconds
_PAGE = 4096
_MOST_LISTED = 2000
_SHOWN = 400  # characters of a path


def probe_folder(folder: Folder, table: tuple[Mount, ...] = ()) -> FolderFacts:
    """Do in the folder what will be done there, as this uid; it is made where its users make it.

    Permission bits prove nothing: root squash, read-only mounts, quotas and full disks show up
    only in a real write. `table` tells the type of its file system.
    """
    if folder.empty:
        why = f"{folder.variable} is set to nothing, and its reader takes that for a relative path"
        return FolderFacts(folder, why)
    if not Path(folder.path).is_absolute():
        shown = one_line(repr(folder.path), _SHOWN)
        return FolderFacts(folder, f"{shown} is not an absolute path{_of_tilde(folder.path)}")
    if not is_utf8(folder.path):
        shown = one_line(folder.path, _SHOWN)
        return FolderFacts(folder, f"{shown} is no UTF-8, and few libraries can open such a path")
    path = Path(folder.path)
    try:
        if folder.made:
            path.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))  # names the folder
        tried = write_through(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        number = error.errno if isinstance(error, OSError) else None
        problem = error_text(error)
        where = getattr(error, "filename", None) or folder.path
        if number == errno.EEXIST and Path(where).is_symlink():  # else mkdir would have had it
            problem = f"a link to {one_line(str(Path(where).readlink()))}, where nothing is"
        problem = f"{problem} ({one_line(str(where), _SHOWN)})"
        return _with_space(FolderFacts(folder, problem, number), path, table)
    facts = FolderFacts(folder, executable=tried.executable, lock_errno=tried.lock_errno)
    return _with_space(facts, path, table)


def _of_tilde(path: str) -> str:
    """Why a `~` is still there, after it was looked up."""
    if not path.startswith("~"):
        return ""
    account = path.partition("/")[0][1:]
    why = f"no account {one_line(account)}" if account else "HOME is unset, this uid has no account"
    return f" (a literal ~: {why})"


@dataclass(frozen=True, slots=True)
class Tried:
    """What a file system allows besides writing. None: not tried, or allowed."""

    executable: bool | None = None
    lock_errno: int | None = None


def write_through(folder: Path) -> Tried:
    """Create, fsync, rename and unlink one small file; leaves nothing behind.

    Where this process is killed meanwhile, whoever ends the boot removes the file.

    On the way the file is locked, as the hub's client locks a download, and mapped as code, as
    generated libraries are. Neither is an error here.

    Raises:
        OSError: one of the four did not work.
    """
    _clear_stale(folder)
    first, second = folder / FILE, folder / RENAMED
    try:
        handle = os.open(first, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # A page: a full disk still gives out empty files.
            os.write(handle, b"\0" * _PAGE)
            os.fsync(handle)
            tried = Tried(_can_map_code(handle), _lock(handle))
        finally:
            os.close(handle)
        first.rename(second)
        second.unlink()
    except BaseException:  # MemoryError too
        for left in (first, second):
            with contextlib.suppress(OSError):
                left.unlink()
        raise
    return tried


def _can_map_code(handle: int) -> bool | None:
    """A mount with `noexec` refuses this with EPERM, as it refuses to load a shared object."""
    try:
        mmap.mmap(handle, _PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        # Others (a file system without mmap, a policy of the kernel) are told by their use.
        return False if error.errno in (errno.EPERM, errno.EACCES, errno.ENODEV) else None
    return True


def _lock(handle: int) -> int | None:
    """The number with which `flock` is refused; on NFS that can be a server without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        return error.errno
    return None


def _clear_stale(folder: Path) -> None:
    """Remove what boots have left that were killed whole; the age keeps it off those that run.

    A shared folder for temporary files can have a million entries, on a slow network disk.
    """
    oldest = time.time() - _STALE_AFTER_S
    # A folder that may be written and not listed is a good one.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for left in itertools.islice(entries, _MOST_LISTED):
            if left.name.startswith(PROBE):
                with contextlib.suppress(OSError):
                    if left.stat(follow_symlinks=False).st_mtime >= oldest:
                        continue
                    if left.is_dir(follow_symlinks=False):  # a compiler's
                        shutil.rmtree(left.path, ignore_errors=True)
                    else:
                        Path(left.path).unlink()


def _with_space(facts: FolderFacts, path: Path, table: tuple[Mount, ...]) -> FolderFacts:
    """The facts with what the file system has; of the nearest folder above that is there."""
    near = next((each for each in (path, *path.parents) if _exists(each)), None)
    if near is None:
        return facts
    try:
        found, device = os.statvfs(near), near.stat().st_dev
        kind = kind_of(near.resolve(), table)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return facts
    return replace(
        facts,
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        # Btrfs and others make inodes as needed and count none.
        free_inodes=found.f_favail if found.f_files else None,
        device=device,
        file_system=kind,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
