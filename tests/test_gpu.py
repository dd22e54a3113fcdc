"""The gpu stage against a libcuda.so.1 of our own, loaded by the real ctypes path."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.checks.gpu import CHECKS, checks_for
from app.exits import ExitCode, exit_code, worst
from app.facts.gpu import ERRORS, GpuFacts
from app.outcome import Fault, Finding, Status
from app.probes.gpu import find_library, probe_gpu
from tests.fakes_preflight import build_libcuda, findings, plan_for

V100 = {"FAKE_MAJOR": "7", "FAKE_NAME": "Tesla V100-SXM2-16GB", "FAKE_TOTAL_GIB": "16"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake driver."""
    return build_libcuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A /dev and a /proc with a driver in them."""
    for name in ("dev", "proc/driver/nvidia"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / "dev" / name).touch()
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(version)
    return tmp_path


def probe(
    machine: Path,
    library: Path,
    fake: Mapping[str, str] | None = None,
    *,
    hardware: str = "h100",
    deadline_s: float = 20.0,
) -> GpuFacts:
    """Facts of a machine with the fake driver."""
    return probe_gpu(
        plan_for(hardware),
        {"LD_LIBRARY_PATH": str(library)} | dict(fake or {}),
        deadline_s=deadline_s,
        devices=machine / "dev",
        proc=machine / "proc",
    )


def judge(facts: GpuFacts, hardware: str = "h100") -> dict[str, Finding]:
    return findings(CHECKS, facts, plan_for(hardware))


def failing(said: dict[str, Finding]) -> dict[str, ExitCode]:
    """Failed checks with the code each leads to."""
    by_id = {check.id: check for check in CHECKS}
    return {
        check_id: exit_code(finding.fault or by_id[check_id].fault)
        for check_id, finding in said.items()
        if finding.status.blocks
    }


@pytest.mark.parametrize(("hardware", "fake"), [("h100", {}), ("v100", V100)])
def test_a_healthy_device_passes_every_check(
    machine: Path, library: Path, hardware: str, fake: dict[str, str]
) -> None:
    facts = probe(machine, library, fake, hardware=hardware)
    assert {finding.status for finding in judge(facts, hardware).values()} == {Status.PASS}
    assert facts.libcuda == str(library / "libcuda.so.1")
    assert facts.driver_major == 580
    assert facts.devices[0].uuid == "GPU-abababab-abab-abab-abab-abababababab"
    assert facts.device_files == ("nvidia-uvm", "nvidia0", "nvidiactl")


@pytest.mark.parametrize(
    ("fake", "check", "code"),
    [
        (V100, "gpu.capability", ExitCode.HW_MISMATCH),
        ({"FAKE_MAJOR": "8", "FAKE_NAME": "A100"}, "gpu.capability", ExitCode.HW_MISMATCH),
        ({"FAKE_COUNT": "4"}, "gpu.count", ExitCode.CONFIG),
        ({"FAKE_COUNT": "0"}, "gpu.count", ExitCode.NODE_UNFIT),
        ({"FAKE_TOTAL_GIB": "40"}, "gpu.memory", ExitCode.HW_MISMATCH),
        ({"FAKE_USED_MIB": "81700"}, "gpu.memory", ExitCode.TEMPFAIL),
        ({"FAKE_CONTEXT": "46"}, "gpu.memory", ExitCode.TEMPFAIL),
        ({"FAKE_CONTEXT": "214"}, "gpu.memory", ExitCode.NODE_UNFIT),
        ({"FAKE_GET": "101"}, "gpu.cuda_init", ExitCode.NODE_UNFIT),
        ({"FAKE_CRASH": "11"}, "gpu.cuda_init", ExitCode.NODE_UNFIT),
        ({"FAKE_CRASH": "40"}, "gpu.cuda_init", ExitCode.NODE_UNFIT),
        ({"CUDA_VISIBLE_DEVICES": "", "FAKE_INIT": "100"}, "gpu.cuda_init", ExitCode.CONFIG),
    ],
)
def test_what_is_wrong_is_found_by_its_check_with_its_code(
    machine: Path, library: Path, fake: dict[str, str], check: str, code: ExitCode
) -> None:
    assert failing(judge(probe(machine, library, fake)))[check] == code


def test_no_context_is_made_where_a_device_may_be_somebody_elses(
    machine: Path, library: Path
) -> None:
    facts = probe(machine, library, {"FAKE_COUNT": "2", "FAKE_CONTEXT": "46"})
    assert [(found.free_bytes, found.context_error) for found in facts.devices] == [(None, 0)] * 2


def test_memory_in_use_warns(machine: Path, library: Path) -> None:
    said = judge(probe(machine, library, {"FAKE_USED_MIB": "9000"}))
    assert said["gpu.memory"].status is Status.WARN


@pytest.mark.parametrize("code", [34, 100, 214, 802, 803, 804, 999, 12345])
def test_an_error_of_the_driver_is_named_and_stops_there(
    machine: Path, library: Path, code: int
) -> None:
    said = judge(probe(machine, library, {"FAKE_INIT": str(code)}))
    finding = said["gpu.cuda_init"]
    name = ERRORS[code][0] if code in ERRORS else "CUDA error 12345"
    assert f"cuInit returned {code} {name}" == finding.reason
    expected = Fault.INTERNAL if code == 34 else Fault.NODE_UNFIT
    assert finding.fault is expected
    skips = ("gpu.count", "gpu.capability", "gpu.memory")
    assert {said[name].status for name in skips} == {Status.SKIP}


def test_a_driver_that_hangs_is_left_at_the_deadline(machine: Path, library: Path) -> None:
    began = time.monotonic()
    said = judge(probe(machine, library, {"FAKE_HANG": "1"}, deadline_s=0.5))
    assert time.monotonic() - began < 5
    assert "no answer within 0.5 s" in said["gpu.cuda_init"].reason
    assert failing(said)["gpu.cuda_init"] == ExitCode.NODE_UNFIT


def test_without_device_files_and_library_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.probes.gpu.find_library", lambda _environ: "")
    monkeypatch.setattr("subprocess.Popen", lambda *_a, **_k: pytest.fail("a child was started"))
    began = time.monotonic()
    facts = probe_gpu(plan_for("h100"), {}, devices=tmp_path, proc=tmp_path)
    said = judge(facts)
    assert time.monotonic() - began < 0.2
    codes = failing(said)
    assert list(codes) == ["gpu.device_files", "gpu.libcuda"]
    assert worst(codes.values()) == ExitCode.NODE_UNFIT
    assert "--gpus" in said["gpu.device_files"].next_step


def test_a_file_that_is_no_library_is_named(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    said = judge(probe(machine, tmp_path))
    assert said["gpu.libcuda"].status is Status.FAIL
    assert said["gpu.cuda_init"].status is Status.SKIP


def test_a_library_without_the_driver_api_is_named(machine: Path, tmp_path: Path) -> None:
    libc = Path("/lib/x86_64-linux-gnu/libm.so.6")
    (tmp_path / "libcuda.so.1").symlink_to(libc)
    assert "not a CUDA driver library" in judge(probe(machine, tmp_path))["gpu.libcuda"].reason


def test_a_missing_uvm_file_is_named_when_the_driver_fails(machine: Path, library: Path) -> None:
    (machine / "dev/nvidia-uvm").unlink()
    said = judge(probe(machine, library, {"FAKE_INIT": "999"}))
    assert "/dev/nvidia-uvm" in said["gpu.device_files"].reason
    assert judge(probe(machine, library))["gpu.device_files"].status is Status.PASS


@pytest.mark.parametrize(("text", "status"), [("535.161.08", Status.FAIL), (None, Status.SKIP)])
def test_the_driver_is_judged_by_the_kernel_module(
    machine: Path, library: Path, text: str | None, status: Status
) -> None:
    path = machine / "proc/driver/nvidia/version"
    path.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {text}  Thu\n")
    if text is None:
        path.unlink()
    assert judge(probe(machine, library))["gpu.driver"].status is status


def test_a_rehearsal_looks_at_nothing_and_says_so(tmp_path: Path) -> None:
    plan = plan_for("cpu")
    facts = probe_gpu(plan, {}, devices=tmp_path / "absent")
    assert facts == GpuFacts()
    (only,) = findings(checks_for(plan), facts, plan).values()
    assert (only.status, only.reason) == (Status.SKIP, "profile cpu needs no device")


def test_the_library_is_found_where_the_loader_looks(library: Path) -> None:
    environ = {"LD_LIBRARY_PATH": f"/nowhere:{library}"}
    assert find_library(environ) == str(library / "libcuda.so.1")
