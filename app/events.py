"""What supervisor and worker say to each other: JSON lines over two pipes, typed and versioned.

The supervisor sends orders on the worker's standard input, the worker sends events on a pipe of
its own, so that nothing a library prints can be taken for an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from app.outcome import Status
from app.plan import Plan
from app.report import CheckRecord, Report
from app.sections import Section

MAX_LINE_BYTES = 1024 * 1024  # a census of a large model is some 100 kB
MAX_EVENTS = 1000  # a boot has some 200
MAX_BYTES = 2 * MAX_LINE_BYTES  # of all events of a child; the supervisor holds and writes them


class ProtocolError(ValueError):
    """A line that is no event of this protocol, or one out of turn."""


SectionT = Literal[
    "node",
    "memory",
    "gpus",
    "model",
    "forecast",
    "software",
    "precision",
    "adapter",
    "numerics",
    "job",
]


class Message(Section):
    """What every line holds; `v` is the protocol's version."""

    v: Literal[1] = 1


class Order(Message):
    """Supervisor to worker.

    `prepare` pins the environment and imports, `go` runs the guard's stages, `job` calls the
    user's function with the report so far.
    """

    kind: Literal["prepare", "go", "job"]
    plan: Plan
    stop_after: str | None = None
    report: Report | None = None
    job_path: tuple[str, ...] = ()  # where the job's module is searched, besides everything else


class StageStarted(Message):
    """A stage began."""

    kind: Literal["stage_started"] = "stage_started"
    name: str


class CheckEnded(Message):
    """A check ended."""

    kind: Literal["check_ended"] = "check_ended"
    record: CheckRecord


class SectionKnown(Message):
    """A section of the report, still to be validated against the report's model."""

    kind: Literal["section_known"] = "section_known"
    name: SectionT
    data: Any


class PlanKnown(Message):
    """The preflight has resolved the model: the plan that the worker is to follow.

    `late_device`: the driver was not ready at first, so what was imported meanwhile may have seen
    no device, and remembers it.
    """

    kind: Literal["plan_known"] = "plan_known"
    plan: Plan
    late_device: bool = False


class StageFinished(Message):
    """A stage ended."""

    kind: Literal["stage_finished"] = "stage_finished"
    name: str
    status: Status
    finding: str


class Ended(Message):
    """The worker ran what it was told to; its last event. `peak_bytes` is its resident peak."""

    kind: Literal["ended"] = "ended"
    peak_bytes: int


Event = StageStarted | CheckEnded | SectionKnown | PlanKnown | StageFinished | Ended

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def encode(message: Event | Order) -> bytes:
    """One line. JSON escapes line breaks in text, so a message is always one line."""
    return message.model_dump_json().encode("utf-8") + b"\n"


def decode(line: bytes) -> Event:
    """The event in a line. Raises ProtocolError for anything else."""
    try:
        return _EVENTS.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(_problem("event", error)) from error


def decode_order(line: bytes) -> Order:
    """The order in a line. Raises ProtocolError for anything else."""
    try:
        return Order.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(_problem("order", error)) from error


def _problem(what: str, error: ValidationError) -> str:
    """What is wrong, without the line itself: what strays into a pipe may hold a secret."""
    return f"no {what}: {error.errors(include_input=False, include_url=False)[0]['msg']}"


class Turns:
    """Sees that events come in the order of the stages, each stage whole.

    A child that says less than it was told to do must not be taken for one that did it.
    """

    def __init__(self, stages: Sequence[str], stop_after: str | None = None) -> None:
        last = stages.index(stop_after) + 1 if stop_after in stages else None
        self._left = list(stages[:last])
        self._in: str | None = None
        self._n_events = self._n_bytes = 0

    def take(self, event: Event, n_bytes: int = 0) -> None:
        """Accept the event, a line of that length. Raises ProtocolError when it is not its turn."""
        self._n_events += 1
        self._n_bytes += n_bytes
        if self._n_events > MAX_EVENTS or self._n_bytes > MAX_BYTES:
            raise ProtocolError(f"more than {MAX_EVENTS} events or {MAX_BYTES} bytes")
        match event:
            case StageStarted():
                if self._in is not None or self._left[:1] != [event.name]:
                    raise ProtocolError(f"stage {event.name[:40]!r} started out of turn")
                self._in = self._left.pop(0)
            case CheckEnded():
                self._expect(event.record.stage, "a check")
            case StageFinished():
                self._expect(event.name, "an end")
                self._in = None
                self._left = [] if event.status.blocks else self._left
            case SectionKnown():
                if self._in is None:
                    raise ProtocolError("a section outside of a stage")
            case PlanKnown() | Ended():
                self._expect_all_ended(event.kind)

    def _expect_all_ended(self, kind: str) -> None:
        if self._in is not None or self._left:
            raise ProtocolError(f"{kind} before {self._in or self._left[0]} has ended")

    def _expect(self, name: str, what: str) -> None:
        if name != self._in:
            raise ProtocolError(f"{what} of stage {name[:40]!r} in stage {self._in or 'none'}")
