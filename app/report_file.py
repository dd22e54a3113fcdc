"""Writes the report so that a reader never sees half of one, whatever ends the process.

Temporary file in the same folder, fsync, `os.replace`, fsync of the folder. A report of another
boot, earlier or at the same time, is moved to `previous/` first, never overwritten.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from app.report import REPORT_NAME, Report

# Ids stand at the top of a report; nothing longer of a foreign file is read.
_HEAD_BYTES = 4096
_FIELD = r'^\s*"{name}": (?:"(?P<text>[^"\\]*)"|(?P<other>\w+)),?$'


class ReportFile:
    """The report of this run in `folder`. Raises OSError where the folder does not let it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT_NAME

    def write(self, report: Report) -> None:
        """Replace the report by this state of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._keep_other(report.report_id)
        # The report's id in the name: two containers may share a folder, and both have process 1.
        temporary = self.path.with_name(f".{REPORT_NAME}.{report.report_id}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(report.model_dump_json(indent=2) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            self._replace(temporary, report.report_id)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(self.path.parent)

    def _replace(self, temporary: Path, report_id: str) -> None:
        try:
            temporary.replace(self.path)
        except FileNotFoundError:
            # A network file system may repeat a rename whose answer was lost: then it succeeded.
            if _head(self.path).get("report_id") != report_id:
                raise

    def _keep_other(self, report_id: str) -> None:
        """Move whatever stands in the report's place and is not ours, under a name of its own."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        head = _head(self.path) if stat.S_ISREG(found.st_mode) else {}
        if head.get("report_id") == report_id:
            return
        label = _label(head) or f"unreadable-{found.st_mtime_ns}"
        previous = self.path.parent / "previous"
        name = f"boot-report.{label}.json"
        try:
            previous.mkdir(exist_ok=True)
            self.path.rename(previous / name)
        except (FileExistsError, NotADirectoryError):  # something else is called `previous`
            self.path.rename(self.path.with_name(f"previous.{name}"))
        except FileNotFoundError:  # another boot has moved it just now
            return


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
    return "-".join(re.sub(r"[^A-Za-z0-9.]", "_", part)[:64] for part in parts)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. Some network file systems cannot fsync a folder: tolerated."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
