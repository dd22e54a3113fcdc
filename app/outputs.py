"""What a boot leaves beside its report: termination message, torchelastic's error file, metrics.

All are made of the settled report, which holds no secrets. A side file that cannot be written is
told to the caller and changes nothing else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from app.exits import ExitCode
from app.metrics import metrics
from app.report import Report
from app.text_file import OnlyIf
from app.verdict import verdict_line

# The kubelet mounts it into every container, and shows what stands in it as the end's message.
KUBERNETES_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_VARIABLE = "BOOT_TERMINATION_LOG"
_METRICS_VARIABLE = "BOOT_METRICS_FILE"
_ELASTIC_VARIABLE = "TORCHELASTIC_ERROR_FILE"


class Writer(Protocol):
    """What writes files in a bounded time: `app.file_writer.FileWriter`."""

    def text(
        self, path: Path, text: str, *, deadline_s: float, replace: bool, only_if: OnlyIf = "any"
    ) -> None:
        """Write a text file. Raises OSError, TimeoutError too."""


def termination_message(report: Report, report_path: str | None) -> str:
    """The verdict line, with its line end at most 900 bytes."""
    return verdict_line(report, report_path) + "\n"


def torchelastic_error(report: Report, report_path: str | None, timestamp: float) -> str:
    """The failure as torch.distributed.elastic's agent reads it; empty for a boot that is ready.

    The agent shows `py_callstack` where there is one and `message` else, and takes the file with
    the smallest `timestamp` (seconds since 1970, whole, as text) for the root cause.
    """
    if report.exit is None or report.exit.process_code == ExitCode.OK:
        return ""
    step = [f"next step: {report.exit.next_step}"] if report.exit.next_step else []
    where = [f"report: {report_path}"] if report_path else []
    trace = report.crash.traceback if report.crash else []
    message = f"bootguard {report.exit.name}: {report.exit.reason}"
    return json.dumps(
        {
            "message": {
                "message": message,
                "errorCode": report.exit.process_code,
                "extraInfo": {
                    "py_callstack": "\n".join((message, *step, *where, *trace)),
                    "timestamp": str(int(timestamp)),
                },
            }
        }
    )


def write_outputs(
    report: Report,
    report_path: str | None,
    writer: Writer,
    environ: Mapping[str, str],
    termination_log: Path | None,
    metrics_file: Path | None,
    deadline_s: float,
) -> list[str]:
    """Write what is asked for, all within `deadline_s`; what went wrong, a line each.

    Where the settings were refused both paths are None, and their variables are read as they are.
    """
    files = _Files(writer, time.monotonic() + deadline_s, report_path)
    log = termination_log or _raw(environ, _TERMINATION_VARIABLE)
    files.write(
        "the termination message",
        log or KUBERNETES_TERMINATION_LOG,
        termination_message(report, report_path),
        replace=False,
        only_if="any" if log else "exists",
    )
    elastic = environ.get(_ELASTIC_VARIABLE)  # relative where the agent's log folder was given so
    error = torchelastic_error(report, report_path, report.ended)
    if elastic and error:
        # A job that records its own exceptions has left more than we know.
        own = report.exit is not None and report.exit.code == ExitCode.OK
        only_if: OnlyIf = "absent" if own else "any"
        files.write(
            "torchelastic's error file", Path(elastic), error, replace=True, only_if=only_if
        )
    where = metrics_file or _raw(environ, _METRICS_VARIABLE)
    if where is not None:
        files.write("the metrics", where, metrics(report), replace=True)
    return files.problems


class _Files:
    """Writes one after the other before `end`, and remembers what went wrong."""

    def __init__(self, writer: Writer, end: float, report_path: str | None) -> None:
        self._report = report_path
        self._writer = writer
        self._end = end
        self.problems: list[str] = []

    def write(
        self, what: str, path: Path, text: str, *, replace: bool, only_if: OnlyIf = "any"
    ) -> None:
        if self._report is not None and os.path.abspath(path) == os.path.normpath(self._report):  # noqa: PTH100 - as text
            self.problems.append(f"{what} not written: {path} is the report itself")
            return
        left = max(0.0, self._end - time.monotonic())
        try:
            self._writer.text(path, text, deadline_s=left, replace=replace, only_if=only_if)
        except (FileNotFoundError, FileExistsError) as error:
            if only_if == "any":
                self.problems.append(f"{what} cannot be written to {path}: {error}")
        except OSError as error:
            self.problems.append(f"{what} cannot be written to {path}: {error}")


def _raw(environ: Mapping[str, str], name: str) -> Path | None:
    """The absolute path that a variable holds, if it does."""
    value = environ.get(name, "")
    return Path(value) if value.startswith("/") else None
