"""Facts about `tests/gpu` itself: what it takes for its device, and that it says why for none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.facts.gpu import DeviceFacts, GpuFacts
from app.probes.gpu import probe_gpu
from app.profiles import PROFILES
from tests import fake_driver
from tests.gpu import subject
from tests.gpu.subject import Subject
from tests.gpus import H100, V100

ROOT = Path(__file__).resolve().parent.parent
CUDA = GpuFacts(libcuda="libcuda.so.1", init_error=0, n_devices=1)


@pytest.mark.parametrize("device", [V100, H100, replace(H100, name="NVIDIA H200")])
def test_a_card_is_tested_as_the_profile_of_its_capability(device: DeviceFacts) -> None:
    found = subject.of(replace(CUDA, devices=(device, replace(V100, index=1))))
    assert isinstance(found, Subject)
    assert found.name == device.name
    assert found.profile.compute_capability == device.capability
    assert found.hardware == found.profile.name
    assert found.other not in found.profile.float_dtypes


@pytest.mark.parametrize(
    ("name", "capability"),
    [("healthy_v100", (7, 0)), ("healthy_h100", (9, 0)), ("h200", (9, 0)), ("a100", None)],
)
def test_the_driver_is_asked_without_torch(
    name: str, capability: tuple[int, int] | None, tmp_path: Path
) -> None:
    environ = fake_driver.environ(fake_driver.SCENARIOS[name], tmp_path)
    found = subject.of(probe_gpu(subject._any_gpu(), environ))
    assert isinstance(found, str) is (capability is None)
    assert isinstance(found, str) or found.profile.compute_capability == capability


def test_a_slice_of_a_card_is_marked() -> None:
    found = subject.of(replace(CUDA, devices=(replace(H100, mig=True),)))
    assert isinstance(found, Subject)
    assert found.part


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(CUDA, devices=(replace(H100, name="A100", capability=(8, 0)),)), "A100 has"),
        (replace(CUDA, n_devices=0), "sees none"),
        (GpuFacts(load_error="no libcuda"), "no libcuda"),
        (GpuFacts(init_error=802), "802"),
        (GpuFacts(probe_problem="no answer within 30 s"), "no answer"),
    ],
    ids=["another capability", "none", "no driver", "an error", "a hang"],
)
def test_where_there_is_no_device_it_says_why(facts: GpuFacts, words: str) -> None:
    found = subject.of(facts)
    assert isinstance(found, str)
    assert words in found


@pytest.mark.parametrize("name", PROFILES)
def test_the_suites_own_check_is_every_profile_in_host_memory(name: str) -> None:
    found = subject.on_the_host(name)
    assert isinstance(found, Subject)
    assert found.profile.compute_dtype == PROFILES[name].compute_dtype
    assert not found.profile.needs_gpu
    assert PROFILES[found.hardware].rehearsal
    assert "is none of" in str(subject.on_the_host("a100"))


def test_beside_other_tests_it_is_skipped_for_one_reason() -> None:
    """`make test` on a machine with a card: other tests hold torch for a CPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    places = ["tests/gpu", "tests/test_words.py"]
    done = subprocess.run(
        [*command, *places],
        cwd=ROOT,
        env=os.environ | {subject.SELF_CHECK: "h100"},
        capture_output=True,
        text=True,
        check=True,
    )
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert skipped
    assert all(line.endswith("a process of its own: make gpu-test") for line in skipped)
