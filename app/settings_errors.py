"""What is wrong with the settings, all of it at once, and never with a secret in it.

A leaf: imports only `app.errors`, `app.outcome` and `app.redaction`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.errors import BootError
from app.outcome import Fault, Finding, Status
from app.redaction import redacted

# Enough to recognise a value, short enough for one line of a log.
HELP = "python -m app.boot --help"
_SHOWN = 80


def shown(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` as one short, quoted, printable line.

    Secrets go first: a shortened or escaped secret would not be found any more.
    """
    text = redacted(text, secrets)
    if len(text) <= _SHOWN:
        return repr(text)
    return f"{text[:_SHOWN]!r}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: which variable, what it must be, what it is, what to do.

    `source` says who wants it so; a variable of a library is none of `--help`.
    """

    name: str
    expected: str
    actual: str
    suggestion: str
    source: str = HELP

    @property
    def finding(self) -> Finding:
        """The same as a failed check."""
        return Finding(
            Status.FAIL,
            self._wrong,
            expected=self.expected,
            actual=self.actual,
            next_step=self.suggestion or f"correct {self.name}; --help lists every variable",
            fault=Fault.CONFIG,
            source=self.source,
        )

    @property
    def _wrong(self) -> str:
        return f"{self.name} must be {self.expected}, and is {self.actual}"

    def __str__(self) -> str:
        """One line, with the way out."""
        return f"{self._wrong}: {self.suggestion}" if self.suggestion else self._wrong


class SettingsError(BootError):
    """The settings cannot be used; `problems` says all that is wrong with them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        findings = [problem.finding for problem in self.problems]
        names = ", ".join(problem.name for problem in self.problems)
        super().__init__(
            f"{len(findings)} wrong in the settings: {names}",
            fault=Fault.CONFIG,
            expected="; ".join(f"{one.name}: {one.expected}" for one in self.problems),
            actual="; ".join(f"{one.name}: {one.actual}" for one in self.problems),
            source=HELP,
            next_step="; ".join(finding.next_step for finding in findings),
        )

    def __str__(self) -> str:
        """One line for each problem."""
        return "\n".join(str(problem) for problem in self.problems)
