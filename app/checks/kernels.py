"""Judges of the kernels that were run: do the libraries compute on this device at all."""

from __future__ import annotations

from dataclasses import replace

from app.checks import Check
from app.facts.kernels import KernelFacts
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan
from app.sections import Kernel


def torch_kernel(facts: KernelFacts, _plan: Plan) -> Finding:
    """A product of matrices, exact in every order of summing."""
    return _judged("torch", facts)


def bitsandbytes_kernel(facts: KernelFacts, _plan: Plan) -> Finding:
    """Packing and unpacking of known numbers, bit for bit."""
    return _judged("bitsandbytes", facts)


def triton_kernel(facts: KernelFacts, _plan: Plan) -> Finding:
    """A kernel through Triton's compiler; without a device it is compiled and not run."""
    return _judged("triton", facts)


def _judged(library: str, facts: KernelFacts) -> Finding:
    runs = [run for run in facts.runs if run.library == library]
    for run in runs:
        if run.failure is not None:
            return replace(run.failure, reason=f"{run.name}: {run.failure.reason}")
        if run.wrong:
            return failed(
                f"{library} computes wrong numbers on {facts.device}: {run.name}: {run.wrong}",
                expected="the exact result",
                actual=run.wrong,
                next_step="run the boot on another node; if it passes there, take this one out of "
                "service",
            )
    tried = [run for run in runs if not run.skipped]
    if not tried:
        return skipped(next((run.skipped for run in runs), f"no kernel of {library} was tried"))
    times = "; ".join(
        f"{run.name} {1000 * run.first_s:.1f} ms, then {1000 * run.again_s:.2f} ms" for run in tried
    )
    names = "; ".join(run.name for run in tried)
    return passed(f"{library}: {names}: the result is right", actual=times)


def section(facts: KernelFacts) -> list[Kernel]:
    """The kernels that ran, as the report shows them."""
    return [
        Kernel(library=run.library, name=run.name, first_s=run.first_s, again_s=run.again_s)
        for run in facts.runs
        if not (run.skipped or run.failure)
    ]


CHECKS: tuple[Check[KernelFacts], ...] = (
    Check(
        "stack.torch_kernel",
        Fault.NUMERICS,
        "integers, multiplied on the host",
        torch_kernel,
        cause="a device that computes wrong, or a torch without code for it",
        fix="run the boot on another node, and take this one out of service if it passes there",
    ),
    Check(
        "stack.bitsandbytes_kernel",
        Fault.NUMERICS,
        "the 16 numbers of NF4, times powers of two",
        bitsandbytes_kernel,
        cause="a native library without code for the device, or a device that computes wrong",
        fix="use this profile's image; if it is that, run the boot on another node",
    ),
    Check(
        "stack.triton_kernel",
        Fault.NUMERICS,
        "integers, computed on the host; without a device what the compiler writes",
        triton_kernel,
        cause="no C compiler, Python.h or ptxas that runs, a compiler cache that cannot be "
        "written, or a device that computes wrong",
        fix="use this profile's image and a cache folder that this uid may write to",
    ),
)
