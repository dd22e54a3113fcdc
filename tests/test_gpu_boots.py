"""Whole boots on the fake driver: what the report says first, the exit status, what is left.

Each runs on a node of its own, with device files and the kernel module's version in a mount
namespace, so that the driver alone decides; that takes root.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import fake_driver
from tests.boots import Boot, command_of, ended, marked, runs, until
from tests.fake_driver import SCENARIOS, Scenario
from tests.fake_driver.scenarios import H100

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="device files of one's own need root, for a mount namespace"
)

SHORT = {"BOOT_GPU_TIMEOUT_S": "2"}
HANGS = {
    *("hang_cuinit", "hang_context", "hang_nvml", "hang_nvml_late", "hang_both"),
    *("fabric_never", "fabric_in_progress"),
}
OTHER_NODE, NEWER, DRAIN = "take another node", "driver 580 or newer", "drain this one"
OR_OLDER = f"{NEWER}, or an image built with LOCK=v100 (CUDA 12.8)"
REQUEST, WHOLE = "start the container with a GPU", "take a GPU of the profile's class"
CLASS, INSTANCE = "take a node of the profile's class", "make an instance on this one"

# Scenario, exit status, first check that does not pass, a word of its next step.
FAILING = [
    ("a100", 79, "gpu.capability", CLASS),
    ("t4", 79, "gpu.capability", CLASS),
    ("l40s", 79, "gpu.capability", CLASS),
    ("b200", 79, "gpu.capability", CLASS),
    ("gh200", 79, "gpu.capability", "x86-64"),
    ("small_h100", 79, "gpu.memory", WHOLE),
    ("healthy_v100", 79, "gpu.architectures", "docker/requirements.v100.txt"),
    ("titan_v", 79, "gpu.architectures", "docker/requirements.v100.txt"),
    ("four_gpus", 78, "gpu.count", "request one GPU"),
    ("no_boards", 69, "gpu.device_files", REQUEST),
    ("stub_34", 70, "gpu.cuda_init", "stubs folder out of LD_LIBRARY_PATH"),
    ("insufficient_35", 69, "gpu.driver", NEWER),
    ("old_driver", 69, "gpu.driver", NEWER),
    ("driver_without_volta", 69, "gpu.device_files", "driver 580, the last branch"),
    ("no_device_100", 69, "gpu.cuda_init", DRAIN),
    ("operating_system_304", 69, "gpu.cuda_init", OTHER_NODE),
    ("compat_804", 69, "gpu.cuda_init", "compat folder out of LD_LIBRARY_PATH"),
    ("unknown_999", 69, "gpu.cuda_init", OTHER_NODE),
    ("unheard_of_12345", 69, "gpu.cuda_init", OTHER_NODE),
    ("driver_mismatch", 69, "gpu.cuda_init", "reboot or drain this one"),
    ("nvml_not_loaded", 69, "gpu.cuda_init", "modprobe nvidia"),
    ("cgroup_lost", 69, "gpu.cuda_init", OTHER_NODE),
    ("fabric_never", 69, "gpu.cuda_init", "the fabric manager is not up"),
    ("fabric_failed", 69, "gpu.fabric", "fabric manager's log"),
    ("hang_cuinit", 69, "gpu.cuda_init", OTHER_NODE),
    ("hang_context", 69, "gpu.cuda_init", OTHER_NODE),
    ("hang_nvml", 69, "gpu.nvml", OTHER_NODE),
    ("hang_nvml_late", 69, "gpu.nvml", OTHER_NODE),
    ("hang_both", 69, "gpu.cuda_init", OTHER_NODE),
    ("crash_cuinit", 69, "gpu.cuda_init", OTHER_NODE),
    ("abort_cuinit", 69, "gpu.cuda_init", OTHER_NODE),
    ("crash_nvml", 69, "gpu.nvml", OTHER_NODE),
    ("lost_gpu", 69, "gpu.cuda_init", DRAIN),
    ("lost_gpu_among_four", 69, "gpu.cuda_init", DRAIN),
    ("mig_slice", 79, "gpu.mig", "request a whole GPU"),
    ("mig_without_instance", 69, "gpu.cuda_init", INSTANCE),
    ("full_memory", 75, "gpu.memory", "wait for its other user"),
    ("busy_exclusive", 75, "gpu.context", "another process holds the GPU"),
    ("prohibited", 69, "gpu.compute_mode", "nvidia-smi -c DEFAULT"),
    ("ecc_214", 69, "gpu.context", DRAIN),
    ("remap_pending", 69, "gpu.row_remap", DRAIN),
    ("remap_failed", 69, "gpu.row_remap", DRAIN),
]
# Scenario, and the checks that warn.
PASSING: list[tuple[str, set[str]]] = [
    ("healthy_h100", set()),
    ("h100_pcie", set()),
    ("h200", set()),
    ("forward_compat", set()),
    ("h20", set()),
    ("old_nvml", set()),
    ("nvml_tells_nothing", set()),
    ("talkative", set()),
    ("hostile_name", set()),
    ("fabric_in_progress", {"gpu.fabric"}),
    ("shared_memory", {"gpu.memory"}),
    ("ecc_counts", {"gpu.ecc"}),
    ("ecc_off", set()),
    ("hw_slowdown", {"gpu.throttle"}),
    ("power_capped", set()),
    ("pcie_x4", set()),
    ("unreadable", set()),
]


def boot(
    name: str, folder: Path, settings: Mapping[str, str] | None = None, **options: Any
) -> Boot:
    """On a node; what hangs gets two seconds for the stage."""
    limit = SHORT if name in HANGS else {}
    return fake_driver.boot(
        SCENARIOS[name], folder, {**limit, **(settings or {})}, node=True, **options
    )


def said(booted: Boot, *statuses: str) -> list[dict[str, Any]]:
    """Checks of these statuses, in the order of the report."""
    return [check for check in booted.report["checks"] if check["status"] in statuses]


def failed(booted: Boot, code: int, check: str, word: str) -> None:
    """It ended by a finding, this one first, and not by a deadline or a death."""
    ended(booted, code)
    first = said(booted, "fail", "error")[0]
    assert first["id"] == check, first
    assert word in first["next_step"]
    assert first["expected"]
    assert first["source"]
    assert booted.report["crash"] is None
    assert booted.report["exit"]["next_step"]


@pytest.mark.parametrize(("name", "code", "check", "word"), FAILING, ids=[r[0] for r in FAILING])
def test_what_is_wrong_is_the_first_finding_with_its_code_and_its_way_out(
    tmp_path: Path, name: str, code: int, check: str, word: str
) -> None:
    with boot(name, tmp_path) as booted:
        failed(booted, code, check, word)


@pytest.mark.parametrize(("name", "warned"), PASSING, ids=[row[0] for row in PASSING])
def test_what_a_job_can_live_with_ends_well(tmp_path: Path, name: str, warned: set[str]) -> None:
    with boot(name, tmp_path) as booted:
        ended(booted, 0)
        assert not said(booted, "fail", "error")
        assert {c["id"] for c in said(booted, "warn") if c["id"].startswith("gpu.")} == warned
        (gpu,) = booted.report["gpus"]
        assert gpu["compute_capability"] == "9.0"


def test_every_scenario_is_booted_here() -> None:
    booted = {row[0] for row in (*FAILING, *PASSING)}
    elsewhere = {"healthy_v100_32", "retired_pending", "fabric_3s", "leaves_a_process"}
    assert booted | elsewhere == set(SCENARIOS)
    assert not booted & elsewhere


# The image of a V100. What is installed here is the H100's set, and the host stage says so of its
# bitsandbytes: that check is left out, the rest is the product's.
V100_IMAGE = {
    "profile": "v100",
    "lock_digest": "sha256:0",
    "versions": {},
    "architectures": ["sm_70", "sm_75"],
    "minimum_driver": 525,
    "base_digest": "sha256:1",
}
H100_IMAGE = V100_IMAGE | {
    "profile": "h100",
    "versions": {"torch": "2.14.1+cu130"},
    "architectures": ["sm_75", "sm_80", "sm_90"],
    "minimum_driver": 580,
}
WITHOUT_BITSANDBYTES = """
from app.checks import host
host.CHECKS = tuple(check for check in host.CHECKS if check.id != "host.bitsandbytes_library")
"""


def in_image(
    scenario: Scenario,
    folder: Path,
    image: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
) -> Boot:
    return fake_driver.boot(
        scenario,
        folder,
        environ,
        node=True,
        image=image,
        stage="settings",
        code=WITHOUT_BITSANDBYTES,
    )


def complaints(booted: Boot) -> list[Mapping[str, object]]:
    """All but host.report_mount: the image is played, and its report lies where pytest's does."""
    return [
        check
        for check in said(booted, "fail", "error", "warn")
        if check["id"] != "host.report_mount"
    ]


