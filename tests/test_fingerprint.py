"""What the judges of the fingerprints say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.fingerprint import CHECKS, section
from app.config import ModelRequest
from app.exits import exit_code
from app.facts.fingerprint import FingerprintFacts
from app.outcome import Finding, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile

HEALTHY = FingerprintFacts(
    weights="a1" * 32,
    hashed="3 tensors",
    n_tensors=3,
    n_bytes=300,
    logits="b2" * 32,
    again="b2" * 32,
    key="a card; stack 0; threads 1",
    device="a card",
    stack="0",
    threads=1,
    n_tokens=32,
)


def found(facts: FingerprintFacts, profile: Profile = CPU) -> dict[str, Finding]:
    plan = Plan(profile, ModelRequest(base_model_id="a/b"), Path("reports"))
    return {check.id: check.judge(facts, plan) for check in CHECKS}


def test_both_digests_can_be_searched_for_in_a_log() -> None:
    told = found(HEALTHY)["numerics.fingerprint"]
    assert (told.status, told.reason) == (
        Status.PASS,
        "weights a1a1a1a1a1a1a1a1, logits b2b2b2b2b2b2b2b2",
    )
    assert told.actual == HEALTHY.key


def test_a_device_that_repeats_itself_passes() -> None:
    assert found(HEALTHY)["numerics.repeatable"].status is Status.PASS


@pytest.mark.parametrize("profile", [CPU, V100, H100], ids=lambda profile: profile.name)
def test_a_device_that_does_not_repeat_itself_fails_where_there_is_evidence(
    profile: Profile,
) -> None:
    facts = replace(HEALTHY, again="c3" * 32)
    bare = found(facts, replace(profile, evidence=""))["numerics.repeatable"]
    assert bare.status is Status.WARN
    proven = found(facts, replace(profile, evidence="bench/results/x.json"))["numerics.repeatable"]
    assert (proven.status, proven.expected, proven.actual) == (
        Status.FAIL,
        "b2b2b2b2b2b2b2b2",
        "c3c3c3c3c3c3c3c3",
    )
    check = next(each for each in CHECKS if each.id == "numerics.repeatable")
    assert exit_code(proven.fault or check.fault) == 80


def test_a_model_without_logits_still_has_its_weights() -> None:
    facts = replace(HEALTHY, logits="", again="", reason="ValueError: pixels, please")
    told = found(facts)
    assert told["numerics.fingerprint"].reason == (
        "weights a1a1a1a1a1a1a1a1, no logits: ValueError: pixels, please"
    )
    assert told["numerics.repeatable"].status is Status.SKIP
    assert "pixels, please" in told["numerics.repeatable"].reason


def test_the_report_has_the_digests_in_full() -> None:
    made = section(HEALTHY)
    assert (made.weights, made.logits, made.key) == ("a1" * 32, "b2" * 32, HEALTHY.key)
