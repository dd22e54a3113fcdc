"""The driver's files: what the loader would take, and what kind of file that is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.facts.gpu import LibraryFile
from app.probes.driver_files import device_files, driver_libraries, kernel_driver
from tests import fake_driver
from tests.boots import ROOT

DRIVER = "580.95.05"
PLAIN = "1 0 8:1 / / rw - ext4 /dev/root rw\n"
OVERLAY = "1 0 0:42 / / rw - overlay overlay rw\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a plain machine."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(PLAIN)
    return tmp_path / "proc"


def whole(path: Path) -> Path:
    """A library of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(fake_driver.libraries() / "libcuda.so.1", path)
    return path


def versioned(folder: Path, version: str) -> Path:
    """As a driver's package lays it: a link to the file that has the version in its name."""
    real = whole(folder / f"libcuda.so.{version}")
    (folder / "libcuda.so.1").symlink_to(real.name)
    return real


def found(*folders: Path, proc: Path, driver: str = DRIVER, in_image: bool = False) -> LibraryFile:
    """Libcuda by these folders."""
    environ = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    libraries = driver_libraries(environ, driver, proc, in_image=in_image)
    return next(file for file in libraries if file.name == "libcuda.so.1")


@pytest.mark.parametrize(("version", "fits"), [(DRIVER, True), ("535.161.08", False)])
def test_a_librarys_version_is_compared_with_the_kernel_modules(
    tmp_path: Path, proc: Path, version: str, fits: bool
) -> None:
    real = versioned(tmp_path / "lib", version)
    one = found(tmp_path / "lib", proc=proc)
    # The fields that do not depend on whether this machine is a container.
    assert (one.path, one.version, one.fits) == (str(real), version, fits)


def test_without_a_version_nothing_is_known_of_fitting(tmp_path: Path, proc: Path) -> None:
    path = whole(tmp_path / "lib/libcuda.so.1")
    assert found(tmp_path / "lib", proc=proc) == LibraryFile("libcuda.so.1", str(path), "driver")
    versioned(tmp_path / "other", DRIVER)
    assert found(tmp_path / "other", proc=proc, driver="").fits is None


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("usr/local/cuda/lib64/stubs", "stub"),
        ("usr/local/cuda-13.0/compat", "compat"),
        ("opt/conda/cuda-compat", "compat"),
        ("usr/lib", "driver"),
    ],
)
def test_a_folder_tells_what_a_library_is_for(
    tmp_path: Path, proc: Path, folder: str, kind: str
) -> None:
    whole(tmp_path / folder / "libcuda.so.1")
    assert found(tmp_path / folder, proc=proc, in_image=True).kind == kind


def test_a_compat_library_of_another_version_is_no_copy_of_the_images(
    tmp_path: Path, proc: Path
) -> None:
    versioned(tmp_path / "cuda/compat", "590.44.01")
    one = found(tmp_path / "cuda/compat", proc=proc, in_image=True)
    assert (one.kind, one.fits) == ("compat", False)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"<html>", "broken"),
        (b"\x7fELF", "broken"),
        (None, "broken"),  # cut in the middle
    ],
)
def test_a_file_that_is_no_whole_library_is_told_as_the_loader_would_refuse_it(
    tmp_path: Path, proc: Path, content: bytes | None, kind: str
) -> None:
    path = whole(tmp_path / "lib/libcuda.so.1")
    path.write_bytes(path.read_bytes()[:3000] if content is None else content)
    whole(tmp_path / "later/libcuda.so.1")  # the loader gives up before
    one = found(tmp_path / "lib", tmp_path / "later", proc=proc)
    assert (one.kind, one.path) == (kind, str(path))
    code = f"import ctypes; ctypes.CDLL({str(path)!r})"
    loading = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert loading.returncode in (1, -signal.SIGBUS)  # a cut one is mapped past its end


def test_a_folder_in_the_place_of_a_library_is_broken(tmp_path: Path, proc: Path) -> None:
    """What an engine makes of a file to mount that the host does not have."""
    (tmp_path / "lib/libcuda.so.1").mkdir(parents=True)
    assert found(tmp_path / "lib", proc=proc).kind == "broken"


