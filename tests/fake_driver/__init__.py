"""NVIDIA's driver for tests: two real libraries, which one scenario file drives.

`libcuda.so.1` and `libnvidia-ml.so.1` are compiled once from the C sources here. Whoever loads them
with `FAKE_DRIVER` naming a scenario's file (ctypes, nvidia-ml-py) gets that scenario's answers:

    facts = probe_gpu(plan, SCENARIOS["ecc_214"].environ(tmp_path))
    with boot(SCENARIOS["hang_cuinit"], tmp_path, {"BOOT_GPU_TIMEOUT_S": "3"}) as booted:
        assert booted.end() == 69

Without device files of its own a machine's `gpu.device_files` fails beside whatever makes the
driver fail. `node=True` gives a boot such files and the kernel module's version, in a mount
namespace of its own; that takes root.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from tests.boots import Boot
from tests.fake_driver.scenarios import SCENARIOS, Device, Scenario

__all__ = ["SCENARIOS", "Device", "Scenario", "boot", "environ", "libraries", "machine"]

_SOURCES = Path(__file__).resolve().parent
_CACHE = _SOURCES.parent.parent / ".cache" / "tests"
_NAMES = {"cuda.c": "libcuda.so.1", "nvml.c": "libnvidia-ml.so.1"}


class Node(TypedDict):
    """Folders that `probe_gpu` takes for the node's own."""

    devices: Path
    proc: Path


@functools.cache
def libraries() -> Path:
    """The folder of both libraries, made where these sources were not compiled yet."""
    sources = b"".join(path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]")))
    folder = _CACHE / f"fake-driver-{hashlib.sha256(sources).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for source, name in _NAMES.items():
        if (folder / name).exists():
            continue
        with tempfile.TemporaryDirectory(dir=folder) as made:
            target = Path(made) / name
            command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([*command, "-o", target, _SOURCES / source], check=True)
            os.replace(target, folder / name)  # noqa: PTH105 - whole or not at all
    return folder


def environ(scenario: Scenario, folder: Path, libraries_at: Path | None = None) -> dict[str, str]:
    """What leads a process to this scenario, the file of which is written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario.name}.driver"
    path.write_text(scenario.text(), encoding="utf-8")
    for note in ("began", "context"):  # what an earlier run of it has left
        Path(f"{path}.{note}").unlink(missing_ok=True)
    return {"LD_LIBRARY_PATH": str(libraries_at or libraries()), "FAKE_DRIVER": str(path)}


def machine(scenario: Scenario, folder: Path, *, initial_pids: bool = False) -> Node:
    """A node's /dev and /proc with this driver in them, as `probe_gpu` takes them.

    `initial_pids`: as on the host itself, where process numbers are NVML's.
    """
    devices, proc = folder / "dev", folder / "proc"
    for path in (devices, proc / "driver/nvidia", proc / "self/ns"):
        path.mkdir(parents=True, exist_ok=True)
    numbered = [f"nvidia{index}" for index in range(len(scenario.devices))]
    for name in (*numbered, "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (devices / name).touch()
    (proc / "driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {scenario.driver}  Wed Oct 22 2026\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    (proc / "self/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/root rw\n")
    link = proc / "self/ns/pid"
    link.unlink(missing_ok=True)
    link.symlink_to("pid:[4026531836]" if initial_pids else "pid:[4026532468]")
    return Node(devices=devices, proc=proc)


# $1 is a node's folder, as `machine` makes it. The namespace and what is in it end with the boot.
# An image is one by its file, which no setting can move (`app.image.IMAGE_FILE`).
_NODE = """set -e
if [ -f "$1/image.json" ]; then
  mount -t tmpfs none /opt
  mkdir /opt/bootguard
  cp "$1/image.json" /opt/bootguard/image.json
fi
mount -t tmpfs none "$1/mnt"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom "$1/mnt"
mkdir "$1/mnt/shm"
mount --rbind /dev/shm "$1/mnt/shm"
cp "$1"/dev/nvidia* "$1/mnt"
mount --rbind "$1/mnt" /dev
mount --bind "$1/proc/driver" /proc/driver
if [ -d "$1/libraries" ]; then mount --bind "$1/libraries" "$1/libraries"; fi
shift
exec "$@"
"""


def boot(
    scenario: Scenario,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *arguments: str,
    node: bool = False,
    image: Mapping[str, object] | None = None,
    stage: str = "",
    code: str = "",
) -> Boot:
    """A whole boot up to the gpu stage with this driver, under the scenario's profile.

    `node`: with the node's device files and its /proc/driver, which takes root. `image`: on such a
    node in an image that describes itself so. A folder `node/libraries` is then a mount, as what a
    toolkit brings from the node is. `stage`, `code`: as `Boot` takes them.
    """
    before: tuple[str, ...] = ()
    if node:
        machine(scenario, folder / "node")
        (folder / "node/mnt").mkdir(exist_ok=True)
        if image is not None:
            (folder / "node/image.json").write_text(json.dumps(image))
        before = ("unshare", "--mount", "sh", "-c", _NODE, "sh", str(folder / "node"))
    return Boot(
        folder,
        {
            "BOOT_HARDWARE": scenario.hardware,
            "BOOT_STOP_AFTER": "gpu",
            **environ(scenario, folder),
            **(settings or {}),
        },
        *arguments,
        before=before,
        stage=stage,
        code=code,
    )
