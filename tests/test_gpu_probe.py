"""The gpu stage's facts, of real libraries of our own: ctypes, nvidia-ml-py, processes, files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from app.facts.gpu import DeviceFacts, GpuFacts
from app.outcome import Status
from app.probes import driver_child
from app.probes.gpu import probe_gpu
from tests import fake_driver
from tests.boots import ROOT, until
from tests.fake_driver import SCENARIOS, Scenario
from tests.fake_driver.scenarios import GIB, MIB
from tests.fakes_preflight import plan_for
from tests.gpus import judge

SLICE = "MIG-9a8b7c6d-0001-5e4f-a3b2-c1d0e9f8a7b6"


def probe(
    scenario: Scenario | str,
    folder: Path,
    more: Mapping[str, str] | None = None,
    *,
    initial_pids: bool = False,
    **options: Any,
) -> GpuFacts:
    """Facts of a node with this driver."""
    one = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
    return probe_gpu(
        plan_for(one.hardware),
        fake_driver.environ(one, folder) | dict(more or {}),
        **fake_driver.machine(one, folder, initial_pids=initial_pids),
        **options,
    )


@pytest.mark.parametrize(
    ("name", "capability", "gib"),
    [
        ("healthy_h100", (9, 0), 79),
        ("healthy_v100", (7, 0), 15),
        ("healthy_v100_32", (7, 0), 31),
        ("h100_pcie", (9, 0), 79),
        ("h200", (9, 0), 140),
        ("gh200", (9, 0), 95),
        ("a100", (8, 0), 80),
        ("t4", (7, 5), 15),
        ("l40s", (8, 9), 44),
    ],
)
def test_one_device_is_told_by_cuda_and_by_nvml(
    tmp_path: Path, name: str, capability: tuple[int, int], gib: int
) -> None:
    facts = probe(name, tmp_path)
    (device,), (board,) = facts.devices, facts.nvml.boards
    assert facts.looked
    assert (facts.nvml.init_error, facts.nvml.problem) == (0, "")
    assert (facts.device_files, facts.unopenable) == (("nvidia-uvm", "nvidia0", "nvidiactl"), {})
    assert device.capability == capability
    assert device.total_bytes // GIB == gib
    assert device.total_bytes == board.total_bytes
    assert device.free_bytes == board.free_bytes == device.total_bytes - 500 * MIB
    assert facts.board_of(device) is board
    assert (device.name, device.uuid, device.pci) == (board.name, board.uuid, board.pci)
    assert (device.mig, device.compute_mode) == (False, 0)
    assert facts.driver == facts.nvml.driver == SCENARIOS[name].driver


def test_everything_of_a_board_is_read(tmp_path: Path) -> None:
    board = probe("healthy_h100", tmp_path).nvml.boards[0]
    assert board.unread == {"retired_pages": 3, "retirement_pending": 3}
    assert (board.ecc_enabled, board.ecc_uncorrected) == (True, 0)
    assert (board.remap_pending, board.remap_failed, board.remapped_uncorrectable) == (
        (False, False, 0)
    )
    assert (board.mig_enabled, board.mig_uuids, board.compute_mode) == (False, None, 0)
    assert (board.fabric_state, board.fabric_status, board.throttle) == (3, 0, 1)
    assert (board.power_limit_w, board.power_limit_default_w) == (700, 700)
    assert (board.pcie_generation, board.pcie_generation_max) == (5, 5)
    assert (board.pcie_width, board.pcie_width_max) == (16, 16)
    assert (board.temperature_c, board.persistence, board.processes) == (31, True, ())
    assert (board.used_bytes, board.reserved_bytes) == (0, 500 * MIB)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ecc_counts", {"ecc_uncorrected": 12}),
        ("ecc_off", {"ecc_enabled": False, "ecc_uncorrected": None}),
        ("remap_pending", {"remap_pending": True, "remapped_uncorrectable": 2}),
        ("remap_failed", {"remap_failed": True}),
        ("retired_pending", {"retired_pages": 3, "retirement_pending": True}),
        ("hw_slowdown", {"throttle": 0x48}),
        ("power_capped", {"throttle": 4, "power_limit_w": 350, "power_limit_default_w": 700}),
        ("pcie_x4", {"pcie_width": 4, "pcie_width_max": 16, "pcie_generation": 1}),
        ("fabric_failed", {"fabric_state": 3, "fabric_status": 999}),
        ("busy_exclusive", {"compute_mode": 3}),
        ("prohibited", {"compute_mode": 2}),
        ("full_memory", {"used_bytes": 80_500 * MIB}),
    ],
)
def test_what_is_wrong_with_a_board_is_told(
    tmp_path: Path, name: str, found: dict[str, object]
) -> None:
    board = probe(name, tmp_path).nvml.boards[0]
    assert {field: getattr(board, field) for field in found} == found


def test_what_nvml_refuses_is_unread_with_its_number(tmp_path: Path) -> None:
    board = probe("unreadable", tmp_path).nvml.boards[0]
    assert (board.ecc_enabled, board.remap_pending, board.remap_failed) == (None, None, None)
    assert board.unread["ecc_enabled"] == board.unread["ecc_uncorrected"] == 4
    assert board.unread["remap_pending"] == board.unread["remap_failed"] == 999
    assert board.compute_mode == 0


def test_an_older_driver_is_asked_by_its_older_names(tmp_path: Path) -> None:
    board = probe("old_nvml", tmp_path).nvml.boards[0]
    assert (board.temperature_c, board.throttle, board.fabric_state) == (31, 1, 3)
    # Its used memory is with the driver's own.
    assert (board.used_bytes, board.reserved_bytes) == (500 * MIB, None)


@pytest.mark.parametrize(
    ("name", "code", "nvml"),
    [
        ("stub_34", 34, 0),
        ("insufficient_35", 35, 0),
        ("no_device_100", 100, 0),
        ("operating_system_304", 304, 0),
        ("compat_804", 804, 0),
        ("unknown_999", 999, 0),
        ("unheard_of_12345", 12345, 0),
        ("driver_mismatch", 803, 18),
        ("nvml_not_loaded", 100, 9),
        ("cgroup_lost", 100, 999),
        ("lost_gpu", 999, 0),
    ],
)
def test_an_error_of_either_library_keeps_its_number(
    tmp_path: Path, name: str, code: int, nvml: int
) -> None:
    facts = probe(name, tmp_path)
    assert (facts.init_error, facts.call, facts.probe_problem) == (code, "cuInit", "")
    assert (facts.nvml.init_error, facts.nvml.problem) == (nvml, "")
    assert facts.devices == ()
    assert not facts.looked


def test_a_lost_board_hides_no_other(tmp_path: Path) -> None:
    facts = probe("lost_gpu_among_four", tmp_path)
    assert [board.handle_error for board in facts.nvml.boards] == [0, 0, 15, 0]
    assert [bool(board.uuid) for board in facts.nvml.boards] == [True, True, False, True]
    assert (facts.init_error, facts.call, len(facts.devices)) == (101, "cuDeviceGet", 2)


@pytest.mark.parametrize(
    ("name", "code"), [("busy_exclusive", 46), ("prohibited", 46), ("ecc_214", 214)]
)
def test_a_context_that_is_refused_keeps_its_number(tmp_path: Path, name: str, code: int) -> None:
    facts = probe(name, tmp_path)
    assert facts.looked
    assert (facts.devices[0].context_error, facts.devices[0].free_bytes) == (code, None)


def test_no_context_is_made_where_a_device_may_be_somebody_elses(tmp_path: Path) -> None:
    refused = SCENARIOS["four_gpus"].but("four", errors={"cuDevicePrimaryCtxRetain": 46})
    facts = probe(refused, tmp_path)
    assert [(found.free_bytes, found.context_error) for found in facts.devices] == [(None, 0)] * 4


def test_nvml_reads_the_memory_before_our_own_context_is_in_it(tmp_path: Path) -> None:
    slow = SCENARIOS["healthy_h100"].but("slow", slow="nvmlDeviceGetMemoryInfo_v2", slow_ms=700)
    facts = probe(slow, tmp_path)
    assert (tmp_path / "slow.driver.context").exists()  # a context was made
    assert facts.nvml.boards[0].used_bytes == 0


@pytest.mark.parametrize(
    ("more", "indices"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5d1e9c3a-0004"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, [1]),
    ],
)
def test_devices_are_matched_by_what_they_are_and_never_by_their_place(
    tmp_path: Path, more: dict[str, str], indices: list[int]
) -> None:
    facts = probe("four_gpus", tmp_path, more)
    boards = [facts.board_of(device) for device in facts.devices]
    assert [board.index for board in boards if board] == indices
    assert facts.n_devices == len(indices)
    assert (facts.nvml.n_devices, facts.visible) == (4, more.get("CUDA_VISIBLE_DEVICES"))


@pytest.mark.parametrize(("order", "index"), [("FASTEST_FIRST", 3), ("PCI_BUS_ID", 0)])
def test_cudas_own_order_does_not_matter(tmp_path: Path, order: str, index: int) -> None:
    four = SCENARIOS["four_gpus"].devices
    turned = tuple(replace(device, cuda_order=9 - place) for place, device in enumerate(four))
    more = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": order}
    facts = probe(Scenario("turned", turned), tmp_path, more)
    board = facts.board_of(facts.devices[0])
    assert board is not None
    assert board.index == index


def test_a_slice_is_told_as_one_and_finds_its_board(tmp_path: Path) -> None:
    facts = probe("mig_slice", tmp_path)
    (device,), (board,) = facts.devices, facts.nvml.boards
    assert (device.mig, device.uuid, device.board_uuid) == (True, SLICE, board.uuid)
    assert (device.total_bytes, device.n_multiprocessors) == (9856 * MIB, 16)
    assert (board.mig_enabled, board.mig_uuids) == (True, (SLICE,))
    assert facts.board_of(device) is board


def test_a_slice_that_cuda_tells_as_a_board_is_known_by_nvml(tmp_path: Path) -> None:
    (one,) = SCENARIOS["mig_slice"].devices
    plain = replace(one, mig_name=one.name, errors={"cuDeviceGetUuid": 1})
    (device,) = probe(Scenario("plain", (plain,)), tmp_path).devices
    assert (device.mig, device.uuid) == (True, SLICE)


def test_a_board_in_mig_mode_without_a_slice_is_no_device(tmp_path: Path) -> None:
    facts = probe("mig_without_instance", tmp_path)
    assert (facts.init_error, facts.devices) == (100, ())
    assert (facts.nvml.boards[0].mig_enabled, facts.nvml.boards[0].mig_uuids) == (True, ())


@pytest.mark.parametrize("initial_pids", [False, True])
def test_who_holds_memory_has_a_name_only_where_its_number_is_ours_too(
    tmp_path: Path, initial_pids: bool
) -> None:
    facts = probe("shared_memory", tmp_path, initial_pids=initial_pids)
    held = facts.nvml.boards[0].processes or ()
    assert [(process.pid, process.used_bytes) for process in held] == [
        (4242, None),
        (4243, 1048576),
        (77, 2097152),
    ]
    names = [f"program-{process.pid}" if initial_pids else "" for process in held]
    assert [process.name for process in held] == names


@pytest.mark.parametrize(
    ("name", "signal_"), [("crash_cuinit", "SIGSEGV"), ("abort_cuinit", "SIGABRT")]
)
def test_a_crash_is_told_with_the_call(tmp_path: Path, name: str, signal_: str) -> None:
    facts = probe(name, tmp_path)
    expected = f"the probing process died of signal {signal_} (in cuInit)"
    assert (facts.probe_problem, facts.call) == (expected, "cuInit")
    assert (facts.nvml.init_error, len(facts.nvml.boards)) == (0, 1)


def test_nvml_that_crashes_takes_nothing_of_cuda_with_it(tmp_path: Path) -> None:
    facts = probe("crash_nvml", tmp_path)
    assert facts.nvml.problem == "the probing process died of signal SIGSEGV (in nvmlInit)"
    assert facts.looked
    assert facts.devices[0].free_bytes is not None


@pytest.mark.parametrize(
    ("name", "cuda", "nvml", "n_devices"),
    [
        ("hang_cuinit", "no answer within 1.7 s (in cuInit)", "", 0),
        ("hang_context", "no answer within 1.7 s (in cuDevicePrimaryCtxRetain)", "", 1),
        ("hang_nvml", "", "no answer within 1.13 s (in nvmlInit)", 1),
        ("hang_nvml_late", "", "no answer within 1.13 s (in nvmlDeviceGetRemappedRows)", 1),
        (
            "hang_both",
            "no answer within 1.7 s (in cuInit)",
            "no answer within 1.13 s (in nvmlInit)",
            0,
        ),
    ],
)
def test_a_hang_is_told_with_the_call_and_leaves_the_other_library_alone(
    tmp_path: Path, name: str, cuda: str, nvml: str, n_devices: int
) -> None:
    facts = probe(name, tmp_path, limit_s=2.0)
    assert (facts.probe_problem, facts.nvml.problem) == (cuda, nvml)
    assert len(facts.devices) == n_devices
    assert facts.looked is not bool(cuda)
    me = psutil.Process()
    assert not [child for child in me.children() if child.status() != psutil.STATUS_ZOMBIE]


def test_what_the_libraries_print_is_none_of_the_answer(tmp_path: Path) -> None:
    facts = probe("talkative", tmp_path)
    assert facts.looked
    assert facts.nvml.boards[0].ecc_uncorrected == 0


def test_a_fabric_that_comes_up_late_is_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    facts = probe(SCENARIOS["fabric_3s"].but("late", not_ready_s=1), tmp_path, say=said.append)
    assert facts.looked
    assert facts.waited_s > 0
    assert said == [
        "the CUDA driver is not ready (cuInit returned 802): asking again for 180 s at most"
    ]


def test_a_fabric_that_never_comes_up_is_told_before_the_stage_ends(tmp_path: Path) -> None:
    said: list[str] = []
    facts = probe("fabric_never", tmp_path, limit_s=2.0, say=said.append)
    assert (facts.init_error, facts.call) == (802, "cuInit")
    assert facts.nvml.boards[0].fabric_state == 2
    assert 0 < facts.waited_s < 2
    assert said


def test_what_was_granted_is_kept_as_it_was_asked_for(tmp_path: Path) -> None:
    asked = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "SLURM_JOB_GPUS": "0",
        "SLURM_STEP_GPUS": "",
        "GPU_DEVICE_ORDINAL": "0",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert probe("healthy_h100", tmp_path, asked | {"SLURM_NODEID": "3"}).asked == asked


def test_device_files_that_the_driver_was_refused_are_told(tmp_path: Path) -> None:
    machine = fake_driver.machine(SCENARIOS["unknown_999"], tmp_path)
    (machine["devices"] / "nvidia0").unlink()
    (machine["devices"] / "nvidia0").mkdir()  # cannot be opened for writing: 21
    environ = fake_driver.environ(SCENARIOS["unknown_999"], tmp_path)
    assert probe_gpu(plan_for("h100"), environ, **machine).unopenable == {"nvidia0": 21}
    environ = fake_driver.environ(SCENARIOS["healthy_h100"], tmp_path)
    assert probe_gpu(plan_for("h100"), environ, **machine).unopenable == {}


def test_without_device_files_and_library_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.probes.driver_files.driver_libraries", lambda *_a, **_k: ())
    monkeypatch.setattr("subprocess.Popen", lambda *_a, **_k: pytest.fail("a child was started"))
    facts = probe_gpu(plan_for("h100"), {}, devices=tmp_path, proc=tmp_path)
    assert (facts.load_error, facts.init_error) == (
        "libcuda.so.1 is nowhere in the loader's path",
        None,
    )
    assert facts.nvml == GpuFacts().nvml


def test_a_rehearsal_looks_at_nothing(tmp_path: Path) -> None:
    assert probe_gpu(plan_for("cpu"), {}, devices=tmp_path / "absent") == GpuFacts()


def test_a_file_that_is_no_library_is_told_by_the_loader(tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()
    facts = probe("healthy_h100", tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert facts.load_error.endswith("libcuda.so.1: file too short")
    assert facts.nvml.load_error.endswith("libnvidia-ml.so.1: file too short")
    assert [library.kind for library in facts.libraries] == ["empty", "empty"]
    assert facts.libcuda == str(tmp_path / "libcuda.so.1")


def test_a_library_without_the_drivers_calls_is_told(tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).symlink_to("/lib/x86_64-linux-gnu/libm.so.6")
    facts = probe("healthy_h100", tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert "not a CUDA driver library" in facts.load_error
    assert (facts.nvml.init_error, facts.nvml.call) == (13, "nvmlInit")


def test_a_library_that_is_cut_kills_only_who_loads_it(tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).write_bytes((fake_driver.libraries() / name).read_bytes()[:3000])
    facts = probe("healthy_h100", tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert [library.kind for library in facts.libraries] == ["broken", "broken"]
    expected = "the probing process died of signal SIGBUS (in dlopen)"
    assert (facts.probe_problem, facts.nvml.problem) == (expected, expected)


def test_a_node_without_nvml_is_told_apart_from_its_errors(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(fake_driver.libraries() / "libcuda.so.1")
    facts = probe("healthy_h100", tmp_path, {"LD_LIBRARY_PATH": str(alone)})
    assert facts.looked
    assert "libnvidia-ml.so.1 cannot be loaded" in facts.nvml.load_error
    assert (facts.nvml.init_error, facts.nvml.problem) == (None, "")
    nvml = judge(facts)["gpu.nvml"]
    assert (nvml.status, nvml.next_step) == (
        Status.WARN,
        "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def test_the_children_die_with_who_asks(tmp_path: Path) -> None:
    hung = SCENARIOS["hang_both"]
    environ = fake_driver.environ(hung, tmp_path)
    fake_driver.machine(hung, tmp_path)
    code = (
        "import pathlib; from app.probes.gpu import probe_gpu\n"
        "from tests.fakes_preflight import plan_for\n"
        f"at = pathlib.Path({str(tmp_path)!r})\n"
        f"probe_gpu(plan_for('h100'), {environ!r}, devices=at / 'dev', proc=at / 'proc')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as asking:
        found: list[psutil.Process] = []

        def both() -> bool:
            found[:] = psutil.Process(asking.pid).children()
            return len(found) == 2 and all("_child" in " ".join(_command(c)) for c in found)

        until(both, "two children")
        until(lambda: Path(f"{environ['FAKE_DRIVER']}.began").exists() or all(map(_loaded, found)))
        os.kill(asking.pid, signal.SIGKILL)
    until(lambda: not any(map(_lives, found)), "the end of both")


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _loaded(process: psutil.Process) -> bool:
    """Whether it has asked to die with its parent, which comes before the library."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return "libcuda.so" in maps or "libnvidia-ml.so" in maps


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def child(parent: int, *arguments: str, cwd: Path = ROOT) -> str:
    """What the process that asks tells."""
    command = [sys.executable, "-I", "-S", driver_child.__file__, str(parent), *arguments]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=True)
    return ended.stdout


