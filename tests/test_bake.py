"""The proof of an image on made-up environments: each thing that can be wrong, by itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bake import _libraries, _packages, _programs
from app.bake.command import told
from app.bake.describe import built_at, describe, split_base, write
from app.bake.lock import Lock, read_lock, same
from app.bake.proofs import PROOFS
from app.bake.scene import ROOT, Scene, clean
from app.errors import BootError
from app.facts.driver_branches import FIRST_BRANCH, least_driver
from app.image import read_image
from app.outcome import Finding, Status
from tests.fakes_preflight import plan_for

GCC = shutil.which("gcc") or ""
with_gcc = pytest.mark.skipif(not GCC, reason="the library is made with gcc")
DIGEST = f"sha256:{'5d' * 32}"


def compiled(path: Path, source: str, *options: str) -> Path:
    """A shared library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [GCC, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *options]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    return path


def scene(
    folder: Path,
    installed: Mapping[str, str] | None = None,
    *,
    wanted: Mapping[str, str] | None = None,
    hardware: str = "h100",
    derived: bool = False,
) -> Scene:
    """An environment with these records, of which `wanted` should be there."""
    site, scratch = folder / "site", folder / "scratch"
    scratch.mkdir(exist_ok=True)
    site.mkdir(exist_ok=True)
    for name, version in (installed or {}).items():
        (site / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(exist_ok=True)
    variables = clean(dict(os.environ), scratch)
    plan = plan_for(hardware, report_dir=scratch)
    return Scene(plan, variables, scratch, wanted or {}, "the lock", derived=derived, site=site)


def package(site: Path, name: str, **files: str) -> Path:
    """A package with these modules, by their names without `.py`."""
    folder = site / name
    folder.mkdir(parents=True)
    for module, text in {"__init__": "", **files}.items():
        (folder / f"{module}.py").write_text(text)
    return folder


def failing(finding: Finding) -> Finding:
    """It fails, and says all that a person needs."""
    assert finding.status is Status.FAIL
    assert finding.reason
    assert finding.expected
    assert finding.actual
    assert finding.next_step
    return finding


# The lock.


def lock_of(folder: Path, text: str) -> Lock:
    path = folder / "requirements.txt"
    path.write_text(text)
    return read_lock(path)


def test_a_lock_is_read_for_this_python(tmp_path: Path) -> None:
    here = "{}.{}".format(*sys.version_info)
    text = (
        "# a comment\n"
        "Unsloth_Zoo==2026.10.9 \\\n    --hash=sha256:0123 \\\n    --hash=sha256:4567\n"
        f"numpy==2.4 ; python_version == '{here}' \\\n    --hash=sha256:89ab\n"
        "numpy==2.5 ; python_version == '3.99'\n"
        "setuptools==1 ; python_version > '3.99'  # not here\n"
    )
    found = lock_of(tmp_path, text)
    assert found.pins == {"unsloth-zoo": "2026.10.9", "numpy": "2.4"}
    told_by_tool = subprocess.run(
        ["sha256sum", tmp_path / "requirements.txt"], capture_output=True, text=True, check=True
    )
    assert found.digest == f"sha256:{told_by_tool.stdout.split()[0]}"


@pytest.mark.parametrize("name", ["h100", "v100"])
def test_the_locks_of_this_repository_can_be_proven(name: str) -> None:
    assert "torch" in read_lock(ROOT / "docker" / f"requirements.{name}.txt").pins


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no package"),
        ("torch>=2\n", "pins no exact version"),
        ("torch==2.*\n", "pins no exact version"),
        ("torch\n", "pins no exact version"),
        ("torch @ file:///x.whl\n", "pins no exact version"),
        ("-r other.txt\n", "is no requirement"),
        ("<html>\n", "is no requirement"),
        ("torch==1\nTorch==2\n", "torch is pinned to 1 and to 2"),
    ],
)
def test_a_lock_that_leaves_something_open_is_none(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BootError) as caught:
        lock_of(tmp_path, text)
    assert said in failing(caught.value.finding).reason


