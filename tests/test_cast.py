"""The judge of the cast on facts made by hand. The real ones are in `test_cast_stack`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.checks.cast import CHECKS, section
from app.config import ModelRequest
from app.facts.cast import CastFacts, TensorCast
from app.outcome import Fault, Finding, Severity, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile

FINE = TensorCast("a.weight", "bfloat16", "float16", "float16", 100, n_zero=3, n_subnormal=4)
LOST = replace(FINE, name="b.weight", n_overflow=2, largest=1e5)


def judged(facts: CastFacts, profile: Profile = V100) -> Finding:
    (check,) = CHECKS
    assert (check.id, check.fault) == ("numerics.cast_overflow", Fault.PRECISION)
    assert check.severity is Severity.CRITICAL
    return check.judge(facts, Plan(profile, ModelRequest(), Path("reports")))


def test_a_value_that_the_cast_made_infinite_is_a_matter_of_precision() -> None:
    """On every node alike, so the node is not to blame: the check's own fault stands."""
    found = judged(CastFacts((FINE, LOST)))
    assert (found.status, found.fault) == (Status.FAIL, None)
    assert found.reason == "the cast to float16 made 1 tensor infinite: b.weight"
    assert found.actual == "b.weight (bfloat16): 2 values of 100, the largest 100000"


def test_what_the_model_did_not_cast_is_told_and_does_not_fail() -> None:
    for held in ("float32", ""):  # a norm; what the model has no place for
        found = judged(CastFacts((FINE, replace(LOST, held=held))))
        assert found.status is Status.PASS
        assert "float16 would make 1 tensor infinite" in found.reason
        assert "b.weight" in found.reason


def test_a_rehearsal_tells_what_each_card_would_make_of_the_files() -> None:
    """Who means another card need not care, so it is no warning."""
    looked = [replace(LOST, held="float32"), replace(FINE, held="float32")]
    found = judged(CastFacts((*looked,)), CPU)
    assert found.status is Status.PASS
    assert found.reason.startswith("no value is beyond bfloat16; float16 would make 1 tensor")


def test_what_is_flushed_to_zero_is_counted_and_never_fails() -> None:
    found = judged(CastFacts((replace(FINE, n_zero=100, n_subnormal=0),)))
    assert found.status is Status.PASS
    assert "of 100 values 100 to zero, 0 subnormal" in found.actual


def test_what_is_exact_by_its_dtype_passes_without_a_look() -> None:
    found = judged(CastFacts(n_exact=7), H100)
    assert (found.status, found.reason) == (Status.PASS, "no value is beyond bfloat16")
    assert found.actual == "7 tensors exact by the dtypes alone"


def test_a_file_that_cannot_be_read_again_is_a_read_error_and_no_pass() -> None:
    found = judged(CastFacts((FINE,), unread=("model.safetensors: Input/output error",)))
    assert (found.status, found.fault) == (Status.ERROR, Fault.READ_ERROR)
    assert "model.safetensors: Input/output error" in found.reason


def test_an_overflow_that_was_seen_decides_over_a_file_that_was_not() -> None:
    found = judged(CastFacts((LOST,), unread=("b.safetensors: Input/output error",)))
    assert (found.status, found.fault) == (Status.FAIL, None)


def test_where_nothing_was_looked_at_the_reason_is_told() -> None:
    found = judged(CastFacts(reason="no safetensors"))
    assert (found.status, found.reason) == (Status.SKIP, "no safetensors")


def test_values_that_are_broken_in_the_file_are_told_here_and_judged_with_the_weights() -> None:
    found = judged(CastFacts((replace(FINE, n_not_finite=5),)))
    assert found.status is Status.PASS
    assert "5 not finite in the file" in found.actual


def test_the_report_sums_up_per_target() -> None:
    other = replace(FINE, target="bfloat16", n_zero=0, largest=2.0)
    found = section(CastFacts((FINE, LOST, other), n_exact=4, n_bytes=600))
    assert [each.dtype for each in found.targets] == ["float16", "bfloat16"]
    half = found.targets[0]
    assert (half.n_tensors, half.n_values, half.n_overflow, half.n_zero) == (2, 200, 2, 6)
    assert (half.largest, half.largest_name) == (1e5, "b.weight")
    assert half.overflowing == ["b.weight"]
    assert (found.n_exact, found.n_bytes) == (4, 600)
    assert section(CastFacts()).targets == []
