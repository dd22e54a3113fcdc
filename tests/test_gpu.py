"""The gpu stage's judges on facts made by hand, one fault at a time."""

from __future__ import annotations

import errno
import importlib
import inspect
import pkgutil
import re
from dataclasses import replace
from typing import Any

import pytest

import app.checks
from app.checks.gpu import CHECKS, checks_for
from app.exits import ExitCode, worst
from app.facts.board import BoardFacts, GpuProcess, NvmlFacts
from app.facts.driver_branches import (
    OLDER_ARCHITECTURES,
    OLDER_CUDA,
    OLDER_LOCK,
    least_driver,
)
from app.facts.gpu import GpuFacts, LibraryFile, LibraryKind
from app.outcome import Fault, Status
from app.plan import Baked
from app.profiles import GIB
from tests.boots import ROOT
from tests.fakes_preflight import findings, plan_for
from tests.gpus import (
    FACTS,
    H100,
    H100_BOARD,
    LIBRARIES,
    MIB,
    OTHER_UUID,
    UUID,
    V100,
    V100_FACTS,
    changed,
    failing,
    judge,
    refused,
    visible,
    with_board,
    with_device,
    with_nvml,
)

NOT_ON_THE_BOARD = {"h100": {"gpu.retired_pages"}, "v100": {"gpu.row_remap", "gpu.fabric"}}
LOST = BoardFacts(index=0, handle_error=15)
SLICE = "MIG-aaaaaaaa-2222-3333-4444-555555555555"
IMAGES = replace(LIBRARIES[0], kind="image", version="550.54.15", fits=False)


def four() -> GpuFacts:
    """A node with four devices, all visible."""
    uuids = [UUID, *(f"GPU-{n}1111111-2222-3333-4444-555555555555" for n in (2, 3, 4))]
    devices = tuple(
        replace(H100, index=n, uuid=uuid, board_uuid=uuid, pci=f"00000000:{n}7:00.0")
        for n, uuid in enumerate(uuids)
    )
    boards = tuple(
        replace(H100_BOARD, index=device.index, uuid=device.uuid, pci=device.pci)
        for device in devices
    )
    nvml = replace(FACTS.nvml, n_devices=4, boards=boards)
    return changed(n_devices=4, devices=devices, nvml=nvml, asked={})


@pytest.mark.parametrize(("hardware", "facts"), [("h100", FACTS), ("v100", V100_FACTS)])
def test_a_healthy_device_passes_every_check_that_its_board_knows(
    hardware: str, facts: GpuFacts
) -> None:
    said = judge(facts, hardware)
    assert {said[name].status for name in NOT_ON_THE_BOARD[hardware]} == {Status.SKIP}
    others = {name: found.status for name, found in said.items()}
    assert {
        status for name, status in others.items() if name not in NOT_ON_THE_BOARD[hardware]
    } == {Status.PASS}


