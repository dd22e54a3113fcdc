"""Exceptions that carry a finding. They know faults, never exit codes.

A leaf: imports only `app.outcome`.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.outcome import Fault, Finding, Status


class BootError(Exception):
    """A step cannot go on, and knows why: expected, actual, source and next step.

    Raised by probes and the engine; the step guard of `app.pipeline` turns it into a failed check.
    """

    def __init__(
        self,
        reason: str,
        *,
        fault: Fault,
        expected: str = "",
        actual: str = "",
        source: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(reason)
        self.finding = Finding(Status.FAIL, reason, expected, actual, next_step, fault, source)

    def __str__(self) -> str:
        """One text with every field that is set, for callers without a report."""
        found = self.finding
        parts = [found.reason]
        parts += [f"expected {found.expected}"] if found.expected else []
        parts += [f"actual {found.actual}"] if found.actual else []
        parts += [f"next step: {found.next_step}"] if found.next_step else []
        return "; ".join(parts)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything behind it, outermost first, each once.

    Unsloth, transformers and the hub's client all mask causes, some by `from`, some by raising
    inside a handler.
    """
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [current.__cause__, None if current.__suppress_context__ else current.__context__]
