"""The speed's measurement on this CPU: figures, and what it leaves behind. No time is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.speed import CHECKS
from app.config import ModelRequest
from app.outcome import Status
from app.plan import Plan
from app.profiles import CPU
from tests.stack_models import failing

pytestmark = pytest.mark.stack

PLAN = Plan(CPU, ModelRequest(), Path("reports"))


def test_a_cpu_is_measured_and_not_judged() -> None:
    from app.engine.speed import measure

    facts = measure(PLAN)
    assert (facts.device, facts.dtype, facts.slice) == ("cpu", "float32", False)
    assert facts.matmul_flops > 0
    assert facts.copy_bytes > 0
    assert {each.status for each in failing(CHECKS, facts, PLAN).values()} == {Status.SKIP}


def test_where_float32_is_the_compute_dtype_it_is_measured_once() -> None:
    from app.engine.speed import measure

    facts = measure(PLAN)
    assert facts.float32_flops == facts.matmul_flops
    narrow = measure(replace(PLAN, profile=replace(CPU, compute_dtype="bfloat16")))
    assert narrow.dtype == "bfloat16"
    assert narrow.float32_flops != narrow.matmul_flops


def test_generator_and_float32_precision_are_as_before() -> None:
    import torch

    from app.engine.speed import _without_tf32, measure

    matmul = torch.backends.cuda.matmul
    kept, state = matmul.fp32_precision, torch.get_rng_state()
    try:
        matmul.fp32_precision = "tf32"
        with _without_tf32():
            assert matmul.fp32_precision == "ieee"
        measure(PLAN)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = kept
    assert torch.equal(torch.get_rng_state(), state)