@pytest.mark.parametrize(
    ("facts", "check", "code"),
    [
        # device files and libraries
        (
            refused(100, device_files=(), nvml=NvmlFacts()),
            "gpu.device_files",
            ExitCode.NODE_UNFIT,
        ),
        (
            refused(999, device_files=("nvidia0", "nvidiactl")),
            "gpu.device_files",
            ExitCode.NODE_UNFIT,
        ),
        (refused(100, unopenable={"nvidia-uvm": 13}), "gpu.device_files", ExitCode.NODE_UNFIT),
        (refused(803, libraries=(IMAGES,)), "gpu.libraries", ExitCode.INTERNAL),
        (
            refused(34, libraries=(replace(LIBRARIES[0], kind="stub"),)),
            "gpu.libraries",
            ExitCode.INTERNAL,
        ),
        (
            refused(803, libraries=(replace(LIBRARIES[0], fits=False),)),
            "gpu.libraries",
            ExitCode.NODE_UNFIT,
        ),
        (
            changed(GpuFacts(), load_error="file too short", device_files=("nvidia0",)),
            "gpu.device_files",
            ExitCode.NODE_UNFIT,
        ),
        (
            changed(
                GpuFacts(),
                load_error="no such file",
                device_files=FACTS.device_files,
                asked={"NVIDIA_DRIVER_CAPABILITIES": "utility"},
            ),
            "gpu.libcuda",
            ExitCode.CONFIG,
        ),
        # the driver
        (changed(refused(35), driver="535.161.08"), "gpu.driver", ExitCode.NODE_UNFIT),
        (refused(214), "gpu.cuda_init", ExitCode.NODE_UNFIT),
        (refused(34), "gpu.cuda_init", ExitCode.INTERNAL),
        (refused(46), "gpu.cuda_init", ExitCode.TEMPFAIL),
        (refused(802, waited_s=180.0), "gpu.cuda_init", ExitCode.NODE_UNFIT),
        (refused(2), "gpu.cuda_init", ExitCode.TEMPFAIL),
        (refused(1), "gpu.cuda_init", ExitCode.NODE_UNFIT),
        (refused(12345), "gpu.cuda_init", ExitCode.NODE_UNFIT),
        (refused(100, asked=visible("")), "gpu.cuda_init", ExitCode.CONFIG),
        (refused(100, asked=visible("NoDevFiles")), "gpu.cuda_init", ExitCode.CONFIG),
        (refused(100, asked=visible("7")), "gpu.cuda_init", ExitCode.CONFIG),
        (refused(100, asked=visible(OTHER_UUID)), "gpu.cuda_init", ExitCode.CONFIG),
        (refused(100, asked=visible("0")), "gpu.cuda_init", ExitCode.NODE_UNFIT),
        (
            refused(0, init_error=None, probe_problem="no answer within 30 s"),
            "gpu.cuda_init",
            ExitCode.NODE_UNFIT,
        ),
        (with_nvml(init_error=18, boards=(), n_devices=None), "gpu.nvml", ExitCode.NODE_UNFIT),
        (with_nvml(init_error=9, boards=()), "gpu.nvml", ExitCode.NODE_UNFIT),
        (
            with_nvml(init_error=None, problem="no answer within 20 s (in nvmlInit)"),
            "gpu.nvml",
            ExitCode.NODE_UNFIT,
        ),
        # what was granted
        (four(), "gpu.count", ExitCode.CONFIG),
        (changed(n_devices=0, devices=()), "gpu.count", ExitCode.NODE_UNFIT),
        (changed(n_devices=0, devices=(), asked=visible("3")), "gpu.count", ExitCode.CONFIG),
        (
            changed(asked={"NVIDIA_VISIBLE_DEVICES": OTHER_UUID}),
            "gpu.granted",
            ExitCode.CONFIG,
        ),
        (
            changed(GpuFacts(), load_error="none", asked={"NVIDIA_VISIBLE_DEVICES": "none"}),
            "gpu.granted",
            ExitCode.CONFIG,
        ),
        (
            with_device(name="H100 MIG 1g.10gb", uuid=SLICE, mig=True, total_bytes=10 * GIB),
            "gpu.mig",
            ExitCode.HW_MISMATCH,
        ),
        (
            with_board(refused(100), mig_enabled=True, mig_uuids=()),
            "gpu.mig",
            ExitCode.NODE_UNFIT,
        ),
        # the class
        (
            with_device(name="NVIDIA A100", capability=(8, 0)),
            "gpu.capability",
            ExitCode.HW_MISMATCH,
        ),
        (with_device(name="Tesla T4", capability=(7, 5)), "gpu.capability", ExitCode.HW_MISMATCH),
        (with_device(name="NVIDIA GH200 480GB"), "gpu.capability", ExitCode.HW_MISMATCH),
        (
            with_device(capability=(7, 0)),
            "gpu.architectures",
            ExitCode.HW_MISMATCH,
        ),
        # memory and its users
        (with_device(compute_mode=2), "gpu.compute_mode", ExitCode.NODE_UNFIT),
        (with_device(context_error=46, free_bytes=None), "gpu.context", ExitCode.TEMPFAIL),
        (with_device(context_error=2, free_bytes=None), "gpu.context", ExitCode.TEMPFAIL),
        (with_device(context_error=214, free_bytes=None), "gpu.context", ExitCode.NODE_UNFIT),
        (with_device(total_bytes=40 * GIB), "gpu.memory", ExitCode.HW_MISMATCH),
        (with_device(free_bytes=200 * MIB), "gpu.memory", ExitCode.TEMPFAIL),
        # the board
        (with_nvml(refused(999), boards=(LOST,)), "gpu.lost", ExitCode.NODE_UNFIT),
        (with_board(unread={"throttle": 15}), "gpu.lost", ExitCode.NODE_UNFIT),
        (with_board(unread={"throttle": 16}), "gpu.lost", ExitCode.NODE_UNFIT),
        (
            with_nvml(refused(100), boards=(), n_devices=0),
            "gpu.lost",
            ExitCode.NODE_UNFIT,
        ),
        (with_board(fabric_status=999), "gpu.fabric", ExitCode.NODE_UNFIT),
        (with_board(refused(802), fabric_state=2), "gpu.fabric", ExitCode.NODE_UNFIT),
        (with_board(remap_pending=True), "gpu.row_remap", ExitCode.NODE_UNFIT),
        (with_board(remap_failed=True), "gpu.row_remap", ExitCode.NODE_UNFIT),
        (
            with_board(refused(214), remap_pending=True),
            "gpu.row_remap",
            ExitCode.NODE_UNFIT,
        ),
        (with_board(V100_FACTS, retirement_pending=True), "gpu.retired_pages", ExitCode.NODE_UNFIT),
    ],
)
def test_what_is_wrong_is_found_by_its_check_with_its_code(
    facts: GpuFacts, check: str, code: ExitCode
) -> None:
    hardware = "v100" if facts.devices and facts.devices[0].name == V100.name else "h100"
    assert failing(judge(facts, hardware))[check] is code


@pytest.mark.parametrize(
    ("facts", "first", "code"),
    [
        (refused(803, nvml=NvmlFacts(init_error=18)), "cuda_init", 69),
        (with_nvml(refused(999), boards=(LOST,)), "cuda_init", 69),
        (refused(802, waited_s=180.0), "cuda_init", 69),
        (refused(35, driver="535.161.08", cuda_version=12020), "driver", 69),
        (refused(100, device_files=(), nvml=NvmlFacts()), "device_files", 69),
        (refused(34, libraries=(replace(LIBRARIES[0], kind="stub"),)), "libraries", 70),
        (four(), "count", 78),
        (with_device(name="NVIDIA A100-SXM4-80GB", capability=(8, 0)), "capability", 79),
        (
            with_device(name="Tesla T4", capability=(7, 5), total_bytes=15 * GIB),
            "capability",
            79,
        ),
        (with_device(uuid=SLICE, mig=True, total_bytes=10 * GIB), "mig", 79),
        (with_board(refused(100), mig_enabled=True, mig_uuids=()), "cuda_init", 69),
        (with_device(context_error=46, free_bytes=None), "context", 75),
        (with_device(free_bytes=100 * MIB), "memory", 75),
        (with_board(remap_pending=True), "row_remap", 69),
        (with_device(compute_mode=2, context_error=46, free_bytes=None), "compute_mode", 69),
    ],
)
def test_the_first_failing_check_and_the_exit_status_of_a_fault(
    facts: GpuFacts, first: str, code: int
) -> None:
    found = failing(judge(changed(facts, asked={})))
    assert (next(iter(found)), int(worst(found.values()))) == (f"gpu.{first}", code)


