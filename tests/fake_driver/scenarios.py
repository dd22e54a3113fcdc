"""What a driver answers, as values; `Scenario.text` is the file that the fake libraries read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

GIB, MIB = 1024**3, 1024**2
LATEST, OLDER = "580.95.05", "535.161.08"


@dataclass(frozen=True)
class Device:
    """A board. None is what it does not support. Bytes, milliwatts.

    `errors`: numbers that its calls return, by the function's name. `processes`, `graphics`, `mps`:
    `pid:bytes` with blanks between.
    """

    name: str
    major: int
    minor: int
    total: int
    uuid: str = "GPU-5d1e9c3a-0001-4f5e-8a6b-1c2d3e4f5a6b"
    pci: str = "00000000:17:00.0"
    used: int = 0
    reserved: int = 500 * MIB
    multiprocessors: int = 132
    compute_mode: int | None = 0
    ecc: int | None = 1
    ecc_uncorrected: int = 0
    remap_uncorrected: int = 0
    remap_pending: int | None = 0
    remap_failed: int = 0
    retired: int | None = None
    retirement_pending: int | None = None
    mig: int | None = 0
    mig_uuid: str | None = None
    mig_name: str | None = None
    mig_total: int | None = None
    fabric: int | None = None
    fabric_status: int = 0
    throttle: int | None = 1  # nvmlClocksEventReasonGpuIdle
    power_mw: int | None = 700_000
    power_default_mw: int | None = 700_000
    temperature: int = 31
    pcie_generation: int | None = 5
    pcie_generation_max: int | None = 5
    pcie_width: int | None = 16
    pcie_width_max: int | None = 16
    persistence: int | None = 1
    busy: int = 0
    processes: str | None = None
    graphics: str | None = None
    mps: str | None = None
    cuda_order: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A node's driver and its boards.

    `errors`: numbers that calls return for every device, by the function's name. `hang`, `crash`
    and `slow` name a function, which works `after` times before. `not_ready_s`: CUDA answers 802 so
    long after the first call of any process, and NVML that the fabric is in progress; -1 is for
    ever. `printed`: what every call prints to standard output. `daemon` names a function that
    leaves a process behind, with all that is open.
    """

    name: str
    devices: tuple[Device, ...] = ()
    hardware: str = "h100"
    driver: str = LATEST
    cuda_version: int = 13000
    errors: Mapping[str, int] = field(default_factory=dict)
    not_ready_s: float | None = None
    hang: str | None = None
    crash: str | None = None
    crash_signal: int | None = None
    slow: str | None = None
    slow_ms: int | None = None
    after: int | None = None
    printed: str | None = None
    daemon: str | None = None

    def text(self) -> str:
        """The file."""
        own = {
            "driver": self.driver,
            "cuda_version": self.cuda_version,
            "not_ready_s": self.not_ready_s,
            "hang": self.hang,
            "crash": self.crash,
            "crash_signal": self.crash_signal,
            "slow": self.slow,
            "slow_ms": self.slow_ms,
            "after": self.after,
            "daemon": self.daemon,
            "print": None if self.printed is None else self.printed.replace("\n", "\\n"),
        }
        lines = [*_lines(own), *_lines(self.errors)]
        for device in self.devices:
            plain = {k: v for k, v in vars(device).items() if k != "errors"}
            lines += ["[device]", *_lines(plain), *_lines(device.errors)]
        return "\n".join(lines) + "\n"

    def but(
        self, name: str, *, device: Mapping[str, Any] | None = None, **changes: Any
    ) -> Scenario:
        """This one with its first device or itself changed."""
        devices = self.devices
        if device:
            devices = (replace(devices[0], **device), *devices[1:])
        return replace(self, **{"devices": devices, **changes, "name": name})


def _lines(found: Mapping[str, object]) -> Iterator[str]:
    return (f"{key}={value}" for key, value in found.items() if value is not None)


