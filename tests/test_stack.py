"""The software stack: architectures, device type, native libraries, and failing imports."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks import stack
from app.config import ModelRequest
from app.engine.stack import _broken
from app.facts.stack import StackFacts
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import CPU, H100, V100, Profile

CUDA_STACK = StackFacts(
    python="3.12.3",
    packages={"torch": "2.14.1"},
    cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    device_type="cuda",
    bnb_library="CudaBNBNativeLibrary",
    bnb_compiled_with_cuda=True,
)


def plan_for(profile: Profile, *, load_in_4bit: bool = True) -> Plan:
    return Plan(profile, ModelRequest(load_in_4bit=load_in_4bit), Path("reports"))


def blocking(facts: StackFacts, plan: Plan) -> dict[str, Fault]:
    found = {check: check.judge(facts, plan) for check in stack.CHECKS}
    return {c.id: each.fault or c.fault for c, each in found.items() if each.status.blocks}


def test_the_h100_stack_passes_on_h100_and_has_no_kernels_for_v100() -> None:
    assert blocking(CUDA_STACK, plan_for(H100)) == {}
    found = blocking(CUDA_STACK, plan_for(V100))
    assert found == {"stack.architectures": Fault.HARDWARE_MISMATCH}


@pytest.mark.parametrize(
    ("listed", "profile", "status"),
    [
        ("sm_70 sm_75 sm_90", V100, Status.PASS),
        ("sm_75 sm_80", V100, Status.FAIL),  # a higher minor does not run on a lower one
        ("sm_60 compute_60", V100, Status.WARN),
        ("compute_90", V100, Status.FAIL),
        ("sm_80 sm_86", H100, Status.FAIL),
        ("sm_90a", H100, Status.PASS),
        ("sm_80 compute_80", H100, Status.WARN),
        ("compute_75a", H100, Status.FAIL),
        ("compute_90a", H100, Status.WARN),
        ("sm_100 sm_120", H100, Status.FAIL),
        ("gfx942", H100, Status.FAIL),
        ("", H100, Status.FAIL),
        ("", CPU, Status.SKIP),
    ],
)
def test_architectures_by_cudas_rules(listed: str, profile: Profile, status: Status) -> None:
    facts = replace(CUDA_STACK, architectures=tuple(listed.split()))
    assert stack.architectures(facts, plan_for(profile)).status is status


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_list_of_architectures_gets_a_verdict(listed: list[str]) -> None:
    found = stack.architectures(replace(CUDA_STACK, architectures=tuple(listed)), plan_for(H100))
    assert found.status in (Status.PASS, Status.WARN, Status.FAIL)


def test_a_cpu_wheel_on_a_gpu_profile_is_a_broken_image() -> None:
    facts = replace(
        CUDA_STACK, cuda=None, device_type="cpu", architectures=(), bnb_compiled_with_cuda=False
    )
    found = blocking(facts, plan_for(H100))
    assert found["stack.torch_build"] is found["stack.device_type"] is Fault.INTERNAL


def test_unsloth_on_the_cpu_of_a_gpu_profile_is_the_nodes_fault() -> None:
    found = blocking(replace(CUDA_STACK, device_type="cpu"), plan_for(H100))
    assert found == {"stack.device_type": Fault.NODE_UNFIT}


def test_unsloth_on_a_gpu_is_no_rehearsal() -> None:
    assert "stack.device_type" in blocking(CUDA_STACK, plan_for(CPU))


@pytest.mark.parametrize(
    ("library", "compiled", "profile", "four_bits", "fine"),
    [
        ("CudaBNBNativeLibrary", True, H100, True, True),
        ("BNBNativeLibrary", False, H100, True, False),
        ("ErrorHandlerMockBNBNativeLibrary", False, H100, True, False),
        ("ErrorHandlerMockBNBNativeLibrary", False, CPU, True, False),
        ("BNBNativeLibrary", False, CPU, True, True),
        ("ErrorHandlerMockBNBNativeLibrary", False, H100, False, True),
    ],
)
def test_bitsandbytes_has_the_devices_library(
    library: str, profile: Profile, *, compiled: bool, four_bits: bool, fine: bool
) -> None:
    facts = replace(CUDA_STACK, bnb_library=library, bnb_compiled_with_cuda=compiled)
    found = stack.bitsandbytes(facts, plan_for(profile, load_in_4bit=four_bits))
    assert found.status.blocks is not fine


def test_a_missing_package_is_named() -> None:
    found = stack.packages(replace(CUDA_STACK, missing=("timm",)), plan_for(H100))
    assert (found.status, found.reason) == (Status.FAIL, "not installed: timm")


def child(code: str) -> str:
    """Run code in a fresh interpreter, from the repository's root; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


FAILING = """
import sys, types
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "unsloth":
            try:
                raise {error}
            except BaseException as cause:
                raise {mask} from cause
sys.meta_path.insert(0, Finder())
from app.engine import stack
from app.errors import BootError
try:
    stack.import_stack()
except BootError as error:
    print(error.finding.fault, "|", error.finding.reason, "|", error.finding.actual)
"""