@pytest.mark.parametrize("arguments", [("cuda_child", "/dev"), ("nvml_child", "/proc", "")])
def test_a_child_whose_parent_is_gone_does_nothing(arguments: tuple[str, ...]) -> None:
    assert child(999999999, *arguments) == ""


def test_a_python_without_nvidia_ml_py_is_told_and_the_current_folder_is_not_looked_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit('this is somebody else')")
    assert child(os.getpid(), "nvml_child", "/proc", "", cwd=tmp_path).splitlines() == [
        """{"load_error": "nvidia-ml-py: No module named 'pynvml'"}""",
        '{"done": true}',
    ]


def test_nvidia_ml_py_is_found_wherever_this_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one, or another package of its name, lacks calls and structures."""
    older = Path(pynvml.__file__).read_text()
    for name in ("nvmlMemory_v2", "c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetRemappedRows"):
        older = older.replace(name, f"no_{name}")
    (tmp_path / "pynvml.py").write_text(older)
    monkeypatch.syspath_prepend(str(tmp_path))
    board = probe("healthy_h100", tmp_path).nvml.boards[0]
    assert (board.unread["remap_pending"], board.unread["fabric_state"]) == (13, 13)
    assert (board.used_bytes, board.reserved_bytes) == (500 * MIB, None)  # by the older form
    assert (board.ecc_uncorrected, board.compute_mode) == (0, 0)


def test_the_probe_loads_neither_nvidia_ml_py_nor_a_driver() -> None:
    code = (
        "import sys, app.probes.gpu; print('pynvml' in sys.modules, 'torch' in sys.modules, "
        "'libcuda' in open('/proc/self/maps').read())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False"] * 3


def test_devices_without_any_board_match_nothing() -> None:
    device = DeviceFacts(0, "a card", "", (9, 0), 1)
    assert GpuFacts(devices=(device,)).board_of(device) is None