@pytest.mark.parametrize("name", ["healthy_v100", "healthy_v100_32"])
def test_a_healthy_v100_in_its_own_image_passes(tmp_path: Path, name: str) -> None:
    with in_image(SCENARIOS[name], tmp_path, V100_IMAGE) as booted:
        ended(booted, 0)
        assert not complaints(booted)
        (architectures,) = (c for c in said(booted, "pass") if c["id"] == "gpu.architectures")
        assert "image.json" in architectures["reason"]


def test_an_h100_image_with_cuda_12_boots_on_an_older_driver(tmp_path: Path) -> None:
    """What `LOCK=v100` is for; the report says which image it was."""
    image = H100_IMAGE | {"versions": {}, "minimum_driver": 525, "cuda": "12.8", "revision": "abc"}
    with in_image(SCENARIOS["old_driver"], tmp_path, image) as booted:
        ended(booted, 0)
        (driver,) = (check for check in said(booted, "pass") if check["id"] == "gpu.driver")
        assert driver["expected"] == "driver 525 or newer"
        shown = booted.report["image"]
        assert {name: shown[name] for name in image} == image
        assert (shown["base"], shown["changes"]) == ("", {})


@pytest.mark.parametrize(
    ("scenario", "image", "code", "check", "word"),
    [
        (SCENARIOS["retired_pending"], V100_IMAGE, 69, "gpu.retired_pages", DRAIN),
        (SCENARIOS["titan_v"], V100_IMAGE, 79, "gpu.memory", WHOLE),
        (SCENARIOS["old_driver"], H100_IMAGE, 69, "gpu.driver", OR_OLDER),
        (
            SCENARIOS["healthy_h100"],
            H100_IMAGE | {"minimum_driver": 590},
            69,
            "gpu.driver",
            "driver 590 or newer",
        ),
        (
            replace(
                SCENARIOS["healthy_v100"],
                hardware="h100",
                driver=SCENARIOS["healthy_h100"].driver,
                cuda_version=13000,
            ),
            H100_IMAGE,
            79,
            "gpu.capability",
            "the image of profile v100",
        ),
    ],
    ids=["retired pages", "titan v", "old driver", "newer image", "the other image"],
)
def test_an_image_is_compared_with_the_node(
    tmp_path: Path,
    scenario: Scenario,
    image: Mapping[str, object],
    code: int,
    check: str,
    word: str,
) -> None:
    with in_image(scenario, tmp_path, image) as booted:
        failed(booted, code, check, word)


