"""What the judges of the NF4 proof say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.golden import CHECKS, section
from app.config import ModelRequest
from app.exits import ExitCode, exit_code
from app.facts.golden import GoldenFacts, Product, Unpacked
from app.outcome import Finding, Status
from app.plan import Plan
from app.profiles import CPU, H100, PROFILES, V100, Profile

KIND = Unpacked("a.weight", (8, 64), 64, 256, "bfloat16", "bitsandbytes", 3, 512)
PRODUCT = Product("a.weight", 1, "bfloat16", error=0.001, tolerance=0.016)
HEALTHY = GoldenFacts((KIND,), (PRODUCT, replace(PRODUCT, rows=64)), n_scales=15, seconds=0.1)


def found(facts: GoldenFacts, profile: Profile = CPU) -> dict[str, Finding]:
    plan = Plan(profile, ModelRequest(base_model_id="a/b"), Path("reports"))
    return {check.id: check.judge(facts, plan) for check in CHECKS}


def faulty(facts: GoldenFacts, profile: Profile = CPU) -> dict[str, Finding]:
    told = found(facts, profile)
    return {name: each for name, each in told.items() if each.status is not Status.PASS}


def code(finding: Finding, check: str) -> ExitCode:
    fault = next(each.fault for each in CHECKS if each.id == check)
    return exit_code(finding.fault or fault)


def test_a_healthy_proof_says_how_much_was_compared() -> None:
    told = found(HEALTHY)
    assert {each.status for each in told.values()} == {Status.PASS}
    assert "512 values of 1 kinds" in told["numerics.nf4_exact"].reason
    assert "1.0e-03 of 1.6e-02" in told["numerics.nf4_products"].reason
    assert "15 scales and tables" in told["numerics.scales_as_in_file"].reason


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("change", "actual"),
    [
        (
            {"n_different": 2, "first": "value 7 must be 0.5 and is 0.25"},
            "a.weight: 2 of 512 values differ: value 7 must be 0.5 and is 0.25",
        ),
        ({"problem": "RuntimeError: no kernel"}, "a.weight: RuntimeError: no kernel"),
    ],
)
def test_a_wrong_dequantisation_fails_on_every_hardware(
    profile: Profile, change: dict[str, int | str], actual: str
) -> None:
    wrong = replace(KIND, **change)  # type: ignore[arg-type]
    facts = replace(HEALTHY, unpacked=(KIND, wrong))
    told = faulty(facts, profile)
    assert list(told) == ["numerics.nf4_exact"]
    finding = told["numerics.nf4_exact"]
    assert (finding.status, finding.actual) == (Status.FAIL, actual)
    assert code(finding, "numerics.nf4_exact") is ExitCode.NUMERICS
    assert "bitsandbytes unpacks packed weights wrongly here: a.weight [8, 64]" in finding.reason


@pytest.mark.parametrize("error", [math.inf, math.nan])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: each.name)
def test_a_product_that_is_no_number_fails_on_every_hardware(
    profile: Profile, error: float
) -> None:
    facts = replace(HEALTHY, products=(PRODUCT, replace(PRODUCT, rows=64, error=error)))
    told = faulty(facts, profile)
    assert list(told) == ["numerics.nf4_products"]
    finding = told["numerics.nf4_products"]
    assert (finding.status, code(finding, "numerics.nf4_products")) == (Status.FAIL, 80)
    assert "a.weight, output of 64 rows in bfloat16" in finding.reason


def test_a_kernel_that_raises_is_told_in_its_words() -> None:
    refused = replace(PRODUCT, error=math.inf, problem="NotImplementedError: nested by 128")
    told = faulty(replace(HEALTHY, products=(refused,)), H100)["numerics.nf4_products"]
    assert (told.status, told.actual) == (Status.FAIL, "NotImplementedError: nested by 128")


@pytest.mark.parametrize(
    ("profile", "status"),
    [
        (CPU, Status.FAIL),
        (V100, Status.WARN),
        (replace(V100, evidence="bench/results/v100.json"), Status.FAIL),
    ],
)
def test_a_product_off_by_more_than_the_tolerance_is_judged_by_evidence(
    profile: Profile, status: Status
) -> None:
    facts = replace(HEALTHY, products=(replace(PRODUCT, error=0.02), PRODUCT))
    told = faulty(facts, profile)
    assert list(told) == ["numerics.nf4_products"]
    assert told["numerics.nf4_products"].status is status
    assert "2.0e-02 of 1.6e-02" in told["numerics.nf4_products"].actual


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: each.name)
def test_a_changed_scale_fails_by_name_on_every_hardware(profile: Profile) -> None:
    told = faulty(replace(HEALTHY, changed=("a.weight.quant_state.absmax",)), profile)
    assert list(told) == ["numerics.scales_as_in_file"]
    finding = told["numerics.scales_as_in_file"]
    assert (finding.status, code(finding, "numerics.scales_as_in_file")) == (Status.FAIL, 80)
    assert "a.weight.quant_state.absmax" in finding.reason


def test_without_packed_weights_everything_is_skipped_with_the_reason() -> None:
    told = found(GoldenFacts(reason="nothing is packed"))
    assert {(each.status, each.reason) for each in told.values()} == {
        (Status.SKIP, "nothing is packed")
    }


def test_weights_packed_on_load_have_no_scales_in_the_file() -> None:
    told = faulty(replace(HEALTHY, n_scales=0))
    assert [(name, each.status) for name, each in told.items()] == [
        ("numerics.scales_as_in_file", Status.SKIP)
    ]


def test_packed_experts_alone_have_no_products() -> None:
    told = faulty(replace(HEALTHY, products=()))
    assert [(name, each.status) for name, each in told.items()] == [
        ("numerics.nf4_products", Status.SKIP)
    ]


def test_the_section_is_json_whatever_the_product_is() -> None:
    facts = replace(
        HEALTHY, products=(replace(PRODUCT, error=math.nan),), changed=("a.weight.offset",)
    )
    told = section(facts)
    assert told.products[0].error is None
    assert (told.n_scales, told.n_changed, told.kinds[0].n_compared) == (15, 1, 512)
    told.model_dump_json()