@pytest.mark.parametrize(
    ("facts", "check", "word"),
    [
        (with_device(free_bytes=70_000 * 10**6), "gpu.memory", "in use already"),
        (with_board(ecc_uncorrected=3), "gpu.ecc", "3 uncorrectable"),
        (with_board(V100_FACTS, retired_pages=61), "gpu.retired_pages", "61 retired"),
        (with_board(throttle=0x40), "gpu.throttle", "hw_thermal_slowdown"),
        (with_board(throttle=0x8C), "gpu.throttle", "hw_power_brake_slowdown"),
        (with_board(fabric_state=2), "gpu.fabric", "in_progress"),
        (
            with_nvml(
                call="",
                init_error=None,
                load_error="libnvidia-ml.so.1 cannot be loaded: no such file",
                boards=(),
            ),
            "gpu.nvml",
            "cannot be loaded",
        ),
        (
            with_nvml(n_devices=2, boards=(H100_BOARD, replace(LOST, index=1))),
            "gpu.lost",
            "another board",
        ),
        (changed(libraries=(IMAGES,)), "gpu.libraries", "works here"),
        (changed(architectures=("compute_80",)), "gpu.architectures", "PTX"),
    ],
)
def test_what_a_boot_can_live_with_only_warns(facts: GpuFacts, check: str, word: str) -> None:
    said = judge(facts, "v100" if facts.devices[0].name == V100.name else "h100")
    assert said[check].status is Status.WARN
    assert word in said[check].reason
    assert not failing(said)


@pytest.mark.parametrize(
    "facts",
    [
        with_board(throttle=0x4),  # a power cap of the site's
        with_board(power_limit_w=350.0),
        with_board(pcie_width=4, pcie_generation=3),
        with_board(persistence=False),
        with_board(ecc_enabled=False, ecc_uncorrected=None, unread={"ecc_uncorrected": 3}),
        with_board(compute_mode=3),
        with_board(remapped_uncorrectable=2),
        with_board(fabric_state=0, fabric_status=None),
        with_device(name="NVIDIA H200", total_bytes=150 * 10**9, free_bytes=149 * 10**9),
        with_device(name="NVIDIA H100 MIG 7g.80gb", uuid=SLICE, mig=True),
        with_nvml(n_devices=2, boards=(H100_BOARD, BoardFacts(index=1, handle_error=4))),
        changed(libraries=(replace(LIBRARIES[0], kind="compat", fits=False), LIBRARIES[1])),
        changed(asked={"NVIDIA_VISIBLE_DEVICES": "all"}),
        changed(asked={"NVIDIA_VISIBLE_DEVICES": "void"}),  # devices that came by CDI
        changed(asked={"SLURM_JOB_GPUS": "0-3", "CUDA_VISIBLE_DEVICES": "0"}),
        changed(
            driver="535.161.08",
            cuda_version=13000,
            libraries=(replace(LIBRARIES[0], kind="compat"),),
        ),
    ],
)
def test_what_is_only_recorded_neither_fails_nor_warns(facts: GpuFacts) -> None:
    statuses = {finding.status for finding in judge(facts).values()}
    assert statuses <= {Status.PASS, Status.SKIP}


def test_without_files_and_library_device_files_and_libcuda_fail_and_nothing_else() -> None:
    said = judge(GpuFacts(load_error="libcuda.so.1 is nowhere in the loader's path"))
    codes = failing(said)
    assert list(codes) == ["gpu.device_files", "gpu.libcuda"]
    assert worst(codes.values()) is ExitCode.NODE_UNFIT
    assert "--gpus" in said["gpu.device_files"].next_step
    others = {found.status for name, found in said.items() if name not in codes}
    assert others == {Status.PASS, Status.SKIP}  # the pass is of gpu.required


def test_facts_of_nothing_pass_nothing() -> None:
    passed = {name for name, found in judge(GpuFacts()).items() if found.status is Status.PASS}
    assert passed == {"gpu.required"}


@pytest.mark.parametrize("number", [803, 302])
def test_a_mismatch_is_the_images_where_the_image_brought_the_library(number: int) -> None:
    ours = judge(refused(number, libraries=(IMAGES,)))["gpu.cuda_init"]
    nodes = judge(refused(number))["gpu.cuda_init"]
    assert (ours.fault, nodes.fault) == (Fault.INTERNAL, Fault.NODE_UNFIT)
    assert IMAGES.path in ours.reason
    assert "reboot" in nodes.next_step


def test_the_same_holds_for_nvml() -> None:
    brought = LibraryFile("libnvidia-ml.so.1", "/opt/libnvidia-ml.so.1", "image", "550", fits=False)
    facts = with_nvml(init_error=18, boards=(), n_devices=None)
    assert judge(facts)["gpu.nvml"].fault is Fault.NODE_UNFIT
    assert judge(changed(facts, libraries=(brought,)))["gpu.nvml"].fault is Fault.INTERNAL


def test_a_refused_compat_library_is_named_and_the_step_takes_it_out() -> None:
    compat = replace(LIBRARIES[0], kind="compat", path="/usr/local/cuda/compat/libcuda.so.1")
    found = judge(refused(804, libraries=(compat,)))["gpu.cuda_init"]
    assert compat.path in found.reason
    assert "LD_LIBRARY_PATH" in found.next_step
    assert found.fault is Fault.NODE_UNFIT


