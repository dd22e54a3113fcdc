"""The whole proof on this environment, with the real torch, CUDA libraries and Unsloth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.bake.lock import read_lock
from app.bake.proofs import PROOFS
from app.image import Image, read_image

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "docker" / "requirements.h100.txt"
DIGEST = f"sha256:{'5d' * 32}"
EPOCH = 1_764_540_000

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@dataclass(frozen=True)
class Baked:
    """One run: what it said, by proof, and the folders that it had."""

    done: subprocess.CompletedProcess[str]
    said: dict[str, tuple[str, str]]  # name of a proof -> its word and the rest of its line
    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "image.json"


def bake(folder: Path, *arguments: str) -> Baked:
    """Run it with a home, a temporary and a working folder of its own, for all to see."""
    for name in ("home", "tmp", "work", "bytecode"):
        (folder / name).mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "BOOT_HARDWARE": "h100",  # as the image has it
    }
    done = subprocess.run(
        [sys.executable, "-m", "app.bake", "--output", str(folder / "image.json"), *arguments],
        cwd=folder / "work",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = re.findall(r"^(ok|WARN|skip|FAIL) +(\S+): (.*)$", done.stdout, re.MULTILINE)
    return Baked(done, {name: (word, text) for word, name, text in lines}, folder)


@pytest.fixture(scope="module")
def of_lock(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    """As a build runs it; the tests' own packages are too many."""
    revision = ("--revision", "0123abc")
    base = ("--base", f"nvidia/cuda:13.0.2-base-ubuntu24.04@{DIGEST}")
    folder = tmp_path_factory.mktemp("lock")
    return bake(folder, "--profile", "h100", "--lock", str(LOCK), *base, *revision)


@pytest.fixture(scope="module")
def of_image(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    """As in an image that is derived from one without the tests' packages, and with another peft.

    The image that it is derived from is described as a build would have described it.
    """
    folder = tmp_path_factory.mktemp("derived")
    lock = read_lock(LOCK)
    image = Image(
        profile="h100",
        lock_digest=lock.digest,
        versions={**lock.pins, "peft": "0.20.0"},
        architectures=[],
        minimum_driver=None,
        base_digest=DIGEST,
        base="nvidia/cuda:13.0.2-base-ubuntu24.04",
        revision="0123abc",
    )
    (folder / "image.json").write_text(image.model_dump_json())
    return bake(folder, "--derived")


def test_what_is_not_in_the_lock_fails_the_build_and_all_else_holds(of_lock: Baked) -> None:
    """Every proof runs, and each says one line."""
    assert of_lock.done.returncode == 1, of_lock.done.stdout
    assert of_lock.done.stderr == ""
    assert list(of_lock.said) == [proof.name for proof in PROOFS]
    bad = {name for name, (word, _) in of_lock.said.items() if word == "FAIL"}
    assert bad == {"lock"}, of_lock.done.stdout
    assert "pytest 9.2.0 is not in the lock" in of_lock.done.stdout
    assert "failed: lock. " in of_lock.done.stdout
    assert not of_lock.output.exists()


def test_libraries_are_told_apart_by_why_they_do_not_load(of_lock: Baked) -> None:
    text = of_lock.said["libraries"][1]
    numbers = re.match(r"(\d+) of (\d+) load", text)
    assert numbers is not None
    assert int(numbers[1]) > 500
    assert "libcaffe2_nvrtc.so" in text
    assert "NVSHMEM between nodes" in text


def test_a_derived_image_is_proven_anew_and_names_its_changes(of_image: Baked) -> None:
    assert of_image.done.returncode == 0, of_image.done.stdout
    assert of_image.said["lock"][0] == "WARN"
    assert "peft 0.20.0 -> 0.21.2" in of_image.said["lock"][1]
    assert list(of_image.said) == [proof.name for proof in PROOFS]
    image = read_image(of_image.output)
    assert image is not None
    assert image.changes["peft"] == "0.20.0 -> 0.21.2"
    assert image.changes["pytest"] == "none -> 9.2.0"
    assert image.locked() == {**read_lock(LOCK).pins, "peft": "0.20.0"}


def test_the_description_says_what_torch_is_and_where_all_came_from(of_image: Baked) -> None:
    image = json.loads(of_image.output.read_text())
    assert image["versions"]["torch"] == "2.14.1"
    assert "sm_90" in image["architectures"]
    known = {
        "profile": "h100",
        "cuda": "13.0",
        "minimum_driver": 580,
        "lock_digest": read_lock(LOCK).digest,
        "base_digest": DIGEST,
        "revision": "0123abc",
        "python": "{}.{}.{}".format(*sys.version_info),
        "built": EPOCH,
    }
    assert {name: image[name] for name in known} == known
    assert of_image.output.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["of_lock", "of_image"])
def test_nothing_is_left_behind(name: str, request: pytest.FixtureRequest) -> None:
    """No cache in the home, no file in /tmp or the working folder, no bytecode of the stack."""
    folder = request.getfixturevalue(name).folder
    for place in ("home", "tmp", "work"):
        assert list((folder / place).rglob("*")) == []
    # `app/__init__.py` and what it imports come before the first line of the proof; an image has
    # their bytecode already, and that of Python's own modules.
    own = folder / "bytecode" / str(ROOT).lstrip("/") / "app"
    written = {str(path.relative_to(own)).partition(".")[0] for path in own.rglob("*.pyc")}
    assert written <= {"bake/__main__", *before_the_proof()}
    # What Python imports at its own start, by .pth files of uv and setuptools.
    at_start = {"_virtualenv", "_distutils_hack"}
    places = (folder / "bytecode").rglob("site-packages")
    packages = {path.name.partition(".")[0] for place in places for path in place.iterdir()}
    assert packages <= at_start


def before_the_proof() -> set[str]:
    """Modules that Python has imported when the proof's own begins to run."""
    code = (
        "import sys, app.bake; "
        "print(*(each.__file__ for name, each in sys.modules.items() if name[:3] == 'app'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        str(Path(name).relative_to(ROOT / "app")).removesuffix(".py")
        for name in done.stdout.split()
    }