@pytest.mark.parametrize(
    ("error", "fault", "said"),
    [
        ("OSError('libcudart.so.13: cannot open')", Fault.INTERNAL, "OSError: libcudart.so.13"),
        (f"OSError({errno.EIO}, 'Input/output error')", Fault.READ_ERROR, "Input/output"),
        (f"OSError({errno.EROFS}, 'Read-only', '/.cache')", Fault.CONFIG, "Read-only"),
        ("NotImplementedError('You need a GPU.')", Fault.NODE_UNFIT, "You need a GPU."),
        (f"OSError({errno.ENOSPC}, 'No space left')", Fault.READ_ERROR, "No space left"),
        ("MemoryError()", Fault.HARDWARE_MISMATCH, "MemoryError"),
        ("AttributeError('no attribute x')", Fault.INTERNAL, "AttributeError: no attribute x"),
        ("SyntaxError('invalid syntax')", Fault.INTERNAL, "SyntaxError: invalid syntax"),
        ("SystemExit(3)", Fault.INTERNAL, "SystemExit: 3"),
    ],
)
def test_a_failing_import_tells_its_innermost_cause(error: str, fault: Fault, said: str) -> None:
    told = child(FAILING.format(error=error, mask="ImportError('precompile already registered')"))
    assert told.startswith(f"{fault.value} | importing unsloth failed: ")
    assert said in told
    assert "precompile already registered" in told
    assert "(<string>:7)" in told


def test_an_import_that_leaves_the_program_is_a_failed_import() -> None:
    told = child(FAILING.format(error="ValueError()", mask="SystemExit('bye')"))
    assert "ValueError (seen as SystemExit: bye)" in told


def test_the_exception_that_unsloth_branches_with_is_no_cause() -> None:
    """Its CPU backend is imported inside that handler: see the real one below."""
    branch = "type('_CPUBackendSelected', (Exception,), {{}})()".replace("{{}}", "{}")
    told = child(FAILING.format(error=branch, mask="TypeError('skew')"))
    assert "importing unsloth failed: TypeError: skew | skew (<string>:9)" in told


@pytest.mark.stack
@pytest.mark.parametrize("name", ["torchvision", "peft"])
def test_a_package_that_unsloth_needs_and_that_does_not_fit_is_the_cause(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(f"raise AttributeError('skew of {name}')")
    told = child(
        "import sys; "
        f"sys.path.insert(0, {str(tmp_path)!r}); "
        "from app.engine import environment, stack; from app.errors import BootError; "
        "from app.profiles import CPU; environment.pin(CPU)\n"
        "try: stack.import_stack()\n"
        "except BootError as error: print(error.finding.reason, error.finding.actual)"
    )
    assert f"importing unsloth failed: AttributeError: skew of {name} (seen as" in told
    assert f"{name}/__init__.py:1)" in told


def test_packages_that_unsloth_does_without_are_tried_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    names = ("broken_timm", "broken_bnb", "fine")
    for name, code in zip(names, ("x.y", "raise SystemExit(1)", ""), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr("app.engine.stack._PROVEN", names)
    broken = dict(_broken())
    assert list(broken) == ["broken_timm", "broken_bnb"]
    found = stack.packages(replace(CUDA_STACK, broken=broken), plan_for(H100))
    assert (found.status, found.fault) == (Status.FAIL, Fault.INTERNAL)
    assert "importing broken_timm failed: NameError" in found.reason
    assert "importing broken_bnb failed: SystemExit: 1" in found.reason
    assert f"{tmp_path}/broken_timm.py:1" in found.actual
    assert "lock" in found.next_step


def test_what_cannot_be_imported_is_named_once() -> None:
    broken = {"bitsandbytes": Finding(Status.FAIL, "importing bitsandbytes failed")}
    facts = replace(CUDA_STACK, broken=broken, bnb_library="", bnb_compiled_with_cuda=False)
    assert set(blocking(facts, plan_for(H100))) == {"stack.packages"}


EARLY = """
import sys, types
sys.modules["{name}"] = types.ModuleType("{name}")
sys.modules["unsloth_stub"] = types.ModuleType("unsloth_stub")
from app.engine import stack
from app.errors import BootError
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "unsloth":
            raise RuntimeError("reached")
sys.meta_path.insert(0, Finder())
try:
    stack.import_stack(tolerate_torch={tolerate})
except BootError as error:
    print(error.finding.fault, "|", error.finding.reason)
"""


@pytest.mark.parametrize(
    ("name", "tolerate", "refused"),
    [
        ("torch", False, True),
        ("torch", True, False),
        ("transformers", True, True),
        ("peft", False, True),
        ("trl", True, True),
    ],
)
def test_unsloth_comes_first(name: str, *, tolerate: bool, refused: bool) -> None:
    told = child(EARLY.format(name=name, tolerate=tolerate))
    assert (f"{name} imported before unsloth" in told) is refused
    assert ("reached" in told) is not refused