def test_error_999_asks_for_the_uvm_file_only_where_it_is_missing() -> None:
    without = judge(refused(999, device_files=("nvidia0", "nvidiactl")))["gpu.cuda_init"]
    assert "nvidia-uvm" in without.next_step
    assert "nvidia-uvm" not in judge(refused(999))["gpu.cuda_init"].next_step
    lost = judge(with_nvml(refused(999), boards=(LOST,)))["gpu.cuda_init"]
    assert "drain" in lost.next_step


@pytest.mark.parametrize(
    "facts",
    [
        refused(802),
        refused(46),
        refused(803, nvml=NvmlFacts(init_error=18)),
        refused(100),  # with a board by NVML
        refused(0, init_error=None, probe_problem="no answer within 9 s"),
    ],
)
def test_no_missing_file_is_blamed_where_the_driver_is_there(facts: GpuFacts) -> None:
    """Files may have other names than NVIDIA's, as where a test brings the driver."""
    assert judge(changed(facts, device_files=()))["gpu.device_files"].status is Status.SKIP


@pytest.mark.parametrize("number", [34, 100, 999])
def test_a_missing_file_is_blamed_for_what_it_can_cause(number: int) -> None:
    facts = refused(number, device_files=(), nvml=NvmlFacts())
    assert judge(facts)["gpu.device_files"].status is Status.FAIL


@pytest.mark.parametrize(("shown", "fault"), [("0", Fault.NODE_UNFIT), ("1", Fault.CONFIG)])
def test_the_first_index_that_is_not_there_hides_everything(shown: str, fault: Fault) -> None:
    assert judge(refused(100, asked=visible(shown)))["gpu.cuda_init"].fault is fault
    only_files = refused(100, asked=visible(shown), nvml=NvmlFacts())
    assert judge(only_files)["gpu.cuda_init"].fault is fault


@pytest.mark.parametrize(
    "facts",
    [
        refused(802, asked=visible("")),
        refused(802, libraries=(IMAGES,)),
        refused(46, asked=visible("7")),
    ],
)
def test_what_another_number_says_is_no_matter_of_settings_or_image(facts: GpuFacts) -> None:
    assert judge(facts)["gpu.cuda_init"].fault in {Fault.NODE_UNFIT, Fault.TEMPORARY}


def test_a_compat_library_that_was_refused_makes_no_driver_new_enough() -> None:
    compat = (replace(LIBRARIES[0], kind="compat"),)
    facts = refused(804, driver="535.161.08", libraries=compat)
    assert judge(facts)["gpu.driver"].status is Status.FAIL


# As a toolkit before 1.17.4 leaves it: the image's compat files in the system's folder, before the
# node's own, and NVML of the node.
KERNEL = "570.124.06"
MOUNTED = (
    replace(LIBRARIES[0], fits=False, of_node=True),
    replace(LIBRARIES[1], version=KERNEL, fits=True, of_node=True),
    LibraryFile(
        "libnvidia-ptxjitcompiler.so.1",
        "/usr/lib/libnvidia-ptxjitcompiler.so.580.95.05",
        version="580.95.05",
        fits=False,
        of_node=True,
    ),
)
OVER = with_nvml(
    changed(driver=KERNEL, cuda_version=13000, libraries=MOUNTED), driver=KERNEL, init_error=0
)
H100_IMAGE = Baked("x", {}, ("sm_90",), 580, "13.0")
REBOOT, OR_OLDER = "reboot or drain this one", "an image built with LOCK=v100 (CUDA 12.8)"


@pytest.mark.parametrize("baked", [None, H100_IMAGE])
def test_a_compat_library_is_one_by_its_work_wherever_a_toolkit_mounted_it(
    baked: Baked | None,
) -> None:
    said = findings(CHECKS, OVER, replace(plan_for("h100"), baked=baked))
    assert not failing(said)
    assert said["gpu.libraries"].status is said["gpu.driver"].status is Status.PASS
    for library in (MOUNTED[0], MOUNTED[2]):
        assert f"{library.name} 580.95.05 (compat)" in said["gpu.libraries"].reason
    assert f"CUDA 13.0 by forward compatibility ({MOUNTED[0].path})" in said["gpu.driver"].reason


@pytest.mark.parametrize(
    "library",
    [
        replace(LIBRARIES[0], path="/opt/libcuda.so.1", version="", fits=None),
        replace(LIBRARIES[0], kind="image", fits=False),
    ],
)
def test_an_older_driver_that_runs_the_images_cuda_will_do_whatever_file_made_it(
    library: LibraryFile,
) -> None:
    plan = replace(plan_for("h100"), baked=H100_IMAGE)
    found = findings(CHECKS, changed(OVER, libraries=(library,)), plan)["gpu.driver"]
    assert (found.status, "forward compatibility" in found.reason) == (Status.PASS, True)


@pytest.mark.parametrize("number", [803, 804, 999])
def test_a_newer_library_with_which_cuda_does_not_start_is_a_mismatch(number: int) -> None:
    said = judge(refused(number, OVER))
    assert said["gpu.libraries"].status is said["gpu.driver"].status is Status.FAIL
    assert REBOOT in said["gpu.libraries"].next_step
    in_context = judge(with_device(OVER, context_error=number, free_bytes=None))
    assert REBOOT in in_context["gpu.libraries"].next_step
    assert in_context["gpu.driver"].status is Status.FAIL


