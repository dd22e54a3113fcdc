"""Real kernels on this device, what is made of their failures, and deliberate corruption."""

from __future__ import annotations

import errno
import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.checks import kernels
from app.config import ModelRequest
from app.engine import environment
from app.facts.kernels import KernelFacts, KernelRun
from app.outcome import Fault, Status
from app.plan import Plan
from app.profiles import CPU
from tests.stack_models import failing

pytestmark = pytest.mark.stack

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(CPU, ModelRequest(), Path("reports"))


@pytest.fixture(autouse=True)
def _imported() -> None:
    environment.pin(CPU)
    importlib.import_module("unsloth")


def run(plan: Plan = PLAN) -> KernelFacts:
    from app.engine import kernels as engine

    return engine.run(plan)


def faults(facts: KernelFacts, plan: Plan = PLAN) -> dict[str, Fault]:
    own = {check.id: check.fault for check in kernels.CHECKS}
    found = failing(kernels.CHECKS, facts, plan)
    return {name: each.fault or own[name] for name, each in found.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_library_gives_the_known_result_in_every_compute_dtype(dtype: str) -> None:
    plan = replace(PLAN, profile=replace(CPU, compute_dtype=dtype))
    facts = run(plan)
    assert faults(facts, plan) == {}
    assert [each.library for each in facts.runs] == [
        *("torch", "bitsandbytes", "bitsandbytes", "triton")
    ]
    assert all(each.first_s > 0 and each.again_s > 0 for each in facts.runs)
    assert not any(each.skipped for each in facts.runs)


def test_without_4_bit_loading_nothing_is_packed() -> None:
    plan = replace(PLAN, request=ModelRequest(load_in_4bit=False))
    found = kernels.bitsandbytes_kernel(run(plan), plan)
    assert (found.status, found.reason) == (Status.SKIP, "4-bit loading is off")


def test_the_global_random_state_is_not_touched() -> None:
    import torch

    before = torch.get_rng_state()
    run()
    assert torch.equal(before, torch.get_rng_state())


def test_a_kernel_that_throws_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitsandbytes import functional

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("an internal error")

    monkeypatch.setattr(functional, "dequantize_4bit", broken)
    facts = run()
    assert faults(facts) == {"stack.bitsandbytes_kernel": Fault.NUMERICS}
    assert [each.library for each in facts.runs if each.failure] == ["bitsandbytes"]
    assert "an internal error" in failing(kernels.CHECKS, facts, PLAN).popitem()[1].reason


def corrupted(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **options: change(function(*args, **options))


def halves_swapped(data: Any) -> Any:
    return (data & 15) * 16 + data // 16


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dequantize_4bit", lambda out: out.neg()),
        ("dequantize_4bit", lambda out: out * 2),
        ("dequantize_4bit", lambda out: out.roll(1)),
        ("dequantize_4bit", lambda out: out / 0),
        ("dequantize_4bit", lambda out: out.double()),
        ("dequantize_4bit", lambda out: out.bfloat16().float()),
        ("dequantize_4bit", lambda out: out.index_fill(0, out.new_tensor([7]).int(), 0)),
        ("quantize_4bit", lambda found: (halves_swapped(found[0]), found[1])),
        ("quantize_4bit", lambda found: (found[0] ^ 1, found[1])),
    ],
)
def test_a_wrong_packing_is_the_devices_fault(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]
) -> None:
    from bitsandbytes import functional

    monkeypatch.setattr(functional, name, corrupted(getattr(functional, name), change))
    assert faults(run()) == {"stack.bitsandbytes_kernel": Fault.NUMERICS}


def test_a_product_with_one_wrong_element_is_the_devices_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    real = torch.Tensor.__matmul__

    def wrong(left: Any, right: Any) -> Any:
        out = real(left, right)
        if out.is_floating_point():
            out[200, 3] += 1
        return out

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    facts = run()
    assert faults(facts) == {"stack.torch_kernel": Fault.NUMERICS}
    assert facts.runs[0].wrong.startswith("1 of 65536 elements; at 51203 ")


def test_a_result_that_is_no_number_differs_from_everything() -> None:
    import torch

    from app.engine.kernels import _unlike

    nan = torch.tensor([1.0, float("nan")])
    assert _unlike(torch.tensor([1.0, 2.0]))(nan) == "1 of 2 elements; at 1 nan and not 2"
    assert _unlike(torch.tensor([1.0, 2.0]))(torch.ones(3)) == "torch.float32 (3,)"
    assert _unlike(torch.tensor([1.0, 2.0]))(torch.tensor([1.0, 2.0])) == ""


