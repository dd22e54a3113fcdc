"""The judge of the speed of the arithmetic, on figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.speed import CHECKS, section
from app.config import ModelRequest
from app.facts.speed import SpeedFacts
from app.outcome import Finding, Severity, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile

# The data sheets' figures, of which a healthy card reaches more than half.
VOLTA = SpeedFacts("Tesla V100-SXM2-16GB", "float16", 4096, 90e12, 14e12, 750e9)
HOPPER = SpeedFacts("NVIDIA H100 80GB HBM3", "bfloat16", 4096, 600e12, 45e12, 2500e9)


def judged(facts: SpeedFacts, profile: Profile) -> Finding:
    (check,) = CHECKS
    return check.judge(facts, Plan(profile, ModelRequest(), Path("reports")))


@pytest.mark.parametrize(("facts", "profile"), [(VOLTA, V100), (HOPPER, H100)])
def test_a_healthy_card_passes(facts: SpeedFacts, profile: Profile) -> None:
    found = judged(facts, profile)
    assert found.status is Status.PASS
    assert f"{facts.dtype} products {facts.matmul_flops / 1e12:.1f} TFLOP/s" in found.reason


def test_an_emulated_precision_is_named() -> None:
    """bfloat16 on Volta: products slower than float32's."""
    emulated = replace(VOLTA, dtype="bfloat16", matmul_flops=8e12)
    found = judged(emulated, V100)
    assert found.status is Status.WARN
    assert "bfloat16 products 8.0 TFLOP/s of at least 37.0 TFLOP/s" in found.reason
    assert "bfloat16 0.6 times as fast as float32, of at least 2" in found.reason
    assert "seems to be emulated" in found.reason
    assert "copies" not in found.reason


@pytest.mark.parametrize("facts", [VOLTA, HOPPER], ids=lambda facts: facts.device)
def test_a_throttled_card_is_named(facts: SpeedFacts) -> None:
    """All of it is slow, float32 too."""
    slow = replace(
        facts,
        matmul_flops=facts.matmul_flops / 5,
        float32_flops=facts.float32_flops / 5,
        copy_bytes=facts.copy_bytes / 5,
    )
    found = judged(slow, V100 if facts is VOLTA else H100)
    assert found.status is Status.WARN
    assert facts.device in found.reason
    assert "throttled" in found.reason
    assert "emulated" not in found.reason


def test_slow_memory_alone_is_named() -> None:
    found = judged(replace(VOLTA, copy_bytes=100e9), V100)
    assert "copies 100.0 GB/s of at least 300.0 GB/s" in found.reason
    assert "products" not in found.reason


def test_a_slice_of_a_card_is_not_judged_and_its_figures_are_told() -> None:
    part = replace(HOPPER, device="NVIDIA H100 MIG 1g.10gb", matmul_flops=5e12, slice=True)
    found = judged(part, H100)
    assert found.status is Status.SKIP
    assert "5.0 TFLOP/s" in found.reason


def test_a_rehearsal_promises_no_speed_and_tells_its_figures() -> None:
    found = judged(SpeedFacts("cpu", "float32", 512, 49e9, 49e9, 8e9), CPU)
    assert found.status is Status.SKIP
    assert "float32 products 49.0 GFLOP/s (1.0 times float32), copies 8.0 GB/s" in found.reason


def test_a_slow_card_never_fails_a_boot() -> None:
    known = replace(V100, evidence="bench/results/v100.json")
    slow = replace(VOLTA, matmul_flops=1e12)
    assert judged(slow, known).status is Status.WARN
    assert CHECKS[0].severity is Severity.WARNING


def test_the_section_holds_the_figures() -> None:
    made = section(HOPPER)
    assert (made.matmul_flops, made.float32_flops, made.copy_bytes) == (600e12, 45e12, 2500e9)
    assert (made.device, made.dtype, made.side) == (HOPPER.device, "bfloat16", 4096)
