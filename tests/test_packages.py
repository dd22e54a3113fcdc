"""What is installed, as files show it: this environment, crafted ones, and libraries gcc makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks import Check, _native, _packages, _wheels
from app.checks._versions import numbers, unmet
from app.facts.host import HostFacts
from app.facts.packages import (
    REQUIRED_PACKAGES,
    BitsandbytesFacts,
    NativeFacts,
    PackagesFacts,
    TorchBuild,
)
from app.outcome import Fault, Finding, Status
from app.plan import Baked, Plan
from app.probes.bitsandbytes import probe_bitsandbytes
from app.probes.elf import ElfError, read_library
from app.probes.native import probe_native
from app.probes.packages import probe_packages
from app.probes.wheel import (
    kernel_architectures,
    package_folder,
    torch_architectures,
    torch_build,
    xformers_build,
)
from tests.fakes_preflight import findings, plan_for

CHECKS: tuple[Check[HostFacts], ...] = (*_packages.CHECKS, *_wheels.CHECKS, *_native.CHECKS)
GCC = shutil.which("gcc") or ""
with_gcc = pytest.mark.skipif(not GCC, reason="the library is made with gcc")
# A set that fits, by its records alone.
FITS: dict[str, str] = dict.fromkeys(REQUIRED_PACKAGES, "1.0") | {
    "torch": "2.14.1",
    "unsloth": "2026.10.9",
    "unsloth_zoo": "2026.10.9",
    "bitsandbytes": "0.50.2",
}


def judged(facts: PackagesFacts, plan: Plan | None = None) -> dict[str, Finding]:
    """What the checks say of it."""
    # The judges of the packages read nothing else of the node.
    host = cast("HostFacts", SimpleNamespace(packages=facts))
    return findings(CHECKS, host, plan or plan_for("h100"))


def install(
    folder: Path, versions: Mapping[str, str], needs: Mapping[str, str] | None = None
) -> str:
    """Records and empty packages, as an installer leaves them; `needs` is the metadata's lines."""
    for name, version in versions.items():
        record = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        record.mkdir(parents=True)
        said = (needs or {}).get(name, "")
        (record / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{said}\n\nText\n")
        package = folder / name.replace("-", "_")
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    return str(folder)


def look(*path: str, own: str | None = None, plan: Plan | None = None) -> PackagesFacts:
    """The probe along these folders."""
    plan = plan or plan_for("h100")
    return probe_packages(plan, {}, path, (own,) if own else (path[-1],))


def baked(versions: Mapping[str, str]) -> Plan:
    return replace(plan_for("h100"), baked=Baked("digest", versions, ("sm_90",), 580))


@pytest.mark.parametrize("hardware", ["h100", "v100", "cpu"])
def test_this_environment_is_right_for_every_profile(hardware: str) -> None:
    plan = plan_for(hardware)
    said = judged(probe_packages(plan, dict(os.environ)), plan)
    assert {finding.status for finding in said.values()} <= {Status.PASS, Status.SKIP}, said
    assert said["host.packages"].status is Status.PASS
    assert said["host.glibc"].status is Status.PASS


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import os, sys; from app.probes.packages import probe_packages; "
        "from tests.fakes_preflight import plan_for; "
        "probe_packages(plan_for('h100'), dict(os.environ)); "
        "print({'torch', 'triton', 'bitsandbytes', 'numpy', 'packaging'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "set()"


def test_a_set_that_fits_passes(tmp_path: Path) -> None:
    assert judged(look(install(tmp_path, FITS)))["host.packages"].status is Status.PASS


@pytest.mark.parametrize("name", ["timm", "torchvision", "unsloth_zoo", "torch"])
def test_a_package_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    facts = look(install(tmp_path, {each: v for each, v in FITS.items() if each != name}))
    finding = judged(facts)["host.packages"]
    assert finding.status is Status.FAIL
    assert finding.actual == f"missing: {name}"


def test_a_record_without_its_files_is_a_missing_package(tmp_path: Path) -> None:
    """As an installer leaves it that was killed: the folder stays, and nothing can be imported."""
    path = install(tmp_path, FITS)
    (tmp_path / "peft" / "__init__.py").unlink()
    assert look(path).gone == ("peft",)
    assert "peft (its files are gone)" in judged(look(path))["host.packages"].reason


def test_an_image_holds_what_it_was_built_from(tmp_path: Path) -> None:
    path = install(tmp_path, FITS | {"torch": "2.14.1+cu130", "nvidia-nccl-cu13": "2.30.7"})
    same = {**FITS, "Unsloth.Zoo": "2026.10.9", "nvidia-nccl-cu13": "2.30.7"}
    assert judged(look(path), baked(same))["host.packages"].status is Status.PASS
    finding = judged(look(path), baked({**same, "peft": "0.21.2", "trl": "1.0", "rich": "15.0"}))[
        "host.packages"
    ]
    assert finding.status is Status.FAIL
    assert finding.actual == "peft 0.21.2 is 1.0; rich 15.0 is missing"
    assert "`python -m app.bake --derived`" in finding.next_step


def test_two_records_of_one_package_are_no_version(tmp_path: Path) -> None:
    path = install(tmp_path, FITS)
    (tmp_path / "peft-0.9.dist-info").mkdir()
    assert judged(look(path))["host.packages"].status is Status.WARN
    assert judged(look(path), baked(FITS))["host.packages"].status is Status.FAIL


@pytest.mark.parametrize(
    ("versions", "needs", "said"),
    [
        ({"unsloth_zoo": "2026.9.1"}, {}, "are not one release"),
        ({"torchao": "0.15.0"}, {}, "peft refuses torchao 0.15.0"),
        (
            {"transformers": "5.18.0"},
            {"unsloth": "Requires-Dist: transformers!=5.1.0,<=5.17.0,>=4.52.4"},
            "unsloth needs transformers<=5.17.0 and has 5.18.0",
        ),
        (
            {"torch": "2.10.0"},
            {"torchvision": "Requires-Dist: torch (>=2.14.0)"},
            "torchvision needs torch>=2.14.0 and has 2.10.0",
        ),
        (
            {"triton": "3.7.1"},
            {
                "torch": 'Requires-Dist: triton~=3.8.0; platform_system == "Linux" and '
                'python_version < "3.99"'
            },
            "torch needs triton~=3.8.0 and has 3.7.1",
        ),
        ({}, {"trl": "Requires-Dist: jinja2"}, "trl needs jinja2, which is not installed"),
    ],
)
def test_outside_an_image_what_does_not_fit_warns(
    tmp_path: Path, versions: Mapping[str, str], needs: Mapping[str, str], said: str
) -> None:
    finding = judged(look(install(tmp_path, {**FITS, **versions}, needs)))["host.packages"]
    assert finding.status is Status.WARN
    assert said in finding.actual


@pytest.mark.parametrize(
    "line",
    [
        'Requires-Dist: nowhere==1.0; extra == "studio"',
        'Requires-Dist: nowhere==1.0; (sys_platform == "linux" or python_version < "9")',
        'Requires-Dist: nowhere; sys_platform == "win32"',
        'Requires-Dist: nowhere; platform_python_implementation == "Jython"',
        'Requires-Dist: nowhere; python_version < "3.0"',
        'Requires-Dist: torch!=2.14.1rc1; sys_platform == "linux"',
    ],
)
def test_what_nobody_needs_here_is_no_misfit(tmp_path: Path, line: str) -> None:
    facts = look(install(tmp_path, FITS, {"unsloth": line}))
    assert judged(facts)["host.packages"].status is Status.PASS


@pytest.mark.parametrize(
    ("version", "clauses", "broken"),
    [
        ("5.17.0", "<=5.17", ""),
        ("5.17.1", "<=5.17,>=4", "<=5.17"),
        ("4.0.3", "!=4.0.*,>=3", "!=4.0.*"),
        ("4.1.0", "!=4.0.*", ""),
        ("2.9", "<2.10", ""),
        ("2.10", "<2.9", "<2.9"),
        ("3.8.2", "~=3.8.0", ""),
        ("3.9.0", "~=3.8.0", "~=3.8.0"),
        ("2.14.1+cu130", "==2.14.1", ""),
        ("2.15.0rc1", "<2.15.0", ""),
        ("1.0", "", ""),
    ],
)
def test_versions_are_compared_as_numbers(version: str, clauses: str, broken: str) -> None:
    assert unmet(version, clauses) == broken


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_version_or_clause_is_too_odd(version: str, clauses: str) -> None:
    assert isinstance(unmet(version, clauses), str)
    assert all(number >= 0 for number in numbers(version))


@pytest.mark.parametrize("name", ["datasets.py", "datasets/__init__.py"])
def test_a_module_on_the_path_hides_an_installed_package(tmp_path: Path, name: str) -> None:
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.touch()
    own = install(tmp_path / "site", FITS)
    facts = look(str(tmp_path / "project"), own, own=own)
    for plan, status in ((plan_for("h100"), Status.WARN), (baked(FITS), Status.FAIL)):
        finding = judged(facts, plan)["host.package_origin"]
        assert finding.status is status
        assert "datasets" in finding.reason
        assert str(tmp_path / "project") in finding.reason


def test_a_folder_of_data_hides_nothing(tmp_path: Path) -> None:
    """Python prefers a package further down the path to a folder without __init__.py."""
    (tmp_path / "project" / "datasets").mkdir(parents=True)
    own = install(tmp_path / "site", FITS)
    finding = judged(look(str(tmp_path / "project"), own, own=own))["host.package_origin"]
    assert finding.status is Status.PASS


def test_a_module_named_like_pythons_own_is_told(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").touch()
    own = install(tmp_path / "site", FITS)
    standard = str(Path(os.__file__).parent)
    finding = judged(look(str(tmp_path), standard, own, own=own))["host.package_origin"]
    assert finding.status is Status.WARN
    assert "statistics" in finding.reason


def test_a_project_with_tests_and_scripts_hides_nothing(tmp_path: Path) -> None:
    for name in ("app", "tests", "test", "scripts"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").touch()
    own = install(tmp_path / "site", {**FITS, "test": "1.0", "tests": "1.0"})
    facts = look(str(tmp_path / "project"), own, own=own)
    assert judged(facts)["host.package_origin"].status is Status.PASS


def test_an_environment_that_comes_by_the_path_is_a_choice(tmp_path: Path) -> None:
    """As `pip install --target` makes it: what the engine does not need may come from there."""
    target = install(tmp_path / "target", {"rich": "1.0"})
    own = install(tmp_path / "site", {**FITS, "rich": "2.0"})
    assert judged(look(target, own, own=own))["host.package_origin"].status is Status.PASS
    install(tmp_path / "target", {"peft": "0.9"})
    finding = judged(look(target, own, own=own))["host.package_origin"]
    assert finding.status is Status.WARN
    assert finding.reason.startswith("peft would be imported from")


def test_a_users_site_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = install(tmp_path / "user", {"peft": "0.9"})
    own = install(tmp_path / "site", FITS)
    monkeypatch.setattr("site.getusersitepackages", lambda: user)
    facts = probe_packages(plan_for("h100"), {}, (user, own), (own, user))
    finding = judged(facts, baked(FITS))["host.package_origin"]
    assert facts.versions["peft"] == "0.9"
    assert finding.status is Status.FAIL
    assert "PYTHONNOUSERSITE=1" in finding.next_step


def torch_package(folder: Path, text: str) -> str:
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", TorchBuild("12.8")),
        ('cuda = "13.0"\n', TorchBuild("13.0")),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", TorchBuild(None)),
        ("cuda = None\nhip = '7.1.0'\n", TorchBuild(None, "hip")),
    ],
)
def test_the_build_of_torch_is_read_from_its_version_file(
    tmp_path: Path, text: str, build: TorchBuild
) -> None:
    assert torch_build([torch_package(tmp_path, text)]) == build


def test_a_cpu_only_torch_is_the_images_fault_on_a_gpu_profile(tmp_path: Path) -> None:
    facts = look(torch_package(tmp_path, "cuda: Optional[str] = None\n"))
    finding = judged(facts)["host.torch_build"]
    assert finding.status is Status.FAIL
    assert finding.fault is None
    assert "CPU-only" in finding.reason
    assert judged(facts, plan_for("cpu"))["host.torch_build"].status is Status.SKIP


@pytest.mark.parametrize("text", ["", "something = 'else'\n"])
def test_a_version_file_that_says_nothing_is_no_pass(tmp_path: Path, text: str) -> None:
    facts = look(torch_package(tmp_path, text))
    assert judged(facts)["host.torch_build"].status is Status.SKIP


@pytest.mark.parametrize(
    ("built", "flags", "hardware", "note"),
    [
        ("2.14.1+cu130", "9.0a", "h100", ""),
        ("2.10.0+cu128", "9.0a", "h100", "it was built for torch 2.10.0+cu128"),
        ("2.10.0+cu128", "9.0a", "cpu", ""),
        ("2.14.1", "7.5 8.0+PTX", "h100", ""),
        ("2.14.1", "7.5 8.0", "h100", "it has no kernels for NVIDIA H100 (Hopper)"),
        ("2.14.1", "7.5 8.0+PTX 9.0a", "v100", "it has no kernels for NVIDIA V100 (Volta)"),
        ("2.14.1", None, "v100", ""),
    ],
)
def test_an_xformers_that_is_of_no_use_is_noted_and_no_warning(
    tmp_path: Path, built: str, flags: str | None, hardware: str, note: str
) -> None:
    """Unsloth goes on without it; the locks hold it for other models."""
    install(tmp_path, FITS)
    package = tmp_path / "xformers"
    package.mkdir()
    (package / "__init__.py").touch()
    told = {"version": {"torch": built}, "env": {"TORCH_CUDA_ARCH_LIST": flags}}
    (package / "cpp_lib.json").write_text(json.dumps(told))
    finding = judged(look(str(tmp_path)), plan_for(hardware))["host.packages"]
    assert finding.status is Status.PASS
    assert finding.reason.endswith(note)
    assert ("xFormers" in finding.reason) is bool(note)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": {"torch": 2}}', "\0", "null"])
def test_an_xformers_that_tells_nothing_is_left_alone(tmp_path: Path, text: str) -> None:
    package = tmp_path / "xformers"
    package.mkdir()
    (package / "__init__.py").touch()
    assert xformers_build([str(tmp_path)]) is None
    (package / "cpp_lib.json").write_text(text)
    assert xformers_build([str(tmp_path)]) is None


def test_the_installed_xformers_says_what_it_was_built_for() -> None:
    built = xformers_build(sys.path)
    assert built is not None
    assert built.torch.startswith("2.")
    assert "sm_90a" in built.architectures
    assert "compute_80" in built.architectures


def bitsandbytes_package(folder: Path, *libraries: str) -> Path:
    """A package whose libraries are copies of a real one."""
    folder.mkdir(parents=True)
    real = Path(sys.executable).resolve()
    for name in libraries:
        shutil.copy(real, folder / name)
    return folder


@pytest.mark.parametrize(
    ("cuda", "has", "wanted", "exact", "there"),
    [
        ("13.0", ("118", "128", "130", "132"), "130", True, True),
        ("12.9", ("118", "126", "128", "130"), "128", False, True),
        ("12.0", ("118", "121", "124"), "121", False, True),
        ("14.0", ("118", "130"), "140", True, False),
        ("12.8", (), "128", True, False),
    ],
)
def test_bitsandbytes_library_is_chosen_by_its_own_rule(
    tmp_path: Path, cuda: str, has: tuple[str, ...], wanted: str, *, exact: bool, there: bool
) -> None:
    names = [f"libbitsandbytes_cuda{version}.so" for version in has]
    folder = bitsandbytes_package(tmp_path / "bnb", *names)
    found = probe_bitsandbytes(folder, TorchBuild(cuda), plan_for("h100"), {})
    assert found is not None
    assert found.wanted == f"libbitsandbytes_cuda{wanted}.so"
    assert (found.exact, bool(found.file)) == (exact, there)
    finding = judged(PackagesFacts(torch=TorchBuild(cuda), bitsandbytes=found))
    status = (Status.PASS if exact else Status.WARN) if there else Status.FAIL
    assert finding["host.bitsandbytes_library"].status is status


@pytest.mark.parametrize(
    ("override", "status", "fault"),
    [
        ("", Status.FAIL, Fault.CONFIG),
        ("12.8", Status.FAIL, Fault.CONFIG),
        ("999", Status.FAIL, Fault.CONFIG),
        ("118", Status.FAIL, Fault.CONFIG),
        ("126", Status.WARN, None),
    ],
)
def test_a_version_that_a_variable_asks_for_is_taken_by_its_word(
    tmp_path: Path, override: str, status: Status, fault: Fault | None
) -> None:
    names = [f"libbitsandbytes_cuda{version}.so" for version in ("118", "126", "128")]
    folder = bitsandbytes_package(tmp_path / "bnb", *names)
    build = TorchBuild("12.8")
    found = probe_bitsandbytes(folder, build, plan_for("v100"), {"BNB_CUDA_VERSION": override})
    said = judged(PackagesFacts(torch=build, bitsandbytes=found), plan_for("v100"))
    finding = said["host.bitsandbytes_library"]
    assert (finding.status, finding.fault) == (status, fault)
    assert finding.next_step == "unset BNB_CUDA_VERSION"


def test_a_library_that_is_cut_off_is_the_images_fault(tmp_path: Path) -> None:
    folder = bitsandbytes_package(tmp_path / "bnb")
    (folder / "libbitsandbytes_cuda130.so").touch()
    found = probe_bitsandbytes(folder, TorchBuild("13.0"), plan_for("h100"), {})
    said = judged(PackagesFacts(torch=TorchBuild("13.0"), bitsandbytes=found))
    assert "the file is empty" in said["host.bitsandbytes_library"].reason


@pytest.mark.parametrize(
    ("kernels", "torch", "status"),
    [
        (("sm_75", "sm_90"), ("sm_70", "sm_90"), Status.FAIL),
        (("sm_70", "sm_90"), ("sm_70", "sm_90"), Status.PASS),
        (("sm_75", "sm_90"), ("sm_75", "sm_90"), Status.PASS),  # torch's own lack is seen later
        (("compute_60",), ("sm_70",), Status.PASS),
        ((), ("sm_70",), Status.PASS),
    ],
)
def test_kernels_that_torch_has_and_bitsandbytes_lacks_are_the_images_fault(
    kernels: tuple[str, ...], torch: tuple[str, ...], status: Status
) -> None:
    library = BitsandbytesFacts(
        wanted="libbitsandbytes_cuda128.so", file="/there", architectures=kernels
    )
    facts = PackagesFacts(torch=TorchBuild("12.8"), torch_architectures=torch, bitsandbytes=library)
    assert judged(facts, plan_for("v100"))["host.bitsandbytes_library"].status is status


def test_kernels_are_listed_as_nvidias_own_tool_lists_them() -> None:
    triton, bitsandbytes = (package_folder(name, sys.path) for name in ("triton", "bitsandbytes"))
    if triton is None or bitsandbytes is None:
        pytest.skip("Triton brings the tool, and bitsandbytes the libraries")
    compared = 0
    for library in bitsandbytes.glob("libbitsandbytes_cuda1[23]*.so"):
        tool = [str(triton / "backends/nvidia/bin/cuobjdump"), "--list-elf", str(library)]
        said = subprocess.run(tool, capture_output=True, text=True, check=False)
        if said.returncode:  # the tool refuses some that the loader takes
            continue
        found, why = kernel_architectures(library)
        listed = set(re.findall(r"\.(sm_\d+)\.cubin", said.stdout))
        assert {name for name in found if name.startswith("sm_")} == listed, why
        compared += 1
    assert compared


def test_architectures_of_torch_are_read_from_its_library() -> None:
    found, who = torch_architectures(None)
    assert who == "libtorch_python.so"
    assert "sm_90" in found


def test_an_image_knows_the_architectures_of_its_torch() -> None:
    assert torch_architectures(baked({}).baked) == (("sm_90",), "image.json")


def test_unknown_architectures_come_with_the_reason(tmp_path: Path) -> None:
    assert torch_architectures(None, [str(tmp_path)]) == ((), "torch is not installed")
    path = torch_package(tmp_path, "")
    found, why = torch_architectures(None, [path])
    assert found == ()
    assert why.startswith("libtorch_python.so: No such file")


def compiled(path: Path, source: str, *options: str) -> Path:
    """A shared library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [GCC, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *options]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    return path


@with_gcc
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sm_70 sm_75 sm_90a compute_90", ("sm_70", "sm_75", "sm_90a", "compute_90")),
        ("compute_120", ("compute_120",)),
        ("sm_ninety", ()),
    ],
)
def test_a_wheel_of_other_architectures_is_read_too(
    tmp_path: Path, text: str, found: tuple[str, ...]
) -> None:
    path = torch_package(tmp_path, "")
    source = f'const char flags[] = "{text}"; const char *give(void) {{ return flags; }}'
    compiled(tmp_path / "torch/lib/libtorch_python.so", 'const char before[] = "x";' + source)
    assert torch_architectures(None, [path])[0] == found


def libc_of_the_future(folder: Path) -> Path:
    """A library whose needs no system of today meets: GLIBC_9.9 of libc.so.6."""
    (folder / "map").write_text("GLIBC_9.9 { global: later; };")
    options = ("-nostdlib", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={folder}/map")
    stub = compiled(folder / "stub" / "libc.so.6", "int later(void) { return 1; }", *options)
    source = "int later(void); int now(void) { return later(); }"
    return compiled(folder / "torch/lib/libc10.so", source, "-nostdlib", str(stub))


@with_gcc
def test_a_library_for_a_newer_glibc_is_told_before_the_loader_refuses_it(tmp_path: Path) -> None:
    libc_of_the_future(tmp_path)
    found = probe_native({"torch": tmp_path / "torch"}, None, {}, [str(tmp_path)])
    assert found.facts[0].versions == ("GLIBC_9.9 (libc.so.6)",)
    finding = judged(PackagesFacts(native=found.facts, glibc=found.glibc))["host.glibc"]
    assert finding.status is Status.FAIL
    assert "GLIBC_9.9" in finding.reason
    newer = probe_native({"torch": tmp_path / "torch"}, None, {}, [str(tmp_path)], "9.10")
    assert newer.facts[0].versions == ()


@with_gcc
def test_an_older_cxx_library_that_a_variable_puts_first_is_told(tmp_path: Path) -> None:
    """What an activated conda environment does to a system's Python."""
    new, old = tmp_path / "new" / "libstdc++.so.6", tmp_path / "old" / "libstdc++.so.6"
    source = "int f(void) { return 1; }"
    for path, version in ((new, "GLIBCXX_3.4.99"), (old, "GLIBCXX_3.4.1")):
        path.parent.mkdir()
        (path.parent / "map").write_text(f"{version} {{ global: f; }};")
        script = f"-Wl,--version-script={path.parent}/map"
        compiled(path, source, "-nostdlib", "-Wl,-soname,libstdc++.so.6", script)
    user = "int f(void); int g(void) { return f(); }"
    compiled(tmp_path / "torch/lib/libc10.so", user, "-nostdlib", str(new))
    variables = {"LD_LIBRARY_PATH": str(old.parent)}
    found = probe_native({"torch": tmp_path / "torch"}, None, variables, [str(tmp_path)])
    facts = PackagesFacts(
        native=found.facts,
        glibc=found.glibc,
        libstdcxx=found.libstdcxx,
        libstdcxx_by=found.libstdcxx_by,
    )
    finding = judged(facts)["host.glibc"]
    assert finding.fault is Fault.CONFIG
    assert "GLIBCXX_3.4.99" in finding.reason
    assert str(old) in finding.next_step
    assert "LD_LIBRARY_PATH" in finding.next_step


@with_gcc
def test_a_library_that_is_nowhere_is_named_with_who_needs_it(tmp_path: Path) -> None:
    gone = compiled(tmp_path / "gone" / "libcudnn.so.9", "int f(void) { return 1; }")
    user = "int f(void); int g(void) { return f(); }"
    named = compiled(
        tmp_path / "torch/lib/libtorch_cuda.so", user, f"-L{gone.parent}", "-l:libcudnn.so.9"
    )
    wheel = tmp_path / "nvidia" / "cudnn" / "lib"
    for there in (False, True):
        if there:
            wheel.mkdir(parents=True)
            shutil.move(gone, wheel)
        found = probe_native({"torch": tmp_path / "torch"}, None, {}, [str(tmp_path)])
        finding = judged(PackagesFacts(native=found.facts))["host.native_libraries"]
        assert finding.status is (Status.PASS if there else Status.FAIL)
        if not there:
            assert finding.actual == f"{named.name} needs libcudnn.so.9"


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"version https://git-lfs\n" * 9])
def test_a_library_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "torch/lib/libtorch_cpu.so"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    found = probe_native({"torch": tmp_path / "torch"}, None, {}, [str(tmp_path)])
    finding = judged(PackagesFacts(native=found.facts))["host.native_libraries"]
    assert finding.status is Status.FAIL
    assert "libtorch_cpu.so" in finding.reason


def test_a_missing_library_of_the_distribution_is_told_by_its_package() -> None:
    facts = PackagesFacts(native=(NativeFacts("/x/libtriton.so", lacks=("libz.so.1",)),))
    finding = judged(facts)["host.native_libraries"]
    assert finding.next_step == "install zlib1g in the image"


@with_gcc
def test_no_change_of_a_byte_makes_the_reader_fail_otherwise(tmp_path: Path) -> None:
    """A whole library with each of many bytes changed, and cut off at each of many places."""
    whole = libc_of_the_future(tmp_path).read_bytes()
    path = tmp_path / "changed.so"
    for at in range(0, len(whole), 61):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            path.write_bytes(data)
            try:
                read_library(path)
            except ElfError:
                continue
