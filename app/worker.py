"""The heavy process: `python -m app.worker EVENTS TRACE STDOUT PARENT`.

The arguments are three descriptors and the supervisor's pid. Owns torch and the device; killable.
Reads orders on standard input and writes events to EVENTS. Imports the stack as soon as it knows
the plan, and touches neither device nor weights before "go".
"""

from __future__ import annotations

import gc

# 150,000 objects that live as long as the process: collecting among them costs 15 % of the boot.
gc.disable()

import contextlib  # noqa: E402 - the collector first
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from app.checks import stack as stack_checks  # noqa: E402
from app.engine import environment, stack  # noqa: E402
from app.errors import BootError  # noqa: E402
from app.events import Ended, Order, decode_order  # noqa: E402
from app.lifeline import die_with, trace_into  # noqa: E402
from app.pipe_sink import PipeSink, peak_bytes  # noqa: E402
from app.pipeline import Part, Stage, run_stages  # noqa: E402
from app.plan import Plan  # noqa: E402
from app.probes.process import raise_oom_score  # noqa: E402

if TYPE_CHECKING:
    from app.work import Work


class Orders:
    """What the supervisor says on standard input, where libraries then find nobody to ask."""

    def __init__(self) -> None:
        self._pipe = os.fdopen(os.dup(0), "rb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def next(self) -> Order | None:
        """The next order; None when there is no more to do."""
        line = self._pipe.readline()
        return decode_order(line) if line else None


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
    """Prepare, wait for "go", run the stages and then the job, say so, and leave."""
    events, trace, stdout, parent = map(int, sys.argv[1:])
    for descriptor in (events, trace, stdout):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what the stack forks must not hold it
    trace_into(trace)
    if not die_with(parent):
        return
    # A terminal sends INT to both; the supervisor decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_oom_score()
    orders = Orders()
    sink = PipeSink(os.fdopen(events, "wb"))
    order = orders.next()
    if order is None:
        return
    network = environment.network_as_given()
    environment.pin(order.plan.profile)
    trouble: BootError | None = None
    try:
        stack.import_stack()
    except BootError as error:
        trouble = error  # judged when the preflight has passed, and only then
    order = orders.next()
    if order is None:
        return
    work = guard(order, trouble, sink)
    sink.send(Ended(peak_bytes=peak_bytes()))
    order = orders.next()
    if order is not None and work is not None:
        from app import job_stage

        environment.open_network(network)
        job_stage.run(work, order, stdout, sink)
        sink.send(Ended(peak_bytes=peak_bytes()))
    leave()


def guard(order: Order, trouble: BootError | None, sink: PipeSink) -> Work | None:
    """The stages of the order, or the one that says why there are none."""
    if trouble is not None:
        broken = Broken(order.plan, trouble)
        run_stages(broken.stages(), broken, sink, stop_after=order.stop_after)
        return None
    from app.work import Work  # imports torch, so only after the stack

    work = Work(order.plan)
    run_stages(work.stages(), work, sink, stop_after=order.stop_after)
    return work


def leave() -> NoReturn:
    """End at once: taking the interpreter down takes 1.5 s to free what the kernel frees."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a job may have closed it
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