@pytest.mark.parametrize(
    "facts",
    [
        with_nvml(OVER, init_error=18, boards=(), driver=""),
        changed(OVER, libraries=(MOUNTED[0], replace(LIBRARIES[1], fits=False))),
        changed(OVER, libraries=(replace(MOUNTED[0], version="550.54.15"), MOUNTED[1])),
    ],
    ids=["NVML refuses", "NVML's library is newer too", "libcuda is older"],
)
def test_an_update_without_a_reboot_is_no_compat_library_even_where_cuda_runs(
    facts: GpuFacts,
) -> None:
    found = judge(facts)["gpu.libraries"]
    assert (found.status, "works here" in found.reason) == (Status.WARN, True)
    assert REBOOT in found.next_step


@pytest.mark.parametrize(
    "facts",
    [
        with_nvml(OVER, init_error=18, boards=(), driver=""),
        changed(OVER, n_devices=0, devices=()),
        changed(OVER, cuda_version=12080),
        # The image's own folder has a compat library, and for an older CUDA.
        changed(OVER, cuda_version=12080, libraries=(replace(LIBRARIES[0], kind="compat"),)),
    ],
    ids=["NVML refuses", "no device", "CUDA 12.8", "compat for CUDA 12.8"],
)
def test_an_older_driver_stays_too_old_where_cuda_shows_no_forward_compatibility(
    facts: GpuFacts,
) -> None:
    assert judge(facts)["gpu.driver"].status is Status.FAIL


@pytest.mark.parametrize(
    ("hardware", "image", "driver", "cuda", "named"),
    [
        ("h100", H100_IMAGE, "570.124.06", 12080, True),
        ("h100", H100_IMAGE, "525.60.13", 12000, True),
        ("h100", H100_IMAGE, "570.124.06", None, True),
        ("h100", H100_IMAGE, "", 12080, True),
        ("v100", H100_IMAGE, "570.124.06", 12080, True),
        ("h100", H100_IMAGE, "520.61.05", 11080, False),  # too old for CUDA 12.8 as well
        ("h100", replace(H100_IMAGE, cuda="12.8", minimum_driver=525), "520.61.05", 11080, False),
        ("h100", None, "570.124.06", 12080, False),
    ],
)
def test_a_driver_that_runs_cuda_12_is_served_by_an_image_of_the_older_lock(
    hardware: str, image: Baked | None, driver: str, cuda: int | None, named: bool
) -> None:
    facts = changed(driver=driver, cuda_version=cuda, nvml=replace(FACTS.nvml, driver=driver))
    found = findings(CHECKS, facts, replace(plan_for(hardware), baked=image))["gpu.driver"]
    assert found.status is Status.FAIL
    assert found.next_step.startswith("take a node with driver 5")
    assert (OR_OLDER in found.next_step) is named


def test_no_older_lock_is_named_for_hardware_that_it_has_no_kernels_for() -> None:
    plan = replace(plan_for("h100"), baked=H100_IMAGE)
    plan = replace(plan, profile=replace(plan.profile, compute_capability=(11, 0)))
    found = findings(CHECKS, changed(driver=KERNEL, cuda_version=12080), plan)["gpu.driver"]
    assert found.next_step == "take a node with driver 580 or newer"


@pytest.mark.parametrize("name", ["Dockerfile.h100", "Dockerfile.v100"])
def test_the_older_lock_is_as_the_images_labels_say(name: str) -> None:
    stage = (ROOT / name).read_text().partition(f"AS lock-{OLDER_LOCK}\n")[2].partition("\nFROM")[0]
    labels = dict(re.findall(r'bootguard\.([a-z-]+)="([^"]*)"', stage))
    assert labels == {
        "cuda": OLDER_CUDA,
        "minimum-driver": str(least_driver(OLDER_CUDA)),
        "architectures": " ".join(OLDER_ARCHITECTURES),
    }


def test_void_beside_a_visible_device_without_a_file_grants_nothing_and_denies_nothing() -> None:
    facts = changed(device_files=(), asked={"NVIDIA_VISIBLE_DEVICES": "void"})
    assert judge(facts)["gpu.granted"].status is Status.SKIP


def test_our_images_own_void_says_nothing_where_no_gpu_was_requested() -> None:
    """A forgotten `--gpus` is 69, by the files that are missing, and no mistake in a setting."""
    facts = changed(GpuFacts(), load_error="none", asked={"NVIDIA_VISIBLE_DEVICES": "void"})
    failing_codes = set(failing(judge(facts, "h100")).values())
    assert failing_codes == {ExitCode.NODE_UNFIT}


def test_a_library_of_an_unknown_version_is_the_nodes() -> None:
    unknown = replace(LIBRARIES[0], version="", fits=None)
    assert judge(changed(libraries=(unknown,)))["gpu.libraries"].status is Status.PASS


def test_no_device_beside_an_nvml_that_fails_gets_the_step_of_nvmls_number() -> None:
    found = judge(with_nvml(refused(100), init_error=9, boards=(), n_devices=None))["gpu.cuda_init"]
    assert "DRIVER_NOT_LOADED" in found.reason
    assert "modprobe" in found.next_step


@pytest.mark.parametrize(
    "facts",
    [
        with_nvml(refused(100), boards=(BoardFacts(index=0, handle_error=4),)),
        with_nvml(refused(100, unopenable={"nvidia0": 1}), boards=(), n_devices=0),
    ],
)
def test_a_job_from_which_every_device_is_kept_asks_for_one_and_drains_no_node(
    facts: GpuFacts,
) -> None:
    """As Slurm does with a job that asked for none, on a node whose devices others hold."""
    found = judge(facts)["gpu.cuda_init"]
    assert "start the container with a GPU" in found.next_step
    counted = judge(changed(facts, init_error=0, n_devices=0))["gpu.count"]
    assert counted.next_step == found.next_step


