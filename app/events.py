"""What supervisor and worker say to each other: JSON lines over two pipes, typed and versioned.

The supervisor sends orders on the worker's standard input, the worker sends events on a pipe of
its own, so that nothing a library prints can be taken for an event.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from app.plan import Plan
from app.report import CheckRecord, StageRecord
from app.sections import Section

PROTOCOL = 1  # the `v` of every message
MAX_LINE_BYTES = 4 * 1024 * 1024  # a census of a large model is some 100 kB


class ProtocolError(ValueError):
    """A line that is no event of this protocol."""


class Order(Section):
    """Supervisor to worker: `prepare` pins the environment and imports, `go` runs the stages."""

    v: Literal[1] = 1
    kind: Literal["prepare", "go"]
    plan: Plan
    stop_after: str | None = None


class StageStarted(Section):
    """A stage began."""

    v: Literal[1] = 1
    kind: Literal["stage_started"] = "stage_started"
    name: str
    started: str


class CheckEnded(Section):
    """A check ended."""

    v: Literal[1] = 1
    kind: Literal["check_ended"] = "check_ended"
    record: CheckRecord


class SectionKnown(Section):
    """A section of the report, still to be validated against the report's model."""

    v: Literal[1] = 1
    kind: Literal["section_known"] = "section_known"
    name: Literal["software", "model", "precision", "adapter", "numerics"]
    data: dict[str, Any]


class StageFinished(Section):
    """A stage ended."""

    v: Literal[1] = 1
    kind: Literal["stage_finished"] = "stage_finished"
    record: StageRecord


class Ended(Section):
    """The worker ran what it was told to; its last event. `peak_bytes` is its resident peak."""

    v: Literal[1] = 1
    kind: Literal["ended"] = "ended"
    peak_bytes: int


Event = StageStarted | CheckEnded | SectionKnown | StageFinished | Ended

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def encode(message: Event | Order) -> bytes:
    """One line. JSON escapes line breaks in text, so a message is always one line."""
    return message.model_dump_json().encode("utf-8") + b"\n"


def decode(line: bytes) -> Event:
    """The event in a line. Raises ProtocolError for anything else."""
    try:
        return _EVENTS.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise ProtocolError(f"not an event of protocol {PROTOCOL}: {problem}") from error


def decode_order(line: bytes) -> Order:
    """The order in a line. Raises ProtocolError for anything else."""
    try:
        return Order.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise ProtocolError(f"not an order of protocol {PROTOCOL}: {problem}") from error
