"""Whether a visible device is the granted one, and what the gpu stage's findings say of files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.checks.gpu import CHECKS
from app.facts.board import BoardFacts
from app.facts.gpu import GpuFacts, LibraryKind
from app.outcome import Fault, Status
from app.plan import Baked
from tests.fakes_preflight import findings, plan_for
from tests.gpus import (
    FACTS,
    H100,
    H100_BOARD,
    LIBRARIES,
    OTHER_UUID,
    changed,
    judge,
    refused,
    with_device,
    with_nvml,
)

SLURM, STEP, TOOLKIT = "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "NVIDIA_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
KEPT = 4  # NVML's number of a board that the control group keeps from us


def node(n: int, shown: int = 0, asked: dict[str, str] | None = None, kept: int = 0) -> GpuFacts:
    """A node whose NVML reaches `n` boards, of which CUDA shows one, besides those kept from us."""
    boards = [
        replace(H100_BOARD, index=i, uuid=f"GPU-{i}0000000-2222-3333-4444-555555555555", pci="")
        for i in range(n)
    ]
    others = [BoardFacts(index=n + i, handle_error=KEPT) for i in range(kept)]
    uuid = boards[shown].uuid
    device = replace(H100, uuid=uuid, board_uuid=uuid, pci="")
    nvml = replace(FACTS.nvml, n_devices=n + kept, boards=(*boards, *others))
    return changed(devices=(device,), nvml=nvml, asked=asked or {})


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        (0, {SLURM: "2", CUDA: "0"}),
        (0, {TOOLKIT: "3", CUDA: "0"}),
        (1, {SLURM: "2-3", CUDA: "1"}),
        (0, {SLURM: "0-3", STEP: "2", CUDA: "0"}),  # all of the node is the job's: not renumbered
        (0, {SLURM: "2", TOOLKIT: "all", CUDA: "0"}),
        (0, {TOOLKIT: "3:1", CUDA: "0"}),
    ],
)
def test_a_board_of_another_number_is_somebody_elses(shown: int, asked: dict[str, str]) -> None:
    found = judge(node(4, shown, asked))["gpu.granted"]
    assert (found.status, found.fault) == (Status.FAIL, None)
    assert f"NVML counts it as {shown}" in found.reason
    assert CUDA in found.next_step


@pytest.mark.parametrize(
    "asked", [{SLURM: "2", CUDA: "2"}, {TOOLKIT: "2", CUDA: "2"}, {SLURM: "0-3", STEP: "2"}]
)
def test_the_board_of_the_granted_number_was_granted(asked: dict[str, str]) -> None:
    found = judge(node(4, 2, asked))["gpu.granted"]
    assert found.status is Status.PASS
    assert "what is visible was granted" in found.reason


@pytest.mark.parametrize(
    "facts",
    [
        node(1, 0, {SLURM: "2", CUDA: "0"}),
        node(1, 0, {SLURM: "2", CUDA: "0"}, kept=3),
        node(1, 0, {TOOLKIT: "3"}),
        node(2, 0, {SLURM: "2,3", CUDA: "0"}),
        node(4, 3, {SLURM: "4-7", TOOLKIT: "all", CUDA: "3"}),
    ],
)
def test_where_a_grant_is_all_that_is_reached_only_the_count_is_told(facts: GpuFacts) -> None:
    """As under Slurm with ConstrainDevices and in a container, which both count from 0 again."""
    found = judge(facts)["gpu.granted"]
    assert found.status is Status.PASS
    assert found.reason.startswith("by count alone")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (node(4, 0, {SLURM: "4-7", STEP: "5"}), "may be counted anew"),
        (node(4, 1, {SLURM: "2", CUDA: "2"}), "NVML counts it as 1"),
        (node(4, 0, {TOOLKIT: f"1,{OTHER_UUID}"}), "in two ways"),
        (changed(node(4, 0, {SLURM: "2"}), devices=(replace(H100, pci=""),)), "which of them"),
        (with_nvml(changed(asked={SLURM: "0"}), init_error=9, boards=()), "DRIVER_NOT_LOADED"),
        (
            with_device(changed(nvml=replace(FACTS.nvml, boards=())), uuid="", board_uuid=""),
            "names UUIDs",
        ),
    ],
)
def test_what_cannot_be_told_is_skipped_with_why(facts: GpuFacts, why: str) -> None:
    found = judge(facts)["gpu.granted"]
    assert found.status is Status.SKIP
    assert why in found.reason


def test_slurms_numbers_are_no_boards_on_a_node_with_slices() -> None:
    facts = node(4, 0, {SLURM: "5"})
    boards = tuple(replace(board, mig_enabled=True) for board in facts.nvml.boards)
    found = judge(with_nvml(facts, boards=boards))["gpu.granted"]
    assert found.status is Status.SKIP
    assert "slices" in found.reason


@pytest.mark.parametrize("text", ["void", "all"])
def test_a_variable_that_names_no_device_is_told_as_it_stands(text: str) -> None:
    found = judge(changed(asked={TOOLKIT: text}))["gpu.granted"]
    assert found.status is Status.SKIP
    assert f"{TOOLKIT}={text} does not say which" in found.reason


def test_a_missing_numbered_file_is_told_beside_files_that_are_there() -> None:
    some = judge(refused(100, device_files=("nvidiactl", "nvidia-uvm"), nvml=replace(FACTS.nvml)))
    assert "/dev/nvidia<N>" in some["gpu.device_files"].reason
    none = judge(refused(100, device_files=(), nvml=replace(FACTS.nvml, boards=())))
    assert "no NVIDIA device file" in none["gpu.device_files"].reason


@pytest.mark.parametrize("kind", ["empty", "broken"])
def test_useless_libraries_are_all_named_and_each_check_points_at_its_own(
    kind: LibraryKind,
) -> None:
    bad = tuple(replace(each, kind=kind, fits=None) for each in LIBRARIES)
    nvml = replace(FACTS.nvml, init_error=None, load_error="file too short", boards=())
    facts = changed(
        init_error=None, load_error="file too short", devices=(), libraries=bad, nvml=nvml
    )
    said = judge(facts)
    assert said["gpu.libraries"].status is Status.FAIL
    assert all(each.path in said["gpu.libraries"].reason for each in bad)
    for check, library in zip(("gpu.libcuda", "gpu.nvml"), bad, strict=True):
        assert library.path in said[check].reason
        assert "NVIDIA_DRIVER_CAPABILITIES" not in said[check].next_step
        assert said[check].next_step == said["gpu.libraries"].next_step
    assert said["gpu.libcuda"].fault is Fault.INTERNAL


def test_a_useless_library_is_blamed_before_one_that_works() -> None:
    cuda, nvml = replace(LIBRARIES[0], fits=False), replace(LIBRARIES[1], kind="empty")
    facts = with_nvml(changed(libraries=(cuda, nvml)), init_error=None, load_error="too short")
    found = judge(facts)["gpu.libraries"]
    assert found.status is Status.FAIL
    assert nvml.path in found.reason


def test_the_way_to_the_right_torch_is_an_image_only_in_an_image() -> None:
    facts = with_device(capability=(7, 0))
    outside = judge(facts)["gpu.architectures"].next_step
    assert "image" not in outside
    assert "docker/requirements.v100.txt" in outside
    plan = replace(plan_for("h100"), baked=Baked("x", {}, ("sm_90",), 580))
    inside = findings(CHECKS, facts, plan)["gpu.architectures"].next_step
    assert "the image of this hardware" in inside
    unknown = judge(with_device(capability=(6, 0)))["gpu.architectures"].next_step
    assert "requirements" not in unknown


def test_one_board_is_told_as_one() -> None:
    assert judge(FACTS)["gpu.lost"].actual == "1 board"
    assert judge(node(4))["gpu.lost"].actual == "4 boards"
