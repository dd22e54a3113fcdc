"""Facts of the gpu stage made by hand: healthy devices and boards, to be changed by a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.checks.gpu import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.board import BoardFacts, NvmlFacts
from app.facts.gpu import DeviceFacts, GpuFacts, LibraryFile
from app.outcome import Finding
from tests.fakes_preflight import findings, plan_for

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-99999999-2222-3333-4444-555555555555"
PCI = "00000000:17:00.0"
MIB = 2**20

H100 = DeviceFacts(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    uuid=UUID,
    capability=(9, 0),
    total_bytes=85_000 * 10**6,
    free_bytes=84_400 * 10**6,
    pci=PCI,
    n_multiprocessors=132,
    board_uuid=UUID,
    compute_mode=0,
)
V100 = replace(
    H100,
    name="Tesla V100-SXM2-16GB",
    capability=(7, 0),
    total_bytes=16_900 * 10**6,
    free_bytes=16_500 * 10**6,
    n_multiprocessors=80,
)
H100_BOARD = BoardFacts(
    index=0,
    uuid=UUID,
    pci=PCI,
    name=H100.name,
    total_bytes=H100.total_bytes,
    used_bytes=4 * MIB,
    free_bytes=H100.total_bytes - 600 * MIB,
    reserved_bytes=596 * MIB,
    processes=(),
    ecc_enabled=True,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    remapped_uncorrectable=0,
    mig_enabled=False,
    compute_mode=0,
    fabric_state=3,
    fabric_status=0,
    throttle=0x1,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    temperature_c=31,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    persistence=True,
    unread={"retired_pages": 3, "retirement_pending": 3},
)
V100_BOARD = replace(
    H100_BOARD,
    name=V100.name,
    total_bytes=V100.total_bytes,
    remap_pending=None,
    remap_failed=None,
    remapped_uncorrectable=None,
    retired_pages=0,
    retirement_pending=False,
    mig_enabled=None,
    fabric_state=None,
    fabric_status=None,
    unread={
        **dict.fromkeys(("remap_pending", "remap_failed", "remapped_uncorrectable"), 3),
        **dict.fromkeys(("mig_enabled", "mig_uuids", "fabric_state", "fabric_status"), 3),
    },
)
NVML = NvmlFacts(
    init_error=0,
    call="nvmlDeviceGetName",
    driver="580.95.05",
    n_devices=1,
    boards=(H100_BOARD,),
)
LIBRARIES = (
    LibraryFile("libcuda.so.1", "/usr/lib/libcuda.so.580.95.05", version="580.95.05", fits=True),
    LibraryFile(
        "libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.580.95.05", version="580.95.05", fits=True
    ),
)
FACTS = GpuFacts(
    device_files=("nvidia-uvm", "nvidia0", "nvidiactl"),
    libcuda="/usr/lib/libcuda.so.580.95.05",
    init_error=0,
    call="cuDeviceGetCount",
    n_devices=1,
    devices=(H100,),
    cuda_version=13000,
    driver="580.95.05",
    nvml=NVML,
    libraries=LIBRARIES,
    asked={"NVIDIA_VISIBLE_DEVICES": UUID},
    architectures=("sm_75", "sm_80", "sm_90"),
    architectures_source="image.json",
)
V100_FACTS = replace(
    FACTS,
    devices=(V100,),
    nvml=replace(NVML, boards=(V100_BOARD,)),
    architectures=("sm_70", "sm_90"),
)


def changed(facts: GpuFacts = FACTS, **changes: Any) -> GpuFacts:
    """The facts with fields of theirs changed."""
    return replace(facts, **changes)


def visible(text: str) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES as it was asked for."""
    return {"CUDA_VISIBLE_DEVICES": text}


def with_device(facts: GpuFacts = FACTS, **changes: Any) -> GpuFacts:
    """The same of their device."""
    return replace(facts, devices=(replace(facts.devices[0], **changes),))


def with_board(facts: GpuFacts = FACTS, **changes: Any) -> GpuFacts:
    """The same of its board."""
    boards = (replace(facts.nvml.boards[0], **changes),)
    return replace(facts, nvml=replace(facts.nvml, boards=boards))


def with_nvml(facts: GpuFacts = FACTS, **changes: Any) -> GpuFacts:
    """The same of what NVML told."""
    return replace(facts, nvml=replace(facts.nvml, **changes))


def refused(number: int, facts: GpuFacts = FACTS, **changes: Any) -> GpuFacts:
    """A driver whose cuInit returns this number, so that no device is known."""
    found: dict[str, Any] = {"init_error": number, "call": "cuInit", "n_devices": None}
    return replace(facts, **{**found, "devices": (), **changes})


def judge(facts: GpuFacts, hardware: str = "h100") -> dict[str, Finding]:
    """What every check says."""
    return findings(CHECKS, facts, plan_for(hardware))


def failing(said: dict[str, Finding]) -> dict[str, ExitCode]:
    """Failed checks with the code each leads to, in their order."""
    by_id = {check.id: check for check in CHECKS}
    return {
        check_id: exit_code(finding.fault or by_id[check_id].fault)
        for check_id, finding in said.items()
        if finding.status.blocks
    }