V100_16 = Device(
    "Tesla V100-SXM2-16GB", 7, 0, 16160 * MIB, multiprocessors=80, mig=None, remap_pending=None,
    retired=0, retirement_pending=0, power_mw=300_000, power_default_mw=300_000,
    pcie_generation=3, pcie_generation_max=3,
)  # fmt: skip
V100_32 = replace(V100_16, name="Tesla V100-SXM2-32GB", total=32510 * MIB)
H100 = Device("NVIDIA H100 80GB HBM3", 9, 0, 81559 * MIB, fabric=3)
H100_PCIE = replace(
    H100, name="NVIDIA H100 PCIe", multiprocessors=114, fabric=0, power_mw=350_000,
    power_default_mw=350_000,
)  # fmt: skip
H200 = Device("NVIDIA H200", 9, 0, 143771 * MIB, fabric=3)
GH200 = Device("NVIDIA GH200 480GB", 9, 0, 97871 * MIB, fabric=0)
A100 = Device("NVIDIA A100-SXM4-80GB", 8, 0, 81920 * MIB, multiprocessors=108)
T4 = replace(V100_16, name="Tesla T4", minor=5, total=15360 * MIB, multiprocessors=40)
B200 = Device("NVIDIA B200", 10, 0, 183_359 * MIB, multiprocessors=148, fabric=3)
H20 = replace(H100, name="NVIDIA H20", total=97_871 * MIB, multiprocessors=78)
L40S = Device("NVIDIA L40S", 8, 9, 46068 * MIB, multiprocessors=142, mig=None)

