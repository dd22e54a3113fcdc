"""Writes the report so that a reader never sees half of one, whatever ends the process.

Temporary file in the same folder, fsync, `os.replace`, fsync of the folder. A report of another
boot, earlier or at the same time, is moved to `previous/` first, never overwritten. Once a report
is in its folder, that folder is the only one: where another stands in its place (a volume that was
unmounted leaves the mount point) nothing is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from app.redaction import redacted
from app.report import REPORT_NAME, Report

# Ids stand at the top of a report; nothing longer of a foreign file is read.
_HEAD_BYTES = 4096
_FIELD = r'^\s*"{name}": (?:"(?P<text>[^"\\]*)"|(?P<other>\w+)),?$'
# How long another boot may keep the folder locked: a write takes milliseconds, one that hangs is
# not waited for, since the lock only makes a narrow race narrower still.
_LOCK_S = 0.5

Place = tuple[int, int]  # st_dev, st_ino


class ReportFile:
    """The report of this run in `folder`. Raises OSError where the folder does not let it.

    `known` is the place of the folder where an earlier process has written this report already.
    """

    def __init__(self, folder: Path, *, known: Place | None = None) -> None:
        self.path = folder / REPORT_NAME
        self.place = known
        # Kept open: numbers of inodes are only sure while the inode is in use (overlays, FUSE).
        self._folder: int | None = None

    def write(self, report: Report) -> str:
        """Replace the report by this state of it; see `write_text`."""
        return self.write_text(report.model_dump_json(indent=2) + "\n", report.report_id)

    def write_text(self, text: str, report_id: str) -> str:
        """Replace the report by `text`, a report as JSON.

        Returns where another boot's report went that stood in the place of ours, empty if none: two
        boots write into this folder. What the first write finds is an earlier boot's, and normal.
        """
        mine = self.place is not None
        self._enter()
        with _locked(self._folder):
            moved = self._keep_other(report_id)
            self._put(text, report_id)
        return moved if mine else ""

    def close(self) -> None:
        """Let go of the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _enter(self) -> None:
        """Make the folder and open it; after a first write only see that it is still the same."""
        folder = self.path.parent
        if self.place is None:
            self.close()  # what a failed write has opened may be another folder by now
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = _opened(folder)
            return
        if self._folder is None:
            self._folder = _opened(folder)
        if not _place(os.fstat(self._folder)) == self.place == _place(folder.stat()):
            raise OSError(
                errno.ESTALE,
                "the folder that the report was written to is gone and another one stands there: "
                "its volume was unmounted or replaced",
                str(folder),
            )

    def _put(self, text: str, report_id: str) -> None:
        # The report's id in the name: two containers may share a folder, and both have process 1.
        temporary = self.path.with_name(f".{self.path.name}.{report_id}.tmp")
        try:
            # In JSON a lone surrogate may stand escaped, as the handler escapes it.
            with temporary.open("w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            self._replace(temporary, report_id)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if self._folder is not None:
            # Make the rename durable. Some network file systems cannot fsync a folder: tolerated.
            with contextlib.suppress(OSError):
                os.fsync(self._folder)
            self.place = _place(os.fstat(self._folder))

    def _replace(self, temporary: Path, report_id: str) -> None:
        try:
            temporary.replace(self.path)
        except FileNotFoundError:
            # A network file system may repeat a rename whose answer was lost: then it succeeded.
            if _head(self.path).get("report_id") != report_id:
                raise

    def _keep_other(self, report_id: str) -> str:
        """Move whatever stands in the report's place and is not ours, under a name of its own.

        Returns the new name, empty where nothing was moved.
        """
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return ""
        head = _head(self.path) if stat.S_ISREG(found.st_mode) else {}
        if head.get("report_id") == report_id:
            return ""
        label = _label(head) or f"unreadable-{found.st_mtime_ns}"
        previous = self.path.parent / "previous"
        target = previous / f"{self.path.stem}.{label}.json"
        try:
            previous.mkdir(exist_ok=True)
            self.path.rename(target)
        except (FileExistsError, NotADirectoryError):  # something else is called `previous`
            target = self.path.with_name(f"previous.{target.name}")
            self.path.rename(target)
        except FileNotFoundError:  # another boot has moved it just now
            return ""
        return str(target)


@contextlib.contextmanager
def _locked(folder: int | None) -> Iterator[None]:
    """Keep other boots from this folder between the look at what stands there and the rename.

    Where the file system has no such lock, or somebody keeps it, the write goes on without.
    """
    end = time.monotonic() + _LOCK_S
    held = False
    while folder is not None and not held:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(0.005)
        except OSError:
            break
    try:
        yield
    finally:
        if held and folder is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_UN)


def _place(found: os.stat_result) -> Place:
    return found.st_dev, found.st_ino


def _opened(folder: Path) -> int:
    """The folder as a descriptor; one that may be written but not listed cannot be synced."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return os.open(folder, os.O_PATH | os.O_DIRECTORY)


def _head(path: Path) -> dict[str, str]:
    """Report id, run id and attempt of a report, by its first bytes; empty for other files."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    found = {}
    for name in ("report_id", "run_id", "attempt"):
        match = re.search(_FIELD.replace("{name}", name), text, re.MULTILINE)
        if match:
            found[name] = match["text"] if match["text"] is not None else match["other"]
    return found


def _label(head: dict[str, str]) -> str:
    """A part of a file name from a report's ids; empty where it has none."""
    if not head.get("report_id"):
        return ""
    run_id = "run" if head.get("run_id") in (None, "null") else head["run_id"]
    parts = (run_id, head.get("attempt", "1"), head["report_id"])
    return "-".join(re.sub(r"[^A-Za-z0-9.]", "_", redacted(part))[:64] for part in parts)
