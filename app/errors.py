"""Exceptions that carry a finding. They know faults, never exit codes.

A leaf: imports only `app.outcome`.
"""

from __future__ import annotations

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
