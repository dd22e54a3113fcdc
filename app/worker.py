"""The heavy process: `python -m app.worker FD`. Owns torch and the device; killable at any time.

Reads orders on standard input and writes events to the inherited file descriptor FD. Imports the
stack as soon as it knows the plan, and touches neither device nor weights before "go".
"""

from __future__ import annotations

import os
import resource
import sys
from typing import BinaryIO

from app.engine import environment, stack
from app.errors import BootError
from app.events import (
    CheckEnded,
    Ended,
    Event,
    SectionKnown,
    StageFinished,
    StageStarted,
    decode_order,
    encode,
)
from app.pipeline import run_stages
from app.report import CheckRecord, StageRecord
from app.sections import Section


class PipeSink:
    """A sink of the pipeline that tells the supervisor."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def send(self, event: Event) -> None:
        """Write one event."""
        self._pipe.write(encode(event))
        self._pipe.flush()

    def stage_started(self, name: str, started: str) -> None:
        """Tell."""
        self.send(StageStarted(name=name, started=started))

    def check(self, record: CheckRecord) -> None:
        """Tell."""
        self.send(CheckEnded(record=record))

    def section(self, name: str, section: Section) -> None:
        """Tell."""
        self.send(SectionKnown.model_validate({"name": name, "data": section.model_dump()}))

    def stage_finished(self, record: StageRecord) -> None:
        """Tell."""
        self.send(StageFinished(record=record))


def main() -> None:
    """Prepare, wait for "go", run the stages, say so, and leave."""
    sink = PipeSink(os.fdopen(int(sys.argv[1]), "wb"))
    line = sys.stdin.buffer.readline()
    if not line:
        return
    environment.pin(decode_order(line).plan.profile)
    trouble: BootError | None = None
    try:
        stack.import_stack()
    except BootError as error:
        trouble = error  # judged when the preflight has passed, and only then
    line = sys.stdin.buffer.readline()
    if not line:  # the supervisor is gone
        return
    order = decode_order(line)
    from app.work import Work  # imports torch, so only after the stack

    work = Work(order.plan, trouble)
    run_stages(work.stages(), work, sink, stop_after=order.stop_after)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    sink.send(Ended(peak_bytes=peak))
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking the interpreter down costs 1.5 s of freeing what the kernel frees at once.
    os._exit(0)


if __name__ == "__main__":
    main()