def triton_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[KernelRun, KernelFacts]:
    """Compiled with this cache, which Triton looks up at every use."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    facts = run()
    return next(each for each in facts.runs if each.library == "triton"), facts


def test_a_rehearsal_compiles_for_a_card_and_fills_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, facts = triton_alone(tmp_path, monkeypatch)
    assert faults(facts) == {}
    assert found.name == "axpb bfloat16, compiled for sm_90"
    assert [path.read_bytes()[:4] for path in tmp_path.rglob("*.cubin")] == [b"\x7fELF"]


def test_a_damaged_compiler_cache_is_not_the_devices_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton_alone(tmp_path, monkeypatch)
    next(tmp_path.rglob("*.cubin")).write_bytes(b"")
    found, facts = triton_alone(tmp_path, monkeypatch)
    assert faults(facts) == {"stack.triton_kernel": Fault.INTERNAL}
    assert found.failure is not None
    assert "empty TRITON_CACHE_DIR" in found.failure.next_step


def test_a_cache_that_cannot_be_written_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    _, facts = triton_alone(tmp_path / "file" / "cache", monkeypatch)
    assert faults(facts) == {"stack.triton_kernel": Fault.CONFIG}


def test_an_assembler_that_fails_is_a_broken_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "ptxas"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Cuda compilation tools, release 12.9, V12.9.86"'
        " && exit\nexit 3\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(broken))
    found, facts = triton_alone(tmp_path / "cache", monkeypatch)
    assert faults(facts) == {"stack.triton_kernel": Fault.INTERNAL}
    assert found.failure is not None
    assert "PTXASError" in found.failure.reason


def test_a_torch_that_is_built_for_none_of_the_cards_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from app.engine import kernels as engine

    monkeypatch.setattr(engine, "architectures", lambda: ("sm_75", "sm_120"))
    found = kernels.triton_kernel(run(), PLAN)
    assert (found.status, found.reason) == (Status.SKIP, "torch is built for none of the cards")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("Triton Error [CUDA]: out of memory"), Fault.HARDWARE_MISMATCH),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), Fault.INTERNAL),
        (
            RuntimeError("Triton Error [CUDA]: no kernel image is available for execution on th"),
            Fault.HARDWARE_MISMATCH,
        ),
        (RuntimeError("CUDA error: no kernel image is available"), Fault.HARDWARE_MISMATCH),
        (RuntimeError("Triton Error [CUDA]: unspecified launch failure"), Fault.NODE_UNFIT),
        (RuntimeError("Failed to find C compiler. Please specify"), Fault.INTERNAL),
        (RuntimeError("Cannot find ptxas"), Fault.INTERNAL),
        (
            RuntimeError("Attempted to use bitsandbytes native library functionality"),
            Fault.INTERNAL,
        ),
        (subprocess.CalledProcessError(1, ["gcc", "-I/usr/include"]), Fault.INTERNAL),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "gcc"), Fault.INTERNAL),
        (OSError("libcuda.so.1: cannot open shared object file"), Fault.INTERNAL),
        (AttributeError("no attribute QuantState"), Fault.INTERNAL),
        (ImportError("cannot import name knobs"), Fault.INTERNAL),
        (NotImplementedError("Could not run for the 'CUDA' backend"), Fault.INTERNAL),
        (PermissionError(errno.EACCES, "Permission denied", "/cache"), Fault.CONFIG),
        (OSError(errno.EROFS, "Read-only file system", "/cache"), Fault.CONFIG),
        (FileExistsError(errno.EEXIST, "File exists", "/cache"), Fault.CONFIG),
        (OSError(errno.ENOSPC, "No space left on device", "/cache"), Fault.READ_ERROR),
        (MemoryError(), Fault.HARDWARE_MISMATCH),
        (RuntimeError("cuBLAS says nothing of use"), Fault.NUMERICS),
        (ZeroDivisionError("division by zero"), Fault.NUMERICS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_whose_fault_an_exception_is(error: Exception, fault: Fault) -> None:
    from app.engine import kernel_errors

    found = kernel_errors.failure("triton", error, CPU).finding
    assert (found.fault, found.status) == (fault, Status.FAIL)
    assert found.expected
    assert found.next_step
    assert "\n" not in found.reason


def test_an_exception_behind_another_tells_as_much() -> None:
    import torch

    from app.engine import kernel_errors

    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except RuntimeError as cause:
            raise ValueError("the launch failed") from cause
    except ValueError as error:
        found = kernel_errors.failure("torch", error, CPU).finding
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert "out of device memory" in found.reason


LAUNCHED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from dataclasses import replace
from app.engine import environment
from app.profiles import CPU
environment.pin(CPU)
import unsloth
from app.engine import kernels, triton_kernel
profile = replace(CPU, compute_dtype="float16")
real = triton_kernel.launch
for launch in (real, lambda source, target: None, lambda source, target: real(source[:-1], target)):
    triton_kernel.launch = launch
    found = kernels._launched(profile)
    print("found", found.failure, found.wrong)
"""


def test_a_launch_that_does_nothing_or_too_little_is_seen() -> None:
    """In Triton's interpreter, which runs a kernel on the host; it has no bfloat16."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("found")]
    assert told == [
        "found None ",
        "found None 1279 of 1279 elements; at 0 0 and not 1",
        "found None 1 of 1279 elements; at 1278 0 and not 17",
    ]