# Health of others, and what was granted.
SICK = {"remap_failed": 1, "ecc_uncorrected": 99, "throttle": 0x48}


def of_eight(place: int, **changes: Any) -> Scenario:
    """A node of eight boards, of which only this one is as it should be."""
    devices = tuple(
        replace(
            H100,
            uuid=f"GPU-5d1e9c3a-{index:04d}-4f5e-8a6b-1c2d3e4f5a6b",
            pci=f"00000000:{0x10 + index:02x}:00.0",
            cuda_order=7 - index,  # CUDA counts the other way round
            **({} if index == place else changes),
        )
        for index in range(8)
    )
    return Scenario(f"of_eight_{place}", devices)


@pytest.mark.parametrize(
    ("place", "visible", "others"),
    [
        (5, "2", SICK),
        (5, "GPU-5d1e9c3a-0005-4f5e-8a6b-1c2d3e4f5a6b", SICK),
        (3, "4", {"errors": {"nvmlDeviceGetHandleByIndex_v2": 4}}),
    ],
    ids=["sick", "sick, by uuid", "kept from us"],
)
def test_only_the_visible_boards_health_counts(
    tmp_path: Path, place: int, visible: str, others: Mapping[str, Any]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, "SLURM_JOB_GPUS": f"{place}"}
    scenario = of_eight(place, **others)
    with fake_driver.boot(scenario, tmp_path, environ, node=True) as booted:
        ended(booted, 0)
        assert not said(booted, "fail", "error", "warn")
        (gpu,) = booted.report["gpus"]
        assert gpu["uuid"] == scenario.devices[place].uuid