def test_a_board_in_mig_mode_without_an_instance_is_told_how_to_get_one() -> None:
    empty = with_board(refused(100), mig_enabled=True, mig_uuids=())
    for facts in (empty, changed(empty, init_error=0, n_devices=0)):
        said = judge(facts)
        steps = {said[name].next_step for name in failing(said)}
        assert all("nvidia-smi mig" in step for step in steps)


def test_the_call_that_hangs_is_named_once() -> None:
    hung = changed(init_error=None, devices=(), call="cuInit")
    for problem in ("no answer within 3 s", "no answer within 3 s (in cuInit)"):
        found = judge(changed(hung, probe_problem=problem))["gpu.cuda_init"]
        assert found.reason.count("cuInit") == 1


def test_how_long_a_driver_was_waited_for_is_told() -> None:
    assert "180 s" in judge(refused(802, waited_s=180.0))["gpu.cuda_init"].reason
    assert "3 s" in judge(changed(waited_s=3.2))["gpu.cuda_init"].reason


def test_both_ways_out_of_several_devices_and_what_was_asked_are_named() -> None:
    found = judge(changed(four(), asked={"NVIDIA_VISIBLE_DEVICES": "all"}))["gpu.count"]
    assert "--gpus device=<UUID" in found.next_step
    assert "CUDA_VISIBLE_DEVICES to the UUID that this job was granted" in found.next_step
    assert UUID not in found.next_step  # the first one is as likely as any somebody else's
    assert "NVIDIA_VISIBLE_DEVICES=all" in found.actual


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"SLURM_JOB_GPUS": "2"}, Status.FAIL),
        ({"SLURM_JOB_GPUS": "0-3"}, Status.PASS),
        ({"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "1"}, Status.FAIL),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, Status.FAIL),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1,2,3"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, Status.SKIP),
        ({"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=all"}, Status.SKIP),
        ({}, Status.SKIP),
    ],
)
def test_four_visible_devices_against_what_was_granted(
    asked: dict[str, str], status: Status
) -> None:
    assert judge(changed(four(), asked=asked))["gpu.granted"].status is status


@pytest.mark.parametrize(
    ("granted", "status"),
    [
        (UUID, Status.PASS),
        (SLICE.upper(), Status.PASS),
        (UUID[:12], Status.PASS),  # cut short, as CUDA and the toolkit allow
        (f"{OTHER_UUID},{UUID}", Status.PASS),
        (SLICE, Status.PASS),
        (f"MIG-{UUID}/1/0", Status.PASS),
        (OTHER_UUID, Status.FAIL),
        ("MIG-bbbbbbbb-2222-3333-4444-555555555555", Status.FAIL),
    ],
)
def test_a_slice_is_granted_by_its_name_or_its_boards(granted: str, status: Status) -> None:
    facts = with_device(uuid=SLICE, board_uuid=UUID, mig=True)
    facts = changed(facts, asked={"NVIDIA_VISIBLE_DEVICES": granted})
    assert judge(facts)["gpu.granted"].status is status


def test_who_holds_the_memory_is_named_largest_first() -> None:
    users = (GpuProcess(7, 2 * GIB), GpuProcess(8, 60 * GIB, "python"), GpuProcess(9))
    facts = with_board(with_device(free_bytes=200 * MIB), processes=users)
    reason = judge(facts)["gpu.memory"].reason
    assert reason.index("python (the host's pid 8, 60.0 GiB)") < reason.index("pid 7, 2.0 GiB")


def test_free_memory_of_a_slice_is_never_read_off_its_board() -> None:
    without = with_device(free_bytes=None)
    assert judge(without)["gpu.memory"].status is Status.PASS
    of_slice = judge(with_device(without, mig=True, uuid=SLICE))["gpu.memory"]
    assert of_slice.status is Status.SKIP


@pytest.mark.parametrize(
    ("field", "check"),
    [
        ("remap_pending remap_failed", "gpu.row_remap"),
        ("fabric_state", "gpu.fabric"),
        ("throttle", "gpu.throttle"),
        ("ecc_uncorrected", "gpu.ecc"),
        ("pcie_width pcie_generation", "gpu.link"),
    ],
)
def test_what_nvml_refuses_is_skipped_with_its_error(field: str, check: str) -> None:
    fields = field.split()
    facts = with_board(FACTS, **dict.fromkeys(fields), unread=dict.fromkeys(fields, 3))
    found = judge(facts)[check]
    assert found.status is Status.SKIP
    assert "3 NVML_ERROR_NOT_SUPPORTED" in found.reason


def test_without_nvml_health_is_skipped_with_why_and_never_passed() -> None:
    health = {"gpu.row_remap", "gpu.retired_pages", "gpu.ecc", "gpu.fabric", "gpu.throttle"}
    health |= {"gpu.link", "gpu.lost"}
    said = judge(changed(nvml=NvmlFacts(load_error="libnvidia-ml.so.1 cannot be loaded: x")))
    assert {said[name].status for name in health} == {Status.SKIP}
    assert all("cannot be loaded" in said[name].reason for name in health)


def test_the_capabilities_that_the_launcher_left_out_are_named() -> None:
    nvml = NvmlFacts(call="dlopen", load_error="libnvidia-ml.so.1 cannot be loaded: x")
    asked = {"NVIDIA_DRIVER_CAPABILITIES": "compute"}
    assert "lacks utility" in judge(changed(nvml=nvml, asked=asked))["gpu.nvml"].reason


