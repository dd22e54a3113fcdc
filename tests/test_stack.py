"""The software stack: architectures, device type, native libraries, and failing imports."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks import _places, stack
from app.config import ModelRequest
from app.engine import places
from app.engine.stack import _broken
from app.facts.cudnn import release
from app.facts.stack import CodeFolder, Origin, StackFacts
from app.outcome import Fault, Finding, Status
from app.plan import Baked, Plan
from app.profiles import CPU, H100, V100, Profile

CUDA_STACK = StackFacts(
    python="3.12.3",
    packages={"torch": "2.14.1"},
    cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    device_type="cuda",
    bnb_library="CudaBNBNativeLibrary",
    bnb_compiled_with_cuda=True,
    bnb_file="/site/bitsandbytes/libbitsandbytes_cuda130.so",
    cudnn=92400,
    cudnn_built=(9, 24, 0),
    origins=(Origin("torch", "/site/torch/__init__.py", "/site"),),
    code_folders=(CodeFolder("triton", "/cache/h100/triton"),),
)
BAKED = Baked("digest", {}, (), 580)


def plan_for(profile: Profile, *, load_in_4bit: bool = True) -> Plan:
    return Plan(profile, ModelRequest(load_in_4bit=load_in_4bit), Path("reports"))


def blocking(facts: StackFacts, plan: Plan) -> dict[str, Fault]:
    found = {check: check.judge(facts, plan) for check in stack.CHECKS}
    return {c.id: each.fault or c.fault for c, each in found.items() if each.status.blocks}


def test_the_h100_stack_passes_on_h100_and_has_no_kernels_for_v100() -> None:
    assert blocking(CUDA_STACK, plan_for(H100)) == {}
    found = blocking(CUDA_STACK, plan_for(V100))
    assert found == {
        "stack.architectures": Fault.HARDWARE_MISMATCH,
        "stack.cudnn": Fault.INTERNAL,
    }


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


@pytest.mark.parametrize(
    ("file", "profile", "status", "fault"),
    [
        ("libbitsandbytes_cuda130.so", H100, Status.PASS, None),
        ("libbitsandbytes_cuda128.so", H100, Status.FAIL, Fault.CONFIG),  # only by the variable
        ("libbitsandbytes_cuda132.so", H100, Status.WARN, None),
        ("libbitsandbytes_cuda128.so", CPU, Status.PASS, None),
        ("", H100, Status.PASS, None),  # not known: the class has told enough
    ],
)
def test_bitsandbytes_takes_the_library_for_torchs_cuda(
    file: str, profile: Profile, status: Status, fault: Fault | None
) -> None:
    found = stack.bitsandbytes(replace(CUDA_STACK, bnb_file=file), plan_for(profile))
    assert (found.status, found.fault) == (status, fault)
    assert file in found.actual
    assert status is Status.PASS or "BNB_CUDA_VERSION" in found.next_step


@pytest.mark.parametrize(
    ("number", "built", "profile", "status"),
    [
        (91002, (9, 10, 2), V100, Status.PASS),
        (91100, (9, 11, 0), V100, Status.FAIL),  # Volta was dropped
        (92400, (9, 24, 0), H100, Status.PASS),
        (92400, (9, 10, 2), H100, Status.PASS),  # torch takes a later minor version
        (90800, (9, 24, 0), H100, Status.FAIL),  # one that LD_LIBRARY_PATH brought
        (8907, (9, 10, 2), V100, Status.FAIL),
        (8907, (), V100, Status.PASS),
        (None, (), H100, Status.SKIP),
        (90800, (9, 24, 0), CPU, Status.SKIP),
    ],
)
def test_cudnn_is_torchs_own_and_has_kernels_for_the_hardware(
    number: int | None, built: tuple[int, ...], profile: Profile, status: Status
) -> None:
    found = stack.cudnn(replace(CUDA_STACK, cudnn=number, cudnn_built=built), plan_for(profile))
    assert found.status is status
    assert not status.blocks or found.next_step


def test_cudnn_wrote_its_version_otherwise_before_9() -> None:
    assert [release(number) for number in (91002, 92400, 8907)] == [
        *((9, 10, 2), (9, 24, 0), (8, 9, 7))
    ]


STRAY = Origin("peft", "/home/me/peft/__init__.py", "/site", recorded=False)
CHECKOUT = replace(STRAY, module="unsloth", file="/src/unsloth/__init__.py", editable=True)


@pytest.mark.parametrize(
    ("origin", "inside", "outside"),
    [(STRAY, Status.FAIL, Status.WARN), (CHECKOUT, Status.WARN, Status.PASS)],
)
def test_an_image_promises_its_own_packages(
    origin: Origin, inside: Status, outside: Status
) -> None:
    facts = replace(CUDA_STACK, origins=(*CUDA_STACK.origins, origin))
    plan = plan_for(H100)
    found = [_places.origins(facts, each) for each in (replace(plan, baked=BAKED), plan)]
    assert [each.status for each in found] == [inside, outside]
    assert all(origin.file in each.reason for each in found)


def installed(folder: Path, name: str, **direct_url: object) -> None:
    """A package with its record."""
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if direct_url:
        (record / "direct_url.json").write_text(json.dumps(direct_url))


def origin_of(file: object, monkeypatch: pytest.MonkeyPatch) -> Origin | None:
    """What is said of a module `peft` that was run from that file."""
    module = ModuleType("peft")
    module.__file__ = file  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "peft", module)
    return next((each for each in places.origins() if each.module == "peft"), None)


def test_a_package_is_at_home_where_its_record_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, other = tmp_path / "site", tmp_path / "other"
    installed(site, "peft")
    monkeypatch.syspath_prepend(site)
    here = origin_of(str(site / "peft" / "__init__.py"), monkeypatch)
    assert here == Origin("peft", str(site / "peft" / "__init__.py"), str(site))
    there = origin_of(str(other / "peft" / "__init__.py"), monkeypatch)
    assert there is not None
    assert (there.recorded, there.editable) == (False, False)


def test_links_lead_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package into an installer's cache, and of an environment to where it really lies."""
    site, cache = tmp_path / "site", tmp_path / "cache"
    installed(site, "peft")
    cache.mkdir()
    (cache / "__init__.py").touch()
    (site / "peft").symlink_to(cache)
    (tmp_path / "link").symlink_to(site)
    monkeypatch.syspath_prepend(site)
    for file in (site / "peft" / "__init__.py", tmp_path / "link" / "peft.py"):
        found = origin_of(str(file), monkeypatch)
        assert found is not None
        assert found.recorded