def test_a_sick_board_among_healthy_ones_counts_where_it_is_the_visible_one(
    tmp_path: Path,
) -> None:
    scenario = of_eight(5, **SICK)
    environ = {"CUDA_VISIBLE_DEVICES": "0"}  # the last board, by CUDA's order
    with fake_driver.boot(scenario, tmp_path, environ, node=True) as booted:
        failed(booted, 69, "gpu.row_remap", DRAIN)
        assert scenario.devices[7].uuid in said(booted, "fail")[0]["reason"]


@pytest.mark.parametrize(
    ("name", "environ", "code", "check"),
    [
        ("healthy_h100", {"NVIDIA_VISIBLE_DEVICES": "all"}, 0, ""),
        ("four_gpus", {"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "0,1,2,3"}, 0, ""),
        ("four_gpus", {"SLURM_JOB_GPUS": "0-3"}, 78, "gpu.count"),
        ("four_gpus", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "2"}, 78, "gpu.granted"),
        ("four_gpus", {"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "2"}, 0, ""),
        (
            "four_gpus",
            {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "3"},
            78,
            "gpu.granted",
        ),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "2"}, 0, ""),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": ""}, 78, "gpu.cuda_init"),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 78, "gpu.cuda_init"),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": "1"}, 78, "gpu.cuda_init"),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": "\x1b[2J"}, 78, "gpu.cuda_init"),
        ("healthy_h100", {"CUDA_VISIBLE_DEVICES": "MIG-0a-b"}, 78, "gpu.cuda_init"),
        ("mig_slice", {"CUDA_VISIBLE_DEVICES": "MIG-0a-b"}, 78, "gpu.cuda_init"),
        (
            "healthy_h100",
            {"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-1111-2222-3333-444444444444"},
            78,
            "gpu.granted",
        ),
    ],
)
def test_what_a_launcher_or_a_variable_grants(
    tmp_path: Path, name: str, environ: dict[str, str], code: int, check: str
) -> None:
    with boot(name, tmp_path, environ) as booted:
        ended(booted, code)
        assert [c["id"] for c in said(booted, "fail", "error")][:1] == ([check] if check else [])
        assert "\x1b" not in booted.err
        assert booted.report["crash"] is None


# Libraries on the loader's path.


@pytest.mark.parametrize(
    ("kind", "word"),
    [("folder", "no whole library"), ("text", "no whole library"), ("empty", "an empty file")],
)
def test_a_file_in_the_drivers_place_is_named(tmp_path: Path, kind: str, word: str) -> None:
    place = tmp_path / "lib" / "libcuda.so.1"
    place.parent.mkdir()
    if kind == "folder":
        place.mkdir()
    else:
        place.write_text("" if kind == "empty" else "no library at all " * 20)
    with boot("healthy_h100", tmp_path, {"LD_LIBRARY_PATH": str(place.parent)}) as booted:
        booted.end()
        first = said(booted, "fail", "error")[0]
        assert first["id"] == "gpu.libraries"
        assert word in first["reason"]
        assert booted.report["crash"] is None


def test_a_driver_without_nvml_boots_and_says_that_nobody_looked_at_the_board(
    tmp_path: Path,
) -> None:
    alone = tmp_path / "lib"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(fake_driver.libraries() / "libcuda.so.1")
    environ = {"LD_LIBRARY_PATH": str(alone), "NVIDIA_DRIVER_CAPABILITIES": "compute"}
    with boot("healthy_h100", tmp_path, environ) as booted:
        ended(booted, 0)
        (nvml,) = (c for c in said(booted, "warn") if c["id"].startswith("gpu."))
        assert nvml["id"] == "gpu.nvml"
        assert "lacks utility" in nvml["reason"]
        skipped = {c["id"]: c["reason"] for c in said(booted, "skip")}
        assert {"gpu.row_remap", "gpu.ecc", "gpu.throttle"} <= set(skipped)
        assert all("libnvidia-ml.so.1" in skipped[i] for i in ("gpu.row_remap", "gpu.ecc"))


