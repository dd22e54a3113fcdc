"""The heavy process: `python -m app.worker FD PARENT`. Owns torch and the device; killable.

Reads orders on standard input and writes events to the inherited file descriptor FD. Imports the
stack as soon as it knows the plan, and touches neither device nor weights before "go".
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from typing import BinaryIO

from app.checks import stack as stack_checks
from app.engine import environment, stack
from app.errors import BootError
from app.events import (
    CheckEnded,
    Ended,
    Event,
    Order,
    SectionKnown,
    StageFinished,
    StageStarted,
    decode_order,
    encode,
)
from app.outcome import Status
from app.pipeline import Part, Stage, run_stages
from app.plan import Plan
from app.report import CheckRecord
from app.sections import Section
from app.streams import put

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class PipeSink:
    """A sink of the pipeline that tells the supervisor."""

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

    def section(self, name: str, section: Section) -> None:
        """Tell."""
        self.send(SectionKnown.model_validate({"name": name, "data": section.model_dump()}))

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Tell."""
        self.send(StageFinished(name=name, status=status, finding=finding))

    def trouble(self, name: str, error: BaseException) -> None:
        """The traceback goes to the log, which is our standard error."""
        put(sys.stderr, f"{name}: " + "".join(traceback.format_exception(error)))


class Broken:
    """The session of a worker whose imports failed: its first stage says so, and is its last."""

    def __init__(self, plan: Plan, trouble: BootError) -> None:
        self.plan = plan
        self._trouble = trouble

    def stages(self) -> tuple[Stage, ...]:
        """The stack alone."""
        return (Stage("stack", (Part(self._raise, stack_checks.CHECKS),)),)

    def _raise(self) -> None:
        raise self._trouble


def main() -> None:
    """Prepare, wait for "go", run the stages, say so, and leave."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    if not die_with(parent):
        return
    # A terminal sends INT to both; the supervisor decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - what the stack forks must not hold it
    sink = PipeSink(os.fdopen(descriptor, "wb"))
    order = next_order()
    if order is None:
        return
    environment.pin(order.plan.profile)
    trouble: BootError | None = None
    try:
        stack.import_stack()
    except BootError as error:
        trouble = error  # judged when the preflight has passed, and only then
    order = next_order()
    if order is None:
        return
    # A library that asks a question must find nobody, not the orders.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    run(order, trouble, sink)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    sink.send(Ended(peak_bytes=peak))
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking the interpreter down costs 1.5 s of freeing what the kernel frees at once.
    os._exit(0)


def run(order: Order, trouble: BootError | None, sink: PipeSink) -> None:
    """The stages of the order, or the one that says why there are none."""
    if trouble is not None:
        broken = Broken(order.plan, trouble)
        run_stages(broken.stages(), broken, sink, stop_after=order.stop_after)
        return
    from app.work import Work  # imports torch, so only after the stack

    work = Work(order.plan)
    run_stages(work.stages(), work, sink, stop_after=order.stop_after)


def next_order() -> Order | None:
    """The next line of standard input; None when the supervisor is gone."""
    line = sys.stdin.buffer.readline()
    return decode_order(line) if line else None


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent dies; False when that has happened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


if __name__ == "__main__":
    main()
