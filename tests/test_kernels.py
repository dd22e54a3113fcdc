"""The judges of the kernels that were run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.checks import kernels
from app.config import ModelRequest
from app.facts.kernels import KernelFacts, KernelRun
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import H100

PLAN = Plan(H100, ModelRequest(), Path("reports"))
TORCH = KernelRun("torch", "matmul bfloat16", 0.2, 0.0001)
PACK = KernelRun("bitsandbytes", "quantize_4bit nf4", 0.1, 0.0002)
UNPACK = KernelRun("bitsandbytes", "dequantize_4bit nf4", 0.1, 0.0003)
TRITON = KernelRun("triton", "axpb bfloat16", 1.5, 0.0004)
NO_COMPILER = Finding(
    Status.FAIL, "Failed to find C compiler", next_step="install one", fault=Fault.INTERNAL
)


def judged(*runs: KernelRun) -> dict[str, Finding]:
    facts = KernelFacts("NVIDIA H100", runs)
    return {check.id: check.judge(facts, PLAN) for check in kernels.CHECKS}


def faults(found: dict[str, Finding]) -> dict[str, Fault]:
    by_check = {check.id: check.fault for check in kernels.CHECKS}
    return {
        name: each.fault or by_check[name] for name, each in found.items() if each.status.blocks
    }


def test_right_results_pass_with_both_times() -> None:
    found = judged(TORCH, PACK, UNPACK, TRITON)
    assert {each.status for each in found.values()} == {Status.PASS}
    assert found["stack.triton_kernel"].actual == "axpb bfloat16 1500.0 ms, then 0.40 ms"
    assert "dequantize_4bit nf4 100.0 ms" in found["stack.bitsandbytes_kernel"].actual


def test_a_wrong_result_is_the_devices_fault_and_hides_no_other_library() -> None:
    found = judged(TORCH, PACK, replace(UNPACK, wrong="1 of 4096 elements"), TRITON)
    assert faults(found) == {"stack.bitsandbytes_kernel": Fault.NUMERICS}
    finding = found["stack.bitsandbytes_kernel"]
    assert "on NVIDIA H100: dequantize_4bit nf4: 1 of 4096 elements" in finding.reason
    assert finding.next_step


def test_what_a_kernel_threw_keeps_its_fault_and_says_which_kernel() -> None:
    found = judged(TORCH, PACK, UNPACK, replace(TRITON, failure=NO_COMPILER))
    assert faults(found) == {"stack.triton_kernel": Fault.INTERNAL}
    told = found["stack.triton_kernel"]
    assert told.reason == "axpb bfloat16: Failed to find C compiler"
    assert told.next_step == "install one"


def test_every_library_is_judged_by_its_own_kernels() -> None:
    found = judged(
        replace(TORCH, wrong="x"), replace(PACK, failure=NO_COMPILER), replace(TRITON, wrong="y")
    )
    assert set(faults(found)) == {check.id for check in kernels.CHECKS}


def test_what_was_not_tried_is_no_pass() -> None:
    found = judged(TORCH, KernelRun("bitsandbytes", "nf4", skipped="4-bit loading is off"))
    assert found["stack.bitsandbytes_kernel"].status is Status.SKIP
    assert found["stack.bitsandbytes_kernel"].reason == "4-bit loading is off"
    assert found["stack.triton_kernel"].status is Status.SKIP


def test_the_report_has_the_times_of_what_ran() -> None:
    facts = KernelFacts(
        "cpu", (TORCH, replace(PACK, failure=NO_COMPILER), KernelRun("triton", "axpb", skipped="-"))
    )
    assert [(each.library, each.first_s) for each in kernels.section(facts)] == [("torch", 0.2)]
