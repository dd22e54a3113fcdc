"""Judges of the forecast of memory: does what is coming fit into what there is."""

from __future__ import annotations

from app.checks import Check
from app.facts.forecast import ForecastFacts
from app.outcome import Fault, Finding, skipped
from app.plan import Plan


def device_memory(facts: ForecastFacts, _plan: Plan) -> Finding:
    """The model and its training must fit the device."""
    return skipped(facts.problem)


CHECKS: tuple[Check[ForecastFacts], ...] = (
    Check(
        "checkpoint.device_memory",
        Fault.HARDWARE_MISMATCH,
        "the headers and the settings",
        device_memory,
    ),
)