def test_a_lock_that_is_not_there_or_no_text_is_none(tmp_path: Path) -> None:
    with pytest.raises(BootError, match="No such file"):
        read_lock(tmp_path / "requirements.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BootError, match="decode"):
        read_lock(tmp_path / "binary")


@pytest.mark.parametrize(
    ("wanted", "installed", "equal"),
    [
        ("2.14.1", "2.14.1", True),
        ("2.14.1", "2.14.1+cu130", True),
        ("2.14.1+cu128", "2.14.1+cu130", False),
        ("1.0", "1.0.0", True),
        ("1.0", "1.0rc1", False),
        ("1.0", "", False),
        ("odd version", "odd version", True),
    ],
)
def test_versions_are_compared_as_versions(wanted: str, installed: str, *, equal: bool) -> None:
    assert same(wanted, installed) is equal


def test_the_environment_is_the_lock_or_every_difference_is_named(tmp_path: Path) -> None:
    wanted = {"torch": "2.14.1", "unsloth-zoo": "2026.10.9", "peft": "0.21.2", "rich": "15.0"}
    good = scene(tmp_path, wanted, wanted=wanted)
    assert _packages.lock(good).status is Status.PASS
    shutil.rmtree(tmp_path / "site" / "peft-0.21.2.dist-info")
    shutil.rmtree(tmp_path / "site" / "rich-15.0.dist-info")
    bad = scene(tmp_path, {"peft": "0.21.1", "pytest": "9.2.0"}, wanted=wanted)
    assert failing(_packages.lock(bad)).actual == (
        "peft 0.21.2 is 0.21.1; rich 15.0 is missing; pytest 9.2.0 is not in the lock"
    )


def test_two_records_of_one_package_are_no_version(tmp_path: Path) -> None:
    scene(tmp_path, {"peft": "0.21.2"})
    for derived in (False, True):
        both = scene(tmp_path, {"peft": "0.9"}, wanted={"peft": "0.21.2"}, derived=derived)
        assert "0.21.2 and as 0.9" in failing(_packages.lock(both)).actual


def test_this_environment_holds_what_tests_need_besides_the_lock(tmp_path: Path) -> None:
    """The real one: the dev set is installed beside the H100 set, and no image has any of it."""
    pins = read_lock(ROOT / "docker" / "requirements.h100.txt").pins
    real = replace(scene(tmp_path, wanted=pins), site=Path(pytest.__file__).parent.parent)
    said = failing(_packages.lock(real)).actual.split("; ")
    assert all(each.endswith("is not in the lock") for each in said)
    dev = read_lock(ROOT / "docker" / "requirements.dev.txt").pins
    assert {each.split()[0] for each in said} == set(dev) - set(pins)


def test_a_derived_image_says_loudly_what_it_has_changed(tmp_path: Path) -> None:
    wanted = {"transformers": "5.17.0", "rich": "15.0", "peft": "0.21.2"}
    installed = {"transformers": "5.18.0", "peft": "0.21.2", "flash-attn": "2.9"}
    derived = scene(tmp_path, installed, wanted=wanted, derived=True)
    finding = _packages.lock(derived)
    assert finding.status is Status.WARN
    changed = {
        "flash-attn": "none -> 2.9",
        "rich": "15.0 -> none",
        "transformers": "5.17.0 -> 5.18.0",
    }
    assert _packages.changes(derived) == changed
    assert finding.actual == ", ".join(f"{name} {each}" for name, each in changed.items())
    same_again = scene(tmp_path / "site", wanted, wanted=wanted, derived=True)
    assert _packages.lock(same_again).status is Status.PASS
    assert _packages.changes(same_again) == {}


# torch's build, cuDNN and bitsandbytes.


def torch_in(
    site: Path, cuda: str | None = "13.0", flags: str = "sm_75 sm_80 sm_90 compute_90"
) -> None:
    folder = package(site, "torch", version=f"cuda = {cuda!r}\n")
    source = f'const char flags[] = "{flags}"; const char *give(void) {{ return flags; }}'
    compiled(folder / "lib/libtorch_python.so", f'const char before[] = "x"; {source}')


@with_gcc
@pytest.mark.parametrize(
    ("flags", "hardware", "status"),
    [
        ("sm_75 sm_80 sm_90", "h100", Status.PASS),
        ("sm_75 sm_80 sm_90", "v100", Status.FAIL),
        ("sm_70 sm_75", "v100", Status.PASS),
        ("sm_70 sm_75", "h100", Status.FAIL),
        ("sm_75 compute_80", "h100", Status.WARN),
        ("sm_75 compute_100a", "h100", Status.FAIL),
        ("sm_ninety", "h100", Status.FAIL),
        ("sm_75", "cpu", Status.SKIP),
    ],
)
def test_torch_has_code_for_the_profiles_hardware(
    tmp_path: Path, flags: str, hardware: str, status: Status
) -> None:
    made = scene(tmp_path, hardware=hardware)
    torch_in(made.site, flags=flags)
    finding = _packages.architectures(made)
    assert finding.status is status
    if status is Status.FAIL:
        failing(finding)


@with_gcc
@pytest.mark.parametrize(
    ("cuda", "status", "said"),
    [
        ("13.0", Status.PASS, "580"),
        ("12.8", Status.PASS, "525"),
        ("14.1", Status.FAIL, "CUDA 14.1"),
        (None, Status.FAIL, "not built for CUDA"),
    ],
)
def test_an_image_knows_the_driver_that_its_cuda_needs(
    tmp_path: Path, cuda: str | None, status: Status, said: str
) -> None:
    made = scene(tmp_path)
    torch_in(made.site, cuda=cuda)
    finding = _packages.driver(made)
    assert finding.status is status
    assert said in finding.reason


def test_every_branch_is_found_by_a_release_and_nothing_else_is() -> None:
    for major, branch in FIRST_BRANCH.items():
        assert least_driver(f"{major}.4") == branch
    for text in (None, "", "x", "cuda13", "99.0", "13x"):
        assert least_driver(text) is None


def cudnn_in(site: Path, number: int) -> None:
    source = f"#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {number}; }}"
    compiled(site / "nvidia/cudnn/lib/libcudnn.so.9", source)


@with_gcc
@pytest.mark.parametrize(
    ("hardware", "number", "record", "status", "said"),
    [
        ("v100", 91002, "9.10.2.21", Status.PASS, "9.10.2"),
        ("v100", 91100, "9.11.0.98", Status.FAIL, "no kernels for NVIDIA V100"),
        ("v100", 8907, "8.9.7.29", Status.PASS, "8.9.7"),
        ("h100", 92400, "9.24.0.43", Status.PASS, "9.24.0"),
        ("v100", 92400, "9.10.2.21", Status.FAIL, "do not agree"),
        ("h100", 92400, "9.10.2.21", Status.FAIL, "do not agree"),
    ],
)
def test_cudnn_is_what_its_package_says_and_old_enough_for_volta(
    tmp_path: Path, hardware: str, number: int, record: str, status: Status, said: str
) -> None:
    made = scene(tmp_path, {"nvidia-cudnn-cu12": record}, hardware=hardware)
    cudnn_in(made.site, number)
    finding = _packages.cudnn(made)
    assert finding.status is status
    assert said in finding.reason


@with_gcc
def test_a_cudnn_that_is_no_library_or_is_there_twice_is_none(tmp_path: Path) -> None:
    made = scene(tmp_path, {"nvidia-cudnn-cu12": "9.10.2.21"}, hardware="v100")
    assert "1 packages and 0 libraries" in failing(_packages.cudnn(made)).reason
    library = made.site / "nvidia/cudnn/lib/libcudnn.so.9"
    compiled(library, "int nothing;")
    assert "cudnnGetVersion" in failing(_packages.cudnn(made)).actual
    library.write_bytes(b"")
    assert "file too short" in failing(_packages.cudnn(made)).actual
    cudnn_in(made.site, 91002)
    both = scene(tmp_path, {"nvidia-cudnn-cu13": "9.24.0.43"}, hardware="v100")
    assert "2 packages" in failing(_packages.cudnn(both)).reason


def bitsandbytes_in(site: Path, *names: str) -> Path:
    """The real libraries of these names."""
    real = Path(pytest.__file__).parent.parent / "bitsandbytes"
    folder = package(site, "bitsandbytes")
    for name in names:
        (folder / name).symlink_to(real / name)
    return folder


@with_gcc
@pytest.mark.parametrize(
    ("hardware", "cuda", "names", "said"),
    [
        ("h100", "13.0", ["libbitsandbytes_cuda130.so"], ""),
        ("v100", "12.8", ["libbitsandbytes_cuda128.so"], ""),
        ("h100", "12.8", ["libbitsandbytes_cuda128.so"], ""),
        ("cpu", "13.0", ["libbitsandbytes_cpu.so"], ""),
        ("v100", "13.0", ["libbitsandbytes_cuda130.so"], "no kernels for NVIDIA V100"),
        ("h100", "13.0", ["libbitsandbytes_cuda132.so"], "no library of its own for CUDA 13.0"),
        ("h100", "13.0", ["libbitsandbytes_cuda128.so"], "no library of its own for CUDA 13.0"),
        ("h100", "13.0", [], "no library of its own for CUDA 13.0"),
    ],
)
def test_bitsandbytes_has_the_library_for_this_torch_with_kernels(
    tmp_path: Path, hardware: str, cuda: str, names: list[str], said: str
) -> None:
    made = scene(tmp_path, hardware=hardware)
    torch_in(made.site, cuda=cuda)
    bitsandbytes_in(made.site, *names)
    finding = _packages.bitsandbytes(made)
    if not said:
        assert finding.status is Status.PASS
    else:
        assert said in failing(finding).reason


@with_gcc
def test_a_bitsandbytes_that_is_cut_off_or_absent_fails(tmp_path: Path) -> None:
    made = scene(tmp_path)
    torch_in(made.site)
    assert "not installed" in failing(_packages.bitsandbytes(made)).reason
    (package(made.site, "bitsandbytes") / "libbitsandbytes_cuda130.so").write_bytes(b"\x7fELF")
    again = scene(tmp_path)
    assert failing(_packages.bitsandbytes(again)).actual == "this is no ELF file"


# Native libraries.

CALLS = "int gone(void); int f(void) { return gone(); }"


def broken(folder: Path) -> dict[str, str]:
    """One library for each way to be broken, and what is said of it."""
    for name in ("libother.so.1", "libcuda.so.1"):
        compiled(folder / "gone" / name, "int gone(void) { return 1; }")
    needs = f"-L{folder / 'gone'}"
    both = ("-Wl,--no-as-needed", "-l:libcuda.so.1", "-l:libother.so.1")
    compiled(folder / "site/lacks.so", CALLS, needs, "-l:libother.so.1")
    compiled(folder / "site/driver.so", CALLS, *both, needs)
    compiled(folder / "site/undefined.so", CALLS)
    early = "__attribute__((constructor)) static void f(void)"
    compiled(folder / "site/aborts.so", f"#include <stdlib.h>\n{early} {{ abort(); }}")
    compiled(folder / "site/leaves.so", f"#include <stdlib.h>\n{early} {{ exit(0); }}")
    whole = compiled(folder / "site/whole.so", "int f(void) { return 1; }").read_bytes()
    (folder / "site/cut.so").write_bytes(whole[:40])
    (folder / "site/page.so.1").write_bytes(b"<html>" * 99)
    (folder / "site/link.so").symlink_to("nowhere")
    shutil.rmtree(folder / "gone")
    return {
        "lacks.so": "lacks libother.so.1",
        "driver.so": "lacks libother.so.1",
        "undefined.so": "undefined symbol: gone",
        "aborts.so": "SIGABRT",
        "leaves.so": "it ends the process that loads it, with status 0",
        "cut.so": "file too short",
        "page.so.1": "invalid ELF header",
        "link.so": "cannot open shared object file",
    }


@with_gcc
def test_every_library_that_does_not_load_is_named_with_why(tmp_path: Path) -> None:
    made = scene(tmp_path)
    expected = broken(tmp_path)
    finding = failing(_libraries.libraries(made))
    assert finding.reason == f"{len(expected)} of {len(expected) + 1} native libraries do not load"
    said = dict(each.split(": ", 1) for each in finding.actual.split("; "))
    assert set(said) == set(expected)
    for name, text in expected.items():
        assert text in said[name], name


@with_gcc
def test_what_waits_for_a_driver_is_no_fault(tmp_path: Path) -> None:
    made = scene(tmp_path)
    stub = compiled(tmp_path / "gone" / "libcuda.so.1", "int gone(void) { return 1; }")
    compiled(made.site / "torch/waits.so", CALLS, f"-L{stub.parent}", "-l:libcuda.so.1")
    compiled(made.site / "near.so", "int f(void) { return 1; }")
    compiled(
        made.site / "user.so",
        "int f(void);int g(void){return f();}",
        "-Wl,-rpath,$ORIGIN",
        f"-L{made.site}",
        "-l:near.so",
    )
    shutil.rmtree(stub.parent)
    finding = _libraries.libraries(made)
    assert finding.status is Status.PASS
    assert finding.reason.startswith("2 of 3 load")
    assert "1 wait for a driver (torch/waits.so)" in finding.reason


@with_gcc
def test_a_program_is_not_run_and_what_it_needs_is_looked_up(tmp_path: Path) -> None:
    stub = compiled(tmp_path / "gone" / "libother.so.1", "int gone(void) { return 1; }")
    site = tmp_path / "site"
    site.mkdir()
    source = "int gone(void); int main(void) { return gone(); }"
    command = [GCC, "-x", "c", "-", "-x", "none", "-o", str(site / "tool"), str(stub)]
    subprocess.run(command, input=source.encode(), check=True)
    (site / "script").write_text("#!/bin/sh\nexit 1\n")
    (site / "script").chmod(0o755)
    shutil.rmtree(stub.parent)
    finding = failing(_libraries.libraries(scene(tmp_path)))
    assert re.fullmatch(r"tool: lacks \S*libother\.so\.1", finding.actual)


def test_an_environment_without_a_library_is_none(tmp_path: Path) -> None:
    assert "no library was found" in failing(_libraries.libraries(scene(tmp_path))).actual


def test_a_child_that_does_not_end_fails_with_what_it_told(tmp_path: Path) -> None:
    ran = scene(tmp_path).run("-m", "app.bake.libraries_child", str(tmp_path), deadline_s=0.001)
    assert ran.problem == "no end within 0.001 s"
    cut = '{"path": "a.so", "error": "", "lacks": []}\n{"path": "b.s'
    tried = _libraries.tried_in(cut)
    assert [each.path for each in tried] == ["a.so"]
    finding = failing(_libraries.judge(tried, ran.problem, ""))
    assert finding.actual == "not all were tried: no end within 0.001 s"


def lacking(path: str, *names: str) -> _libraries.Tried:
    error = f"{names[0]}: cannot open shared object file: No such file or directory"
    return _libraries.Tried(path, error, names)


@pytest.mark.parametrize(
    ("path", "names", "needed", "good"),
    [
        ("bitsandbytes/libbitsandbytes_rocm72.so", ["libhipblas.so.3"], "", True),
        ("bitsandbytes/libbitsandbytes_cuda130.so", ["libcublas.so.13"], "", True),
        (
            "bitsandbytes/libbitsandbytes_cuda130.so",
            ["libcublas.so.13"],
            "libbitsandbytes_cuda130.so",
            False,
        ),
        ("bitsandbytes/libbitsandbytes_rocm72.so", ["libz.so.1"], "", False),
        ("nvidia/nvshmem/lib/nvshmem_transport_ucx.so.3", ["libucs.so.0"], "", True),
        ("nvidia/nvshmem/lib/nvshmem_transport_ucx.so.3", ["libcudart.so.13"], "", False),
        ("torch/lib/libtorch_cuda.so", ["libmpi.so.40"], "", False),
        ("torch/lib/libtorch_cuda.so", ["libnvidia-ml.so.1"], "", True),
        ("torch/lib/libtorch_cuda.so", ["libcudart.so.13"], "", False),
    ],
)
def test_only_what_no_boot_opens_may_lack_only_its_own(
    path: str, names: list[str], needed: str, *, good: bool
) -> None:
    finding = _libraries.judge([lacking(path, *names)], "", needed)
    assert (finding.status is Status.PASS) is good
    if not good:
        assert names[0] in failing(finding).actual


def test_a_need_of_a_need_is_no_excuse() -> None:
    """The loader names what is missing further down; the file's own needs are all there."""
    error = "libz.so.1: cannot open shared object file: No such file or directory"
    found = _libraries.Tried("torch/lib/libtorch.so", error)
    finding = failing(_libraries.judge([found], "", ""))
    assert finding.actual == "torch/lib/libtorch.so: lacks libz.so.1"


# Programs.


def with_app(made: Scene, folder: Path, **modules: str) -> Scene:
    """The same with another `app` that comes first."""
    package(folder, "app", **modules)
    return replace(made, variables={**made.variables, "PYTHONPATH": str(folder)})


def test_the_entry_point_works_here(tmp_path: Path) -> None:
    assert _programs.entry(scene(tmp_path)).status is Status.PASS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os; os.abort()", "signal SIGABRT"),
        ("print('usage: something else')", "something else"),
    ],
)
def test_an_entry_point_that_does_not_start_is_told_with_its_words(
    tmp_path: Path, text: str, said: str
) -> None:
    made = with_app(scene(tmp_path), tmp_path / "other", boot=text)
    assert said in failing(_programs.entry(made)).actual


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('made up')", "importing unsloth failed: ImportError: made up"),
        ("import os; os.abort()", "importing unsloth fails"),
        ("import os; os._exit(0)", "importing unsloth fails"),
        ("print('\"a line of its own')\nraise OSError('no disk')", "OSError: no disk"),
        ("raise SystemExit(3)", "importing unsloth failed: SystemExit: 3"),
    ],
)
def test_an_import_that_fails_or_kills_is_named(tmp_path: Path, text: str, said: str) -> None:
    made = scene(tmp_path)
    package(tmp_path / "first", "unsloth", __init__=text)
    path = f"{tmp_path / 'first'}:{made.variables['PYTHONPATH']}"
    made = replace(made, variables={**made.variables, "PYTHONPATH": path})
    assert said in failing(_programs.imports(made)).reason