def test_health_is_the_visible_boards_own_and_not_its_neighbours() -> None:
    neighbour = replace(
        H100_BOARD, index=0, uuid=OTHER_UUID, pci="00000000:18:00.0", remap_pending=True
    )
    facts = with_nvml(n_devices=2, boards=(neighbour, replace(H100_BOARD, index=1)))
    assert judge(facts)["gpu.row_remap"].status is Status.PASS
    strange = judge(with_nvml(boards=(neighbour,)))["gpu.row_remap"]
    assert (strange.status, UUID in strange.reason) == (Status.SKIP, True)


def test_a_board_is_found_by_its_pci_id_where_the_uuid_is_a_slices() -> None:
    facts = with_board(with_device(uuid=SLICE, board_uuid="", mig=True), remap_pending=True)
    assert judge(facts)["gpu.row_remap"].status is Status.FAIL


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        (changed(driver="", nvml=NvmlFacts()), Status.SKIP),
        (changed(driver=""), Status.PASS),  # NVML tells it
        (changed(driver="garbage", nvml=NvmlFacts()), Status.SKIP),
        (changed(driver="579.99", cuda_version=12090), Status.FAIL),
        (changed(driver="579.99"), Status.PASS),  # 13.0, by forward compatibility
        (changed(driver="590.1"), Status.PASS),
    ],
)
def test_the_drivers_version_is_judged_where_anything_tells_it(
    facts: GpuFacts, status: Status
) -> None:
    assert judge(facts)["gpu.driver"].status is status


@pytest.mark.parametrize(
    ("versions", "cuda", "status"),
    [
        ({"nvidia-cuda-runtime": "13.0.96"}, 12040, Status.FAIL),
        ({"nvidia-cuda-runtime-cu12": "12.6.77"}, 12040, Status.PASS),
        ({"torch": "2.10.0+cu130"}, 12080, Status.FAIL),
        ({"torch": "2.10.0"}, 11000, Status.PASS),
    ],
)
def test_the_drivers_cuda_is_compared_with_the_images(
    versions: dict[str, str], cuda: int, status: Status
) -> None:
    plan = replace(plan_for("h100"), baked=Baked("x", versions, ("sm_90",), 580))
    found = findings(CHECKS, changed(cuda_version=cuda), plan)["gpu.driver"]
    assert found.status is status


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [
        ("535.230.02", 12020, Status.PASS),
        ("525.60.13", 12000, Status.PASS),
        ("580.95.05", 13000, Status.PASS),
        ("520.61.05", 11080, Status.FAIL),
        ("515.105.01", 0, Status.FAIL),
    ],
)
def test_an_image_with_an_older_cuda_serves_drivers_that_its_profile_would_refuse(
    driver: str, cuda: int, status: Status
) -> None:
    """An H100 image of the CUDA 12.8 set: what is inside decides, and not the usual image."""
    plan = replace(plan_for("h100"), baked=Baked("x", {}, ("sm_90",), 525, "12.8"))
    old = changed(driver=driver, cuda_version=cuda, nvml=replace(FACTS.nvml, driver=driver))
    found = findings(CHECKS, old, plan)["gpu.driver"]
    assert found.status is status
    if status is Status.FAIL:
        assert found.next_step == "take a node with driver 525 or newer"
    profile_alone = findings(CHECKS, old, plan_for("h100"))["gpu.driver"]
    assert (profile_alone.status is Status.PASS) is driver.startswith("580")


def test_an_image_tells_its_cuda_itself_where_it_can() -> None:
    versions = {"nvidia-cuda-runtime-cu12": "12.6.77"}
    plan = replace(plan_for("h100"), baked=Baked("x", versions, ("sm_90",), 580, "13.0"))
    found = findings(CHECKS, changed(cuda_version=12080), plan)["gpu.driver"]
    assert "the image holds CUDA 13" in found.reason


def test_a_driver_without_a_version_is_judged_by_its_cuda_against_the_image() -> None:
    nameless = changed(driver="", cuda_version=12080, nvml=replace(FACTS.nvml, driver=""))
    image = replace(plan_for("h100"), baked=Baked("x", {}, ("sm_90",), 525, None))
    assert findings(CHECKS, nameless, image)["gpu.driver"].status is Status.SKIP
    newer = replace(plan_for("h100"), baked=Baked("x", {}, ("sm_90",), 580, None))
    found = findings(CHECKS, nameless, newer)["gpu.driver"]
    assert found.status is Status.FAIL
    assert "too old for this image" in found.reason


def test_an_image_may_ask_for_a_newer_driver_than_its_profile() -> None:
    plan = replace(plan_for("v100"), baked=Baked("x", {}, (), 590))
    found = findings(CHECKS, V100_FACTS, plan)["gpu.driver"]
    assert (found.status, found.expected) == (Status.FAIL, "driver 590 or newer")


def test_a_near_miss_is_named_with_the_image_that_fits() -> None:
    found = judge(with_device(name="Tesla V100", capability=(7, 0)))["gpu.capability"]
    assert "profile v100" in found.next_step
    assert "Volta" in found.reason
    assert "H200" in judge(with_device(name="NVIDIA H200"))["gpu.capability"].reason


def test_a_rehearsal_looks_at_nothing_and_says_so() -> None:
    plan = plan_for("cpu")
    (only,) = findings(checks_for(plan), GpuFacts(), plan).values()
    assert (only.status, only.reason) == (Status.SKIP, "profile cpu needs no device")


