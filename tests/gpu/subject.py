"""What this suite runs on, or why it does not. Imports no torch: children are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from app.config import ModelRequest
from app.facts.driver_errors import cuda_error
from app.facts.gpu import GpuFacts
from app.plan import Plan
from app.probes.gpu import probe_gpu
from app.profiles import CPU, PROFILES, Profile

SELF_CHECK = "BOOTGUARD_GPU_TESTS_ON"
ROOT = Path(__file__).resolve().parents[2]
_IMPORTS_S = 300.0  # torch from a cold network file system


@dataclass(frozen=True)
class Subject:
    """A device and the profile of its compute capability; `hardware` is what a boot is told.

    `part` marks a slice of a card (MIG), of which no speed is promised.
    """

    name: str
    profile: Profile
    hardware: str
    part: bool = False

    @property
    def other(self) -> str:
        """The 16-bit type that no model may hold here."""
        return next(each for each in self.profile.forbidden_dtypes if each != "float64")


@cache
def here() -> Subject | str:
    """The subject, or the one reason why there is none. Asked once."""
    asked = os.environ.get(SELF_CHECK)
    if asked:
        return on_the_host(asked)
    found = of(probe_gpu(_any_gpu(), os.environ))
    return (_libraries() or found) if isinstance(found, Subject) else found


def of(facts: GpuFacts) -> Subject | str:
    """The first device that CUDA sees, which is the one that torch takes."""
    if not facts.looked:
        error = cuda_error(facts.init_error).told if facts.init_error else ""
        return f"no CUDA device: {facts.load_error or facts.probe_problem or error}"
    if not facts.devices:
        return "no CUDA device: the driver sees none"
    device = facts.devices[0]
    for profile in PROFILES.values():
        if profile.compute_capability == device.capability:
            return Subject(device.name, profile, profile.name, device.mig)
    known = ", ".join(f"{a}.{b}" for a, b in _capabilities())
    major, minor = device.capability
    return (
        f"{device.name} has compute capability {major}.{minor}, and no profile is for it ({known})"
    )


def on_the_host(name: str) -> Subject | str:
    """The profile's types in host memory; whole boots are the rehearsal's."""
    if name not in PROFILES:
        return f"{SELF_CHECK}={name} is none of {', '.join(PROFILES)}"
    # Its floors are of a card.
    profile = replace(PROFILES[name], device=CPU.device, floors=None)
    return Subject(f"no card: {name} in host memory", profile, CPU.name)


def why_no_boot() -> str:
    """Why there is no whole boot here; empty where there is."""
    try:
        metadata.version("unsloth")
    except metadata.PackageNotFoundError:
        return "Unsloth is not installed"
    return ""


def _capabilities() -> list[tuple[int, int]]:
    found = (profile.compute_capability for profile in PROFILES.values())
    return [each for each in found if each is not None]


def _any_gpu() -> Plan:
    profile = next(each for each in PROFILES.values() if each.needs_gpu)
    return Plan(profile, ModelRequest(), Path("reports"))


def _libraries() -> str:
    """Why the libraries of this Python do not compute on a device; empty where they do."""
    command = [sys.executable, "-m", "tests.gpu.libraries"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_IMPORTS_S, check=False
    )
    if done.returncode:
        return f"the libraries cannot be imported: {done.stderr.strip().splitlines()[-1:]}"
    # Libraries print on import.
    return str(json.loads(done.stdout.splitlines()[-1]))


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What tests hide of the caller's variables and a boot of a real model must know."""
    kept = ("CUDA_VISIBLE_DEVICES", "HOME", "XDG_CACHE_HOME")
    ours = ("BOOT_HARDWARE", "BOOT_REPORT_DIR")
    return {
        name: value
        for name, value in environ.items()
        if name in kept or (name.startswith(("BOOT_", "HF_", "HUGGINGFACE")) and name not in ours)
    }