def ptxas_in(site: Path, script: str) -> None:
    tool = package(site, "triton") / "backends/nvidia/bin/ptxas"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 4", "status 4"),
        (
            '[ "$1" = --version ] || { echo "ptxas fatal: sm_90 is not known" >&2; exit 255; }',
            "sm_90 is not known",
        ),
        ("echo release 13.0", "it wrote nothing"),
        ("kill -SEGV $$", "SIGSEGV"),
    ],
)
def test_an_assembler_that_cannot_is_told(tmp_path: Path, script: str, said: str) -> None:
    made = scene(tmp_path)
    assert "not installed" in failing(_programs.ptxas(made)).actual
    ptxas_in(made.site, script)
    assert said in failing(_programs.ptxas(made)).actual


@pytest.mark.parametrize("hardware", ["h100", "v100", "cpu"])
def test_the_real_assembler_knows_every_profile(tmp_path: Path, hardware: str) -> None:
    made = scene(tmp_path, hardware=hardware)
    real = replace(made, site=Path(pytest.__file__).parent.parent)
    assert _programs.ptxas(real).status in (Status.PASS, Status.SKIP)


def test_a_broken_compiler_fails_as_it_would_at_boot(tmp_path: Path) -> None:
    made = scene(tmp_path)
    (proof,) = (each for each in PROOFS if each.name == "compiler")
    assert proof.finding(made).status is Status.PASS
    without = replace(made, variables={**made.variables, "CC": "/no/such/compiler"})
    assert "/no/such/compiler" in failing(proof.finding(without)).reason


