"""A sink of the pipeline that tells the supervisor, over the pipe of the events."""

from __future__ import annotations

import resource
import sys
import traceback
from typing import BinaryIO

from pydantic_core import to_jsonable_python

from app.events import (
    CheckEnded,
    Event,
    SectionKnown,
    StageFinished,
    StageStarted,
    encode,
)
from app.outcome import Status
from app.pipeline import Published
from app.report import CheckRecord
from app.streams import put


class PipeSink:
    """Used by the children."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def send(self, event: Event) -> None:
        """Write one event."""
        self._pipe.write(encode(event))
        self._pipe.flush()

    def stage_started(self, name: str) -> None:
        """Tell."""
        self.send(StageStarted(name=name))

    def check(self, record: CheckRecord) -> None:
        """Tell."""
        self.send(CheckEnded(record=record))

    def section(self, name: str, section: Published) -> None:
        """Tell."""
        data = to_jsonable_python(section)
        self.send(SectionKnown.model_validate({"name": name, "data": data}))

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Tell."""
        self.send(StageFinished(name=name, status=status, finding=finding))

    def trouble(self, name: str, error: BaseException) -> None:
        """The traceback goes to the log, which is our standard error."""
        put(sys.stderr, f"{name}: " + "".join(traceback.format_exception(error)))


def peak_bytes() -> int:
    """The resident peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