def test_every_judge_of_every_family_is_listed_under_its_own_name() -> None:
    """The families' modules begin with an underscore, where the general test does not look."""
    written: set[str] = set()
    for found in pkgutil.iter_modules(app.checks.__path__):
        if found.name.startswith("_gpu_"):
            module = importlib.import_module(f"app.checks.{found.name}")
            written |= {
                name
                for name, function in vars(module).items()
                if inspect.isfunction(function)
                and function.__module__ == module.__name__
                and not name.startswith("_")
                and str(inspect.signature(function).return_annotation) == "Finding"
                and len(inspect.signature(function).parameters) == 2
                and "Plan" in str(inspect.signature(function))
            }
    assert {f"gpu.{name}" for name in written} == {check.id for check in CHECKS} - {"gpu.required"}
    assert all(check.cause and check.fix for check in CHECKS)


@pytest.mark.parametrize("shown", ["0,0", "0, 0,1", f"{UUID},{UUID}"])
def test_a_device_that_is_named_twice_hides_everything(shown: str) -> None:
    found = judge(refused(100, asked=visible(shown)))["gpu.cuda_init"]
    assert found.fault is Fault.CONFIG
    assert "names a device twice" in found.reason


@pytest.mark.parametrize(
    ("shown", "board", "fault"),
    [
        (SLICE, {"mig_enabled": False}, Fault.CONFIG),
        (SLICE, {"mig_enabled": True, "mig_uuids": (f"{SLICE}0",)}, Fault.CONFIG),
        (f"MIG-{OTHER_UUID}/1/0", {"mig_enabled": True, "mig_uuids": (SLICE,)}, Fault.CONFIG),
        (f"MIG-{UUID}/1/0", {"mig_enabled": False}, Fault.CONFIG),
        (SLICE, {"mig_enabled": True, "mig_uuids": (SLICE,)}, Fault.NODE_UNFIT),
        (f"MIG-{UUID}/1/0", {"mig_enabled": True, "mig_uuids": (SLICE,)}, Fault.NODE_UNFIT),
        (SLICE, {"mig_enabled": None}, Fault.NODE_UNFIT),
    ],
)
def test_a_slice_that_no_board_has_hides_everything_and_an_unknown_one_is_left_open(
    shown: str, board: dict[str, object], fault: Fault
) -> None:
    found = judge(with_board(refused(100, asked=visible(shown)), **board))["gpu.cuda_init"]
    assert found.fault is fault


@pytest.mark.parametrize(
    ("cuda_version", "hardware", "status"),
    [
        (11040, "h100", Status.FAIL),
        (12080, "h100", Status.FAIL),
        (13000, "h100", Status.SKIP),
        (11040, "v100", Status.FAIL),
        (12020, "v100", Status.SKIP),
        (None, "h100", Status.SKIP),
    ],
)
def test_where_nothing_tells_the_drivers_version_its_cuda_does(
    cuda_version: int | None, hardware: str, status: Status
) -> None:
    facts = changed(driver="", nvml=NvmlFacts(), cuda_version=cuda_version)
    assert judge(facts, hardware)["gpu.driver"].status is status


def test_a_driver_that_no_longer_runs_a_volta_is_named_with_the_last_that_does() -> None:
    newer = changed(V100_FACTS, driver="590.44.01")
    assert judge(newer, "v100")["gpu.driver"].status is Status.PASS  # it runs it all the same
    found = judge(replace(newer, init_error=100, devices=(), n_devices=None), "v100")["gpu.driver"]
    assert found.status is Status.FAIL
    assert "driver 580, the last branch" in found.next_step
    assert judge(refused(100, driver="590.44.01"))["gpu.driver"].status is Status.PASS


@pytest.mark.parametrize(
    "changes",
    [
        {"total_bytes": 2**64 - 5, "free_bytes": 10},
        {"free_bytes": 2**64 - 5},
        {"free_bytes": H100.total_bytes + 1},
    ],
)
def test_figures_of_memory_that_make_no_sense_pass_nothing(changes: dict[str, Any]) -> None:
    found = judge(with_device(**changes))["gpu.memory"]
    assert found.status is Status.SKIP
    assert "make no sense" in found.reason


def test_a_whole_gpu_that_is_too_small_is_not_called_a_slice() -> None:
    whole = with_device(total_bytes=12 * GIB)
    assert "slice" not in judge(whole)["gpu.memory"].next_step
    part = with_device(total_bytes=12 * GIB, mig=True, uuid=SLICE)
    assert "not a slice" in judge(part)["gpu.memory"].next_step


@pytest.mark.parametrize("kind", ["empty", "broken"])
@pytest.mark.parametrize(("of_node", "fault"), [(True, Fault.NODE_UNFIT), (False, Fault.INTERNAL)])
def test_a_useless_library_is_whose_who_brought_it(
    kind: LibraryKind, of_node: bool, fault: Fault
) -> None:
    library = replace(LIBRARIES[0], kind=kind, of_node=of_node)
    found = judge(refused(0, init_error=None, load_error="x", libraries=(library,)))
    assert found["gpu.libraries"].fault is fault


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.EAGAIN, Fault.TEMPORARY),
        (errno.EMFILE, Fault.TEMPORARY),
        (errno.EACCES, Fault.INTERNAL),
        (errno.ENOENT, Fault.INTERNAL),
    ],
)
def test_a_question_that_no_process_could_be_had_for_says_nothing_of_the_driver(
    number: int, fault: Fault
) -> None:
    facts = changed(GpuFacts(), probe_problem="it could not start", start_errno=number)
    found = judge(replace(facts, nvml=NvmlFacts(problem="nor this", start_errno=number)))
    assert found["gpu.cuda_init"].fault is found["gpu.nvml"].fault is fault
    assert "driver looked at" not in found["gpu.cuda_init"].next_step


def test_how_long_a_context_was_waited_for_is_told() -> None:
    found = judge(with_device(changed(waited_s=7.0), context_error=802, free_bytes=None))
    assert "after 7 s of asking again" in found["gpu.context"].reason