def mounted(folder: Path, **versions: str) -> dict[str, str]:
    """A node's folder of libraries of these versions, and what leads the loader to it."""
    made = folder / "node/libraries"
    made.mkdir(parents=True)
    for name, version in versions.items():
        of = "libnvidia-ml.so.1" if name == "libnvidia_ml" else "libcuda.so.1"
        real = made / f"{name.replace('_', '-')}.so.{version}"
        shutil.copy(fake_driver.libraries() / of, real)
        (made / f"{name.replace('_', '-')}.so.1").symlink_to(real.name)
    return {"LD_LIBRARY_PATH": str(made)}


def test_compat_files_that_a_toolkit_mounted_among_the_nodes_are_no_mismatch(
    tmp_path: Path,
) -> None:
    node, compat = SCENARIOS["forward_compat"], "580.95.05"
    versions = {"libcuda": compat, "libnvidia_ptxjitcompiler": compat, "libnvidia_ml": node.driver}
    with in_image(node, tmp_path, H100_IMAGE, mounted(tmp_path, **versions)) as booted:
        ended(booted, 0)
        assert not complaints(booted)
        passed = {check["id"]: check["reason"] for check in said(booted, "pass")}
        assert passed["gpu.libraries"].count(f"{compat} (compat)") == 2
        assert "CUDA 13.0 by forward compatibility" in passed["gpu.driver"]


@pytest.mark.parametrize("starts", [True, False])
def test_a_driver_that_was_updated_without_a_reboot_is_a_mismatch_whether_cuda_runs_or_not(
    tmp_path: Path, starts: bool
) -> None:
    errors = {"nvmlInitWithFlags": 18} | ({} if starts else {"cuInit": 803})
    node = SCENARIOS["forward_compat"].but("updated", errors=errors)
    versions = dict.fromkeys(("libcuda", "libnvidia_ptxjitcompiler", "libnvidia_ml"), "580.95.05")
    with in_image(node, tmp_path, H100_IMAGE, mounted(tmp_path, **versions)) as booted:
        ended(booted, 69)
        steps = {check["id"]: check["next_step"] for check in said(booted, "fail", "error")}
        named = {"gpu.libraries", "gpu.driver", "gpu.nvml", *(() if starts else ["gpu.cuda_init"])}
        assert set(steps) == named
        assert all("reboot or drain this one" in steps[name] for name in named - {"gpu.driver"})


# What ends a boot within the gpu stage.


def asking(booted: Boot, name: str) -> int:
    """The process that asks with this program, once it has loaded its library."""
    library = "libcuda.so" if name == "cuda_child" else "libnvidia-ml.so"
    found: list[int] = []

    def there() -> bool:
        found[:] = [
            pid
            for pid in marked(booted.marker)
            if name in command_of(pid) and library in Path(f"/proc/{pid}/maps").read_text()
        ]
        assert found or booted.process.poll() is None, booted.err
        return bool(found)

    until(there, name)
    return found[0]


def preflight_of(booted: Boot) -> int:
    return psutil.Process(asking(booted, "cuda_child")).ppid()


LONG = {"BOOT_GPU_TIMEOUT_S": "100"}


@pytest.mark.parametrize("name", ["hang_cuinit", "hang_nvml", "hang_context", "fabric_never"])
def test_a_killed_supervisor_leaves_a_report_and_no_process(tmp_path: Path, name: str) -> None:
    with boot(name, tmp_path, LONG) as booted:
        if name == "fabric_never":
            booted.wait_for("asking again")  # between two questions
        else:
            asking(booted, "nvml_child" if name == "hang_nvml" else "cuda_child")
        booted.send(signal.SIGKILL)
        assert booted.end() == -signal.SIGKILL
        until(lambda: not booted.left(), "the end of every process")
        report = booted.report
        assert report["state"] == "in_progress"
        assert [stage["name"] for stage in report["stages"] if stage["started"]][-1] == "gpu"


def test_a_killed_preflight_is_told_with_the_stage_it_died_in(tmp_path: Path) -> None:
    with boot("hang_cuinit", tmp_path, LONG) as booted:
        os.kill(preflight_of(booted), signal.SIGKILL)
        ended(booted, 69)
        report = booted.report
        assert report["crash"]["signal"] == "SIGKILL"
        assert [stage["name"] for stage in report["stages"] if stage["started"]][-1] == "gpu"