# The description.


@pytest.mark.parametrize(
    ("base", "split"),
    [
        (f"nvidia/cuda:13.0.2-base@{DIGEST}", ("nvidia/cuda:13.0.2-base", DIGEST)),
        ("bootguard/standin-base:test", ("bootguard/standin-base:test", "unpinned")),
        ("x@sha256:12", ("x@sha256:12", "unpinned")),
        ("", ("", "unpinned")),
    ],
)
def test_a_base_is_pinned_by_a_whole_digest_or_not_at_all(
    base: str, split: tuple[str, str]
) -> None:
    assert split_base(base) == split


@given(st.integers(0, 10**11))
def test_the_time_of_the_build_is_the_sources_where_it_is_given(seconds: int) -> None:
    assert built_at({"SOURCE_DATE_EPOCH": str(seconds)}) == seconds


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "9" * 13])
def test_a_time_that_is_none_is_told(text: str) -> None:
    with pytest.raises(BootError) as caught:
        built_at({"SOURCE_DATE_EPOCH": text})
    failing(caught.value.finding)


@with_gcc
def test_an_image_is_described_as_it_was_found(tmp_path: Path) -> None:
    """An H100 image of the V100's lock serves drivers that the profile's own CUDA does not."""
    made = scene(tmp_path, {"torch": "2.10.0"}, wanted={"torch": "2.10.0"})
    torch_in(made.site, cuda="12.8", flags="sm_70 sm_90")
    image = describe(
        made, lock_digest="sha256:1", base=("base", DIGEST), revision="abc", built=1700000000
    )
    output = tmp_path / "image.json"
    before = os.umask(0o077)
    try:
        write(image, output)
    finally:
        os.umask(before)
    assert output.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.glob("*image*")] == ["image.json"]
    found = read_image(output)
    assert found == image
    assert found is not None
    assert (found.profile, found.minimum_driver, found.cuda) == ("h100", 525, "12.8")
    assert found.architectures == ["sm_70", "sm_90"]
    assert found.versions == {"torch": "2.10.0"}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    made = scene(tmp_path)
    image = describe(made, lock_digest="x", base=("", "unpinned"), revision="", built=0)
    with pytest.raises(BootError) as caught:
        write(image, tmp_path / "no" / "image.json")
    failing(caught.value.finding)


