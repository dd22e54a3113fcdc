"""What only the hardware itself can calibrate warns until a result of it is committed."""

from __future__ import annotations

from app.outcome import Fault, Finding, failed, warned
from app.plan import Plan


def unlike(
    plan: Plan,
    reason: str,
    *,
    expected: str,
    actual: str,
    next_step: str,
    fault: Fault | None = None,
) -> Finding:
    """Not as it should be: fails where this profile has evidence for its limits, else warns.

    `fault` overrides the check's own.
    """
    if plan.profile.evidence:
        return failed(reason, expected=expected, actual=actual, next_step=next_step, fault=fault)
    return warned(
        f"{reason} (only a warning: no result of such hardware has been committed yet)",
        expected=expected,
        actual=actual,
        next_step=next_step,
    )
