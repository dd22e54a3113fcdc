"""Pure judges. A check reads facts and says what it found; it opens, runs and imports nothing.

Each module ends in its `CHECKS` tuple; a test fails when a judge is written but not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.outcome import Fault, Finding, Severity
from app.plan import Plan

FactsT = TypeVar("FactsT")


@dataclass(frozen=True, slots=True)
class Check(Generic[FactsT]):
    """One question about the facts of a stage.

    `id` is `<stage>.<what>`; `fault` says what kind of thing is wrong when it fails; `source` says
    where the expectation comes from. `cause` says what usually makes it fail and `fix` what to do
    then, for `docs/checks.md` and `python -m app.report explain`.
    """

    id: str
    fault: Fault
    source: str
    judge: Callable[[FactsT, Plan], Finding]
    severity: Severity = Severity.CRITICAL
    cause: str = ""
    fix: str = ""
