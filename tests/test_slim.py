"""The list of what is taken out of an image, and how it is carried out."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCKER = Path(__file__).resolve().parent.parent / "docker"


def _loaded() -> ModuleType:
    """`docker/` is no package: the build runs its files."""
    spec = importlib.util.spec_from_file_location("slim", DOCKER / "slim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slim"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


slim = _loaded()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in ("a/keep.so", "a/take.so", "a/tests/one.py", "a/tests/tests/two.py", "b/x.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def left(site: Path) -> set[str]:
    return {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}


def test_what_a_pattern_finds_is_removed_unless_another_keeps_it(site: Path) -> None:
    rules = slim.Rules.read("a/*.so # why\n!a/keep.so\na/**/tests\n", "h100", "h100")
    slim.slim(site, rules)
    assert left(site) == {"a/keep.so", "b/x.py"}


def test_a_rule_for_another_lock_is_not_carried_out(site: Path) -> None:
    slim.slim(site, slim.Rules.read("v100: a/*.so\nh100: b\n", "h100", "h100"))
    assert left(site) == {"a/keep.so", "a/take.so", "a/tests/one.py", "a/tests/tests/two.py"}


@pytest.mark.parametrize("idle", ["c/*", "!c/*", "~c/*"])
def test_a_pattern_that_finds_nothing_fails_before_anything_is_removed(
    site: Path, idle: str
) -> None:
    before = left(site)
    with pytest.raises(SystemExit, match="nothing is found by c/"):
        slim.slim(site, slim.Rules.read(f"b\n{idle}\n", "h100", "h100"))
    assert left(site) == before


def test_a_link_is_removed_and_not_what_it_leads_to(site: Path) -> None:
    (site / "link").symlink_to(site / "a")
    slim.slim(site, slim.Rules.read("link\n", "h100", "h100"))
    assert "a/keep.so" in left(site)
    assert not (site / "link").is_symlink()


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("strip")), reason="wants binutils")
def test_symbols_are_taken_and_the_library_still_loads(tmp_path: Path) -> None:
    library = tmp_path / "one.so"
    source = "static int hidden(void) { return 41; }\nint shown(void) { return hidden() + 1; }"
    command = ["gcc", "-g", "-shared", "-fPIC", "-O0", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    before = library.stat().st_size
    slim.slim(tmp_path, slim.Rules.read("~*.so", "h100", "h100"))
    assert library.stat().st_size < before
    call = f"import ctypes; print(ctypes.CDLL({str(library)!r}).shown())"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="wants binutils")
def test_a_library_without_kernels_has_the_functions_of_the_real_one_and_refuses(
    tmp_path: Path,
) -> None:
    """Linked as torch is: a program that needs it starts, and its calls get the status."""
    library, user = tmp_path / "libcusparseLt.so.0", tmp_path / "libuser.so"
    gcc = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
    real = "int cusparseLtInit(void *h) { return 0; }\nint helper(void) { return 1; }"
    named = ["-Wl,-soname,libcusparseLt.so.0"]
    subprocess.run([*gcc, str(library), *named], input=real, text=True, check=True)
    calls = "int cusparseLtInit(void *); int start(void) { return cusparseLtInit(0); }"
    linked = ["-x", "none", str(library), f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*gcc, str(user), *linked], input=calls, text=True, check=True)
    slim.slim(tmp_path, slim.Rules.read("v100/v100: =*.so.0\n", "v100", "v100"))
    call = f"import ctypes; print(ctypes.CDLL({str(user)!r}, mode=2).start())"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"


def test_a_rule_for_another_profile_with_the_same_lock_is_not_carried_out(site: Path) -> None:
    slim.slim(site, slim.Rules.read("v100/v100: b\n", "v100", "h100"))
    assert "b/x.py" in left(site)


def test_triton_is_not_asked_for_a_backend_that_was_removed(tmp_path: Path) -> None:
    entries = tmp_path / "triton-3.8.0.dist-info" / "entry_points.txt"
    entries.parent.mkdir()
    entries.write_text(
        "[triton.backends]\namd = triton.backends.amd\nnvidia = triton.backends.nvidia\n"
    )
    slim.drop_entry_points(tmp_path)
    assert entries.read_text() == "[triton.backends]\nnvidia = triton.backends.nvidia\n"


@pytest.mark.parametrize("lock", ["h100", "v100"])
def test_one_native_library_of_bitsandbytes_stays(lock: str) -> None:
    rules = slim.Rules.read((DOCKER / "slim.txt").read_text(encoding="utf-8"), lock, lock)
    release = {"h100": "130", "v100": "128"}[lock]
    assert rules.kept == [f"bitsandbytes/libbitsandbytes_cuda{release}.so"]