# What an old driver may lack, one by one; the devices' number and handles are not among it.
_ALL_OF_NVML = (
    *("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetEccMode"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTotalEccErrors"),
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetRemappedRows"),
    *("nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    *("nvmlDeviceGetComputeMode", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
)
_H100 = Scenario("healthy_h100", (H100,))
_V100 = Scenario("healthy_v100", (V100_16,), "v100", cuda_version=12020, driver=OLDER)


def _of(*devices: Device) -> tuple[Device, ...]:
    """Several boards, each with a UUID and a place of its own."""
    return tuple(
        replace(
            device,
            uuid=f"GPU-5d1e9c3a-{index + 1:04d}-4f5e-8a6b-1c2d3e4f5a6b",
            pci=f"00000000:{0x17 + 0x20 * index:02X}:00.0",
        )
        for index, device in enumerate(devices)
    )


def _cuda(name: str, code: int, **changes: Any) -> Scenario:
    return _H100.but(name, errors={"cuInit": code}, **changes)


_ALL = (
    _H100,
    _V100,
    _V100.but("healthy_v100_32", devices=(V100_32,)),
    Scenario("h100_pcie", (H100_PCIE,)),
    Scenario("h200", (H200,)),
    Scenario("gh200", (GH200,)),
    Scenario("a100", (A100,)),
    Scenario("t4", (T4,)),
    Scenario("l40s", (L40S,)),
    Scenario("b200", (B200,)),
    Scenario("h20", (H20,)),
    Scenario("small_h100", (replace(H100, name="NVIDIA H100 64GB HBM2", total=65_000 * MIB),)),
    _V100.but("titan_v", device={"name": "NVIDIA TITAN V", "total": 12_066 * MIB, "ecc": None}),
    Scenario("four_gpus", _of(H100, H100, H100, H100)),
    # No GPU at all, by a driver that runs.
    Scenario("no_boards"),
    # The driver and its libraries.
    _cuda("stub_34", 34),
    _cuda("insufficient_35", 35, driver=OLDER, cuda_version=12020),
    _H100.but("old_driver", driver="550.54.15", cuda_version=12040),
    # What a toolkit before 1.17.4 makes of a driver that runs CUDA 12.8 by itself.
    _H100.but("forward_compat", driver="570.124.06"),
    # The first branch that no longer runs Volta.
    _V100.but("driver_without_volta", devices=(), driver="590.44.01", cuda_version=13010,
              errors={"cuInit": 100}),
    _cuda("no_device_100", 100),
    _cuda("operating_system_304", 304),
    _cuda("compat_804", 804),
    _cuda("unknown_999", 999),
    _cuda("unheard_of_12345", 12345),
    _H100.but("driver_mismatch", errors={"cuInit": 803, "nvmlInitWithFlags": 18}),
    _H100.but("nvml_not_loaded", errors={"cuInit": 100, "nvmlInitWithFlags": 9}),
    # After a reload of systemd a container loses its devices.
    _H100.but("cgroup_lost", errors={"cuInit": 100, "nvmlInitWithFlags": 999}),
    _H100.but("old_nvml", errors={"nvmlDeviceGetMemoryInfo_v2": 13,
              "nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlDeviceGetTemperatureV": 13,
              "nvmlDeviceGetGpuFabricInfoV": 13}),
    _H100.but("nvml_tells_nothing", errors=dict.fromkeys(_ALL_OF_NVML, 13)),
    # A fabric that comes up late, or never.
    _H100.but("fabric_3s", not_ready_s=3),
    _H100.but("fabric_never", not_ready_s=-1),
    _H100.but("fabric_in_progress", device={"fabric": 2}),
    _H100.but("fabric_failed", device={"fabric_status": 999}),
    # What hangs and crashes.
    _H100.but("hang_cuinit", hang="cuInit"),
    _H100.but("hang_context", hang="cuDevicePrimaryCtxRetain"),
    _H100.but("hang_nvml", hang="nvmlInitWithFlags"),
    _H100.but("hang_nvml_late", hang="nvmlDeviceGetRemappedRows"),
    _H100.but("hang_both", hang="cuInit", slow="nvmlInitWithFlags", slow_ms=3_600_000),
    _H100.but("crash_cuinit", crash="cuInit"),
    _H100.but("abort_cuinit", crash="cuInit", crash_signal=6),
    _H100.but("crash_nvml", crash="nvmlInitWithFlags"),
    _H100.but("talkative", printed='{"done": true}\nnvml: warning\n'),
    _H100.but("hostile_name", device={"name": 'H\x1b[2J\x07\\n{"done": true}'}),
    _H100.but("leaves_a_process", daemon="cuInit"),
    # One lost board: alone, and among others.
    _H100.but("lost_gpu", errors={"cuInit": 999, "nvmlDeviceGetHandleByIndex_v2": 15}),
    Scenario(
        "lost_gpu_among_four",
        (*_of(H100, H100), replace(_of(H100, H100, H100)[2],
         errors={"nvmlDeviceGetHandleByIndex_v2": 15, "cuDeviceGet": 101}), _of(*[H100] * 4)[3]),
    ),
    # Not whole, not ours.
    Scenario(
        "mig_slice",
        (replace(H100, mig=1, mig_uuid="MIG-9a8b7c6d-0001-5e4f-a3b2-c1d0e9f8a7b6",
         mig_name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", mig_total=9856 * MIB, multiprocessors=16),),
    ),
    _H100.but("mig_without_instance", device={"mig": 1}),
    _H100.but("full_memory", device={"used": 80_500 * MIB, "processes": f"4242:{80_400 * MIB}"}),
    _H100.but("shared_memory", device={"used": 9000 * MIB, "processes": "4242:-1 4243:1048576",
              "graphics": "77:2097152"}),
    _H100.but("busy_exclusive", device={"compute_mode": 3, "processes": f"4242:{900 * MIB}",
              "errors": {"cuDevicePrimaryCtxRetain": 46}}),
    _H100.but("prohibited", device={"compute_mode": 2, "errors": {"cuDevicePrimaryCtxRetain": 46}}),
    # Health.
    _H100.but("ecc_214", device={"errors": {"cuDevicePrimaryCtxRetain": 214}}),
    _H100.but("ecc_counts", device={"ecc_uncorrected": 12}),
    _H100.but("ecc_off", device={"ecc": 0}),
    _H100.but("remap_pending", device={"remap_pending": 1, "remap_uncorrected": 2}),
    _H100.but("remap_failed", device={"remap_failed": 1}),
    _V100.but("retired_pending", device={"retired": 3, "retirement_pending": 1}),
    _H100.but("hw_slowdown", device={"throttle": 0x8 | 0x40}),
    _H100.but("power_capped", device={"throttle": 0x4, "power_mw": 350_000}),
    _H100.but("pcie_x4", device={"pcie_width": 4, "pcie_generation": 1}),
    _H100.but("unreadable", device={"errors": {"nvmlDeviceGetEccMode": 4,
              "nvmlDeviceGetTotalEccErrors": 4, "nvmlDeviceGetRemappedRows": 999}}),
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
