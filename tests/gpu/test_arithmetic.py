"""Kernels of every library run on this device, and the arithmetic is as fast as its card."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.checks import kernels, speed
from app.config import ModelRequest
from app.plan import Plan
from tests.gpu.subject import Subject
from tests.gpu.verdicts import amiss

pytestmark = pytest.mark.stack
_WARM_S = 1.0


@pytest.fixture
def plan(subject: Subject, tmp_path: Path) -> Plan:
    return Plan(subject.profile, ModelRequest(), tmp_path)


def test_a_kernel_of_each_library_gives_the_known_result(
    subject: Subject, plan: Plan, told: list[str]
) -> None:
    from app.engine import kernels as engine

    facts = engine.run(plan)
    assert amiss(kernels.CHECKS, facts, plan) == {}
    assert {run.library for run in facts.runs} >= {"torch", "bitsandbytes"}
    skipped = {run.library for run in facts.runs if run.skipped}
    assert not subject.profile.needs_gpu or not skipped
    told += [
        f"{run.library} {run.name}: {run.first_s:.3f} s at first, {run.again_s * 1000:.2f} ms again"
        for run in facts.runs
    ]


def _warm(subject: Subject) -> None:
    """An idle card takes a while to raise its clocks; a boot has trained before it measures."""
    import torch

    if not subject.profile.needs_gpu:
        return
    side = torch.ones(4096, 4096, device=subject.profile.device, dtype=torch.float32)
    end = time.monotonic() + _WARM_S
    while time.monotonic() < end:
        torch.mm(side, side)
        torch.cuda.synchronize()


def test_the_arithmetic_reaches_the_floors_of_the_profile(
    subject: Subject, plan: Plan, told: list[str]
) -> None:
    from app.engine import speed as engine

    _warm(subject)
    facts = engine.measure(plan)
    assert facts.slice is subject.part
    assert amiss(speed.CHECKS, facts, plan) == {}
    told.append(
        f"{facts.dtype} {facts.matmul_flops / 1e12:.2f} TFLOPS at side {facts.side}, float32 "
        f"{facts.float32_flops / 1e12:.2f}, copy {facts.copy_bytes / 1e9:.1f} GB/s"
    )
