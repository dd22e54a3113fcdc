"""Exceptions that carry a finding, and what can be read off any exception.

They know faults, never exit codes.

A leaf: imports only `app.outcome`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from app.outcome import Fault, Finding, Status

# A system call's number in the words of Python, of Rust (safetensors, tokenizers, whose OSErrors
# have no errno) and of torch (whose allocator raises a bare RuntimeError).
_NUMBERED = re.compile(
    r"\[Errno (\d{1,4})\]|\(os error (\d{1,4})\)"
    r"|\bError code (\d{1,4}) \(|: [A-Z][\w /-]+ \((\d{1,4})\)"
)

_LONGEST = 10_000  # characters of an exception's text that are searched


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

    @classmethod
    def of(cls, finding: Finding) -> BootError:
        """The exception of a finding; without a fault of its own it is ours."""
        return cls(
            finding.reason,
            fault=finding.fault or Fault.INTERNAL,
            expected=finding.expected,
            actual=finding.actual,
            source=finding.source,
            next_step=finding.next_step,
        )

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


def system_error(error: BaseException) -> int | None:
    """The system's number (man 3 errno) behind an exception, None where it has none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    return number_told(str(error))


def number_told(text: str) -> int | None:
    """The last errno that a text names together with the system's own words for it.

    Both must stand there: a bare number in parentheses can be anything.
    """
    text = text[-_LONGEST:]
    told = [int("".join(found)) for found in _NUMBERED.findall(text)]  # one group matches
    return next((number for number in reversed(told) if os.strerror(number) in text), None)
