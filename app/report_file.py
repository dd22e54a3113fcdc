"""Writes the report so that a reader never sees half of one, whatever ends the process.

Temporary file in the same folder, fsync, `os.replace`, fsync of the folder. The report of an
earlier run is moved to `previous/` first, never overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from app.report import REPORT_NAME, Report


class ReportFile:
    """The report of this run in `folder`. Raises OSError where the folder does not let it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT_NAME
        self._earlier_kept = False

    def write(self, report: Report) -> None:
        """Replace the report by this state of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._earlier_kept:
            self._keep_earlier()
            self._earlier_kept = True
        text = report.model_dump_json(indent=2) + "\n"
        temporary = self.path.with_name(f".{REPORT_NAME}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(self.path.parent)

    def _keep_earlier(self) -> None:
        """Move what an earlier run left to `previous/`, under a name of its own."""
        if not self.path.exists():
            return
        previous = self.path.parent / "previous"
        previous.mkdir(exist_ok=True)
        self.path.rename(previous / f"boot-report.{_label(self.path)}.json")


def _label(path: Path) -> str:
    """Run id, attempt and report id of a report; its modification time where it is not readable."""
    parts: list[object]
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        parts = [found["run_id"] or "run", found["attempt"], found["report_id"]]
    except (OSError, ValueError, KeyError, TypeError):
        parts = ["unreadable", path.stat().st_mtime_ns]
    return "-".join("".join(c if c.isalnum() else "_" for c in str(part))[:64] for part in parts)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. Some network file systems cannot fsync a folder: tolerated."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