def test_what_the_loader_passes_over_is_told_only_where_nothing_else_is(
    tmp_path: Path, proc: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcuda.so.1").symlink_to("libcuda.so.470.1.1")  # to nothing
    other = whole(tmp_path / "i386/libcuda.so.1")
    content = bytearray(other.read_bytes())
    content[4] = 1  # ELFCLASS32
    other.write_bytes(content)
    assert found(tmp_path / "lib", tmp_path / "i386", proc=proc).kind == "broken"
    good = whole(tmp_path / "good/libcuda.so.1")
    one = found(tmp_path / "lib", tmp_path / "i386", tmp_path / "good", proc=proc)
    assert (one.kind, one.path) == ("driver", str(good))
    code = (
        "import ctypes; ctypes.CDLL('libcuda.so.1'); "
        "print([line.split()[-1] for line in open('/proc/self/maps') if 'libcuda' in line][0])"
    )
    path = f"{tmp_path}/lib:{tmp_path}/i386:{tmp_path}/good"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == one.path


def test_a_fifo_is_not_opened(tmp_path: Path, proc: Path) -> None:
    (tmp_path / "lib").mkdir()
    os.mkfifo(tmp_path / "lib/libcuda.so.1")
    assert found(tmp_path / "lib", proc=proc).kind == "broken"


@pytest.mark.parametrize(
    ("version", "mounted", "kind"),
    [
        ("535.161.08", False, "image"),
        ("535.161.08", True, "driver"),  # the node's, of a driver that was updated without a reboot
        ("590.44.01", True, "driver"),  # or a toolkit's mount of a compat library: its work tells
        (DRIVER, False, "driver"),
    ],
)
def test_the_images_own_copy_is_neither_mounted_nor_of_the_nodes_version(
    tmp_path: Path, proc: Path, version: str, mounted: bool, kind: str
) -> None:
    real = versioned(tmp_path / "a lib", version)
    point = str(real).replace(" ", "\\040")
    mount = f"9 1 8:1 /x {point} ro - ext4 /dev/root ro\n" if mounted else ""
    (proc / "self/mountinfo").write_text(OVERLAY + mount)
    assert found(tmp_path / "a lib", proc=proc).kind == kind


def test_a_folder_that_is_mounted_brings_the_nodes_libraries(tmp_path: Path, proc: Path) -> None:
    versioned(tmp_path / "nvidia/lib64", "535.161.08")
    mount = f"9 1 8:1 /x {tmp_path}/nvidia ro - ext4 /dev/root ro\n"
    (proc / "self/mountinfo").write_text(OVERLAY + mount)
    assert found(tmp_path / "nvidia/lib64", proc=proc).kind == "driver"


@pytest.mark.parametrize("content", [b"", b"no library"])
@pytest.mark.parametrize("mounted", [True, False])
def test_a_useless_file_is_the_nodes_where_it_was_mounted(
    tmp_path: Path, proc: Path, content: bytes, mounted: bool
) -> None:
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/libcuda.so.1").write_bytes(content)
    mount = f"9 1 8:1 /x {tmp_path}/nvidia ro - ext4 /dev/root ro\n" if mounted else ""
    (proc / "self/mountinfo").write_text(OVERLAY + mount)
    file = found(tmp_path / "nvidia", proc=proc)
    assert file.kind in {"empty", "broken"}
    assert file.of_node is mounted


def test_both_separators_and_the_current_folder_count(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole(tmp_path / "libcuda.so.1")
    monkeypatch.chdir(tmp_path)
    for text in ("/nowhere:", "/nowhere;."):
        libraries = driver_libraries({"LD_LIBRARY_PATH": text}, "", proc, in_image=False)
        assert libraries[0].path == str(path)


@given(text=st.text(st.characters(blacklist_characters="\0"), max_size=300))
@settings(deadline=None, max_examples=50)
def test_no_value_of_the_path_is_an_error(text: str) -> None:
    environ = {"LD_LIBRARY_PATH": text}
    for file in driver_libraries(environ, DRIVER, Path("/nowhere"), in_image=True):
        assert file.kind in {"driver", "stub", "compat", "image", "empty", "broken"}


def test_an_unreadable_proc_is_no_error(tmp_path: Path) -> None:
    whole(tmp_path / "libcuda.so.1")
    assert found(tmp_path, proc=tmp_path / "absent", in_image=True).kind == "driver"
    assert kernel_driver(tmp_path / "absent") == ""
    assert device_files(tmp_path / "absent") == ((), {})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat\nGCC 12.2.0\n",
            "535.161.08",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n", DRIVER),
        ("nothing\n", ""),
    ],
)
def test_the_kernel_modules_version_is_read(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text)
    assert kernel_driver(tmp_path) == version


def test_only_the_drivers_device_files_count(tmp_path: Path) -> None:
    for name in (
        "nvidia0",
        "nvidia10",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "null",
        "dxg",
    ):
        (tmp_path / name).touch()
    names, _ = device_files(tmp_path)
    assert names == ("dxg", "nvidia-uvm", "nvidia0", "nvidia10", "nvidiactl")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_file_that_this_user_may_not_open_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    for name, mode in (("nvidia0", 0o600), ("nvidiactl", 0o666)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    # Modules first, uid second: this Python may lie in a home that only root may read.
    code = (
        "import os, pathlib; from app.probes.driver_files import device_files; "
        "os.setgroups([]); os.setuid(54321); "
        f"print(device_files(pathlib.Path({str(tmp_path)!r})))"
    )
    command = [sys.executable, "-B", "-c", code]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "(('nvidia0', 'nvidiactl'), {'nvidia0': 13})"
