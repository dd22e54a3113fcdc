"""The lock files in docker/ hold what their .in files ask for, and nothing that leaks or floats."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

DOCKER = Path(__file__).resolve().parent.parent / "docker"
SETS = ("h100", "v100", "dev", "uv", "build")
PYTHONS = ("3.11", "3.12")

# Read from the wheels or booted together on a CPU; what an image is must change here too.
PROVEN = {
    "h100": {
        "torch": "2.14.1",
        "torchvision": "0.29.1",
        "triton": "3.8.0",
        "torchao": "0.18.0",
        "nvidia-cudnn-cu13": "9.24.0.43",
        "nvidia-nccl-cu13": "2.30.7",
    },
    "v100": {
        "torch": "2.10.0",
        "torchvision": "0.25.0",
        "triton": "3.6.0",
        "torchao": "0.16.0",
        "nvidia-cudnn-cu12": "9.10.2.21",
        "nvidia-nccl-cu12": "2.27.5",
    },
}
COMMON = {
    "unsloth": "2026.10.9",
    "unsloth-zoo": "2026.10.9",
    "transformers": "5.17.0",
    "peft": "0.21.2",
    "bitsandbytes": "0.50.2",
    "trl": "1.15.0",
    "accelerate": "1.15.0",
    "datasets": "4.8.5",
    "timm": "1.0.31",
    "pydantic": "2.14.4",
    "pydantic-settings": "2.16.3",
    "huggingface-hub": "1.33.0",
    "safetensors": "0.8.0",
}


def lock_text(name: str) -> str:
    return (DOCKER / f"requirements.{name}.txt").read_text(encoding="utf-8")


def lock_entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of a lock with what follows it on its logical line."""
    lines = [line for line in lock_text(name).splitlines() if not line.startswith("#")]
    logical = "\n".join(lines).replace("\\\n", " ").splitlines()
    entries = []
    for line in logical:
        pin, *options = re.split(r"\s+(?=--)", line.strip())
        entries.append((Requirement(pin), options))
    return entries


def pins(name: str, python: str) -> dict[str, str]:
    """Return what a lock installs on one Python; two versions of one package are an error."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.7",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, str] = {}
    for requirement, _ in lock_entries(name):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            package = canonicalize_name(requirement.name)
            assert package not in found, f"{package} twice on {python}"
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            found[package] = specifier.version
    return found


def asked(name: str) -> list[tuple[str, str]]:
    """Return (requirement, reason) for each line of an .in file and of those it includes."""
    found: list[tuple[str, str]] = []
    for line in (DOCKER / f"requirements.{name}.in").read_text(encoding="utf-8").splitlines():
        text, _, reason = (part.strip() for part in line.partition("#"))
        if included := re.fullmatch(r"-r requirements\.(\w+)\.in", text):
            found += asked(included[1])
        elif text:
            found.append((text, reason))
    return found


@pytest.mark.parametrize("name", SETS)
def test_every_requirement_is_pinned_by_hash_and_carries_no_other_option(name: str) -> None:
    """Only exact versions with sha256 hashes: no editable, no path, no extra option."""
    for requirement, options in lock_entries(name):
        assert requirement.url is None
        assert options, requirement
        for option in options:
            assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option), (requirement, option)


def test_every_lock_is_looked_at_here() -> None:
    assert {path.name for path in DOCKER.glob("requirements.*.txt")} == {
        f"requirements.{name}.txt" for name in SETS
    }


@pytest.mark.parametrize("name", SETS)
def test_no_lock_names_an_address_an_index_or_a_place_on_a_disk(name: str) -> None:
    """A lock installs from whatever index the machine is set up with."""
    text = lock_text(name)
    for leak in ("://", "-index", "--find-links", "--trusted-host", "file:", "/root", "/home"):
        assert leak not in text, leak
    assert text.startswith("# Made by scripts/lock.py")


@pytest.mark.parametrize("name", SETS)
def test_every_pin_of_an_in_file_is_exact_and_has_its_reason(name: str) -> None:
    """A version without a reason is one that nobody dares to move."""
    for text, reason in asked(name):
        assert re.fullmatch(r"[\w.-]+==[\w.]+", text), text
        assert len(reason) > len("because"), text


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", SETS)
def test_a_lock_gives_each_python_one_version_per_package_and_keeps_the_asked_ones(
    name: str, python: str
) -> None:
    """`pins` fails on a package with two versions; no package may be missing either."""
    locked = pins(name, python)
    for text, _ in asked(name):
        package, _, version = text.partition("==")
        assert locked[canonicalize_name(package)] == version


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", sorted(PROVEN))
def test_an_image_set_has_the_versions_that_were_proven_together(name: str, python: str) -> None:
    """torch's CUDA build decides which GPU generations have kernels at all."""
    locked = pins(name, python)
    for package, version in (COMMON | PROVEN[name]).items():
        assert locked[package] == version


def test_the_v100_set_keeps_the_last_cudnn_with_volta_and_no_cuda_13() -> None:
    """cuDNN 9.11 dropped sm_70, and CUDA 13 with it."""
    locked = pins("v100", "3.12")
    assert Version(locked["nvidia-cudnn-cu12"]) < Version("9.11")
    assert not [package for package in locked if package.endswith("-cu13")]


def test_each_wheel_of_torch_is_pinned_once_per_python() -> None:
    """torch 2.10.0 was built twice: only the newer build's two wheels may stay."""
    for name in PROVEN:
        ((_, hashes),) = [entry for entry in lock_entries(name) if entry[0].name == "torch"]
        assert len(hashes) == len(PYTHONS)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("name", "beside"), [("dev", "h100"), ("dev", "build"), ("build", "uv")])
def test_sets_of_one_environment_fit_beside_each_other(name: str, beside: str, python: str) -> None:
    """What they share must be the same version."""
    one, other = pins(name, python), pins(beside, python)
    shared = one.keys() & other.keys()
    assert {package: one[package] for package in shared} == {
        package: other[package] for package in shared
    }


def test_this_environment_is_the_h100_lock() -> None:
    """The tests speak about the locked versions only when they run on them."""
    installed = {
        str(canonicalize_name(dist.metadata["Name"])): dist.version for dist in distributions()
    }
    locked = pins("h100", "{}.{}".format(*sys.version_info))
    assert {package: installed.get(package) for package in locked} == locked