# The command line, without its long proofs.


def bake(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.bake", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--profile, one of v100, h100, cpu, and --lock"),
        (["--profile", "a100", "--lock", "docker/requirements.h100.txt"], "a100"),
        (["--profile", "h100", "--lock", "/no/such/lock"], "No such file"),
        (["--derived", "--profile", "h100"], "--derived without"),
        (["--derived", "--output", "/no/image.json"], "there is no such file"),
    ],
)
def test_what_cannot_be_proven_is_told_with_status_1(arguments: list[str], said: str) -> None:
    done = bake(*arguments)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL  start: ")
    assert said in done.stdout
    assert "next step" in done.stdout
    assert done.stderr == ""


def test_a_time_of_the_build_that_is_none_stops_before_the_proofs() -> None:
    done = bake(
        *("--profile", "h100", "--lock", "docker/requirements.h100.txt"), SOURCE_DATE_EPOCH="x"
    )
    assert done.returncode == 1
    assert "SOURCE_DATE_EPOCH is no time" in done.stdout
    assert "ok " not in done.stdout


def test_help_names_every_option() -> None:
    done = bake("--help", COLUMNS="120")
    assert done.returncode == 0
    for option in ("--profile", "--lock", "--base", "--revision", "--output", "--derived"):
        assert option in done.stdout


def test_a_finding_is_one_line_or_says_all() -> None:
    assert told("x", Finding(Status.PASS, "fine"), "somewhere") == "ok    x: fine"
    bad = Finding(Status.FAIL, "bad", "good", "worse", "mend it")
    assert told("x", bad, "somewhere").splitlines() == [
        "FAIL  x: bad",
        "      expected   good",
        "      actual     worse",
        "      source     somewhere",
        "      next step  mend it",
    ]


def test_each_proof_has_a_name_of_its_own_and_a_source() -> None:
    assert len({proof.name for proof in PROOFS}) == len(PROOFS)
    assert all(proof.source for proof in PROOFS)
