"""Judges of the gpu stage: is there exactly one device, of the right class, that answers.

They stand by family in `_gpu_files`, `_gpu_version`, `_gpu_driver`, `_gpu_grant`, `_gpu_class`,
`_gpu_memory`, `_gpu_board` and `_gpu_health`, each named after its check, and are asked in the
order in which one thing depends on another.
"""

from __future__ import annotations

from app.checks import (
    Check,
    _gpu_board,
    _gpu_class,
    _gpu_driver,
    _gpu_files,
    _gpu_grant,
    _gpu_health,
    _gpu_memory,
    _gpu_version,
)
from app.facts.gpu import GpuFacts
from app.outcome import Fault, Finding, Severity, passed, skipped
from app.plan import Plan


def required(_facts: GpuFacts, plan: Plan) -> Finding:
    """Says why the stage does or does not look at devices."""
    if not plan.profile.needs_gpu:
        return skipped(f"profile {plan.profile.name} needs no device")
    return passed(f"profile {plan.profile.name} needs one CUDA device", expected="1 device")


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.required",
        Fault.CONFIG,
        "the profile",
        required,
        Severity.WARNING,
        cause="Never fails: it says whether this boot needs a GPU, and why the stage is skipped "
        "where it does not.",
        fix="Set BOOT_HARDWARE to the class of GPU that the job is for, or to cpu for a rehearsal.",
    ),
    *_gpu_files.CHECKS,
    *_gpu_version.CHECKS,
    *_gpu_driver.CHECKS,
    *_gpu_grant.CHECKS,
    *_gpu_class.CHECKS,
    *_gpu_memory.CHECKS,
    *_gpu_board.CHECKS,
    *_gpu_health.CHECKS,
)


def checks_for(plan: Plan) -> tuple[Check[GpuFacts], ...]:
    """All of them where a device is needed, else the one that says why none is."""
    return CHECKS if plan.profile.needs_gpu else CHECKS[:1]
