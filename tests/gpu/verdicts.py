"""What checks say, in the words of this suite: a warning is no pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from app.checks import Check
from app.exits import ExitCode, exit_code
from app.outcome import Status
from app.plan import Plan

FactsT = TypeVar("FactsT")


def amiss(checks: Iterable[Check[FactsT]], facts: FactsT, plan: Plan) -> dict[str, str]:
    """Reasons of all that neither passed nor was skipped, by the id of the check."""
    found = {check.id: check.judge(facts, plan) for check in checks}
    wrong = (Status.WARN, Status.FAIL)
    return {name: each.reason for name, each in found.items() if each.status in wrong}


def exits(checks: Iterable[Check[FactsT]], facts: FactsT, plan: Plan) -> dict[str, ExitCode]:
    """The exit status that each failing check asks for."""
    found = [(check, check.judge(facts, plan)) for check in checks]
    return {
        check.id: exit_code(each.fault or check.fault)
        for check, each in found
        if each.status is Status.FAIL
    }