@pytest.mark.parametrize(
    ("name", "child", "check"),
    [
        ("hang_cuinit", "cuda_child", "gpu.cuda_init"),
        ("hang_nvml", "nvml_child", "gpu.nvml"),
    ],
)
def test_a_killed_question_is_a_finding(tmp_path: Path, name: str, child: str, check: str) -> None:
    with boot(name, tmp_path, LONG) as booted:
        os.kill(asking(booted, child), signal.SIGKILL)
        failed(booted, 69, check, OTHER_NODE)
        assert "SIGKILL" in said(booted, "fail")[0]["reason"]


@pytest.mark.parametrize("name", ["hang_cuinit", "hang_nvml", "fabric_never"])
def test_a_request_to_end_in_a_hang_is_obeyed(tmp_path: Path, name: str) -> None:
    with boot(name, tmp_path, LONG) as booted:
        if name == "fabric_never":
            booted.wait_for("asking again")
        else:
            asking(booted, "cuda_child")
        booted.send(signal.SIGTERM)
        ended(booted, 143, "interrupted")


def test_a_driver_that_leaves_a_process_behind_costs_no_time_and_leaves_none(
    tmp_path: Path,
) -> None:
    """The driver's daemon holds the answer's pipe; the stage's deadline is not used up by it."""
    with boot("leaves_a_process", tmp_path, LONG) as booted:
        ended(booted, 0)
        assert not said(booted, "fail", "error")


def test_a_device_that_comes_up_late_gets_a_fresh_worker(tmp_path: Path) -> None:
    environ = {"BOOT_STOP_AFTER": "stack"}
    with boot("fabric_3s", tmp_path, environ) as booted:
        booted.wait_for("asking again")
        (first,) = (pid for pid in marked(booted.marker) if "app.worker" in command_of(pid))
        booted.wait_for("the device came up late: a fresh worker takes over")
        booted.wait_for("importing torch and Unsloth")
        assert not runs(first)
        ended(booted, 0)
        (init,) = (c for c in said(booted, "pass") if c["id"] == "gpu.cuda_init")
        assert "after" in init["reason"]
        assert booted.report["gpus"][0]["waited_s"] > 0
        assert booted.err.count("asking again") == 1


def test_a_worker_that_died_of_a_missing_device_is_replaced_when_it_comes_up(
    tmp_path: Path,
) -> None:
    """Unsloth ends the process that imports it without a device."""
    code = """
try: os.close(os.open("first", os.O_CREAT | os.O_EXCL))
except FileExistsError: pass
else: os._exit(1)
"""
    environ = {"BOOT_STOP_AFTER": "stack"}
    with boot("fabric_3s", tmp_path, environ, stage="import", code=code) as booted:
        booted.wait_for("the device came up late: a fresh worker takes over")
        ended(booted, 0)


@pytest.mark.parametrize("limit_s", ["1", "5"])
def test_a_fabric_that_never_comes_up_is_told_with_how_long_it_was_waited_for(
    tmp_path: Path, limit_s: str
) -> None:
    with boot("fabric_never", tmp_path, {"BOOT_GPU_TIMEOUT_S": limit_s}) as booted:
        failed(booted, 69, "gpu.cuda_init", "the fabric manager is not up")
        waited_s = booted.report["gpus"][0]["waited_s"]
        assert 0 < waited_s < float(limit_s)
        assert f"after {waited_s:.0f} s of asking again" in said(booted, "fail")[0]["reason"]


def test_without_a_driver_no_process_is_started_to_ask(tmp_path: Path) -> None:
    """The hook makes each start of a process of the gpu stage end the boot."""
    code = """
import subprocess
def refuse(*_a, **_k): os._exit(99)
subprocess.Popen = refuse
"""
    with fake_driver.boot(
        SCENARIOS["no_boards"],
        tmp_path,
        {"LD_LIBRARY_PATH": "", "BOOT_HARDWARE": "h100"},
        stage="gpu",
        code=code,
    ) as booted:
        failed(booted, 69, "gpu.device_files", REQUEST)