def test_an_editable_install_runs_from_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, checkout = tmp_path / "site", tmp_path / "a checkout"
    installed(site, "peft", url=checkout.as_uri(), dir_info={"editable": True})
    monkeypatch.syspath_prepend(site)
    found = origin_of(str(checkout / "src" / "peft" / "__init__.py"), monkeypatch)
    assert found is not None
    assert (found.recorded, found.editable) == (False, True)
    other = origin_of(str(tmp_path / "third" / "peft" / "__init__.py"), monkeypatch)
    assert other is not None
    assert not other.editable


def test_a_tests_double_has_no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin_of(None, monkeypatch) is None
    assert origin_of(object(), monkeypatch) is None


@pytest.mark.parametrize(
    ("folder", "status"),
    [
        (CodeFolder("unsloth_zoo", "/cache/h100/unsloth"), Status.PASS),
        (CodeFolder("unsloth_zoo", "unsloth_compiled_cache", pinned=False), Status.WARN),
        (CodeFolder("torch", "/scratch/torchinductor_me", pinned=False), Status.PASS),
    ],
)
def test_unsloths_generated_code_is_not_shared_between_hardware(
    folder: CodeFolder, status: Status
) -> None:
    """That of the others is named by device and content: a note, as a launcher may have set it."""
    facts = replace(CUDA_STACK, code_folders=(*CUDA_STACK.code_folders, folder))
    found = _places.compile_cache(facts, plan_for(H100))
    assert found.status is status
    assert folder.path in found.actual
    assert folder.pinned or status is Status.WARN or "torch, which shares" in found.reason


def test_without_a_library_that_generates_code_there_is_no_folder() -> None:
    facts = replace(CUDA_STACK, code_folders=())
    assert _places.compile_cache(facts, plan_for(H100)).status is Status.SKIP


GATHERED = """
{first}
from app.engine import environment, places, stack
from app.profiles import CPU
environment.pin(CPU)
stack.import_stack(tolerate_torch=True)
import torch
found = stack.gather()
{then}
"""


@pytest.mark.stack
def test_what_is_installed_here_is_at_home_and_writes_where_it_is_told() -> None:
    told = child(
        GATHERED.format(
            first="",
            then="print([each for each in found.origins if not each.recorded], "
            "len(found.origins) > 9, [each.pinned for each in found.code_folders], "
            "found.bnb_file.rpartition('/')[2], "
            "found.cudnn == torch.backends.cudnn.version(), torch.cuda.is_initialized())",
        )
    )
    assert "[] True [True, True, True] libbitsandbytes_cpu.so True False" in told


@pytest.mark.stack
def test_an_import_before_the_pinning_shows_in_the_folders() -> None:
    """As in a notebook: torch has then set Inductor's variable itself, to one folder for all."""
    told = child(
        GATHERED.format(
            first="import os; os.environ['UNSLOTH_DISABLE_STATISTICS'] = '1'; import unsloth",
            then="print([each.library for each in found.code_folders if not each.pinned])",
        )
    )
    assert "['torch']" in told


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
    assert "importing unsloth failed: ValueError:  (seen as SystemExit: bye)" in told


def test_the_exception_that_unsloth_branches_with_is_no_cause() -> None:
    """Its CPU backend is imported inside that handler: see the real one below."""
    branch = "type('_CPUBackendSelected', (Exception,), {{}})()".replace("{{}}", "{}")
    told = child(FAILING.format(error=branch, mask="TypeError('skew')"))
    assert "importing unsloth failed: TypeError: skew | TypeError: skew (<string>:9)" in told


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
