"""Gathers what the container sees of GPUs; every call into the driver happens in a child."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.words import signal_name
from app.plan import Plan
from app.probes import cuda_child

# A cold driver without persistence mode takes some seconds for its first client; NVIDIA documents
# no bound. Ten times that is a hang.
DEADLINE_S = 30.0
_LIBRARY = "libcuda.so.1"
# Where the dynamic loader looks without LD_LIBRARY_PATH and its cache (x86-64).
_LOADER_FOLDERS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
# /dev/dxg is the device of Windows' subsystem for Linux, which has no /dev/nvidia*.
_DEVICE = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm|dxg")
_VERSION = re.compile(r"\b(\d{3,4}\.\d+(?:\.\d+)*)\b")


def probe_gpu(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    limit_s: float = 0.0,
    say: Callable[[str], object] = lambda _text: None,
    deadline_s: float = DEADLINE_S,
    devices: Path = Path("/dev"),
    proc: Path = Path("/proc"),
) -> GpuFacts:
    """Device files first: without them and without the library there is nothing to ask."""
    if not plan.profile.needs_gpu:
        return GpuFacts()
    try:
        files = tuple(
            sorted(path.name for path in devices.iterdir() if _DEVICE.fullmatch(path.name))
        )
    except OSError:
        files = ()
    library = find_library(environ)
    seen: dict[str, Any] = {
        "device_files": files,
        "libcuda": library,
        "driver": _kernel_driver(proc),
        "visible": environ.get("CUDA_VISIBLE_DEVICES"),
    }
    if not files and not library:
        return GpuFacts(**seen, load_error=f"{_LIBRARY} is nowhere in the loader's path")
    answer = ask_driver(environ, deadline_s)
    found = tuple(
        DeviceFacts(**device | {"capability": tuple(device["capability"])})
        for device in answer.pop("devices", ())
    )
    return GpuFacts(**seen | {k: v for k, v in answer.items() if v != ""}, devices=found)


def find_library(environ: Mapping[str, str]) -> str:
    """The path where the loader would find libcuda, without loading it; empty when nowhere.

    Loading runs the library's constructors, which the supervisor must not: they can hang.
    """
    folders = [*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), *_LOADER_FOLDERS]
    for folder in folders:
        path = Path(folder) / _LIBRARY
        if path.exists():
            return str(path)
    with contextlib.suppress(OSError):
        # The cache ends in NUL-terminated paths (glibc, dl-cache.h).
        for text in Path("/etc/ld.so.cache").read_bytes().split(b"\0"):
            if text.startswith(b"/") and text.endswith(b"/" + _LIBRARY.encode()):
                return text.decode(errors="replace")
    return ""


def ask_driver(environ: Mapping[str, str], deadline_s: float) -> dict[str, Any]:
    """The child's answer, or `probe_problem` when it gave none."""
    # -I -S: neither the user's modules nor site-packages, which start slowly and can break.
    command = [sys.executable, "-I", "-S", "-B", str(cuda_child.__file__), str(os.getpid())]
    try:
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return {"probe_problem": f"the probing process could not start: {error}"}
    try:
        output, _ = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return {"probe_problem": f"no answer within {deadline_s:g} s"}
    if child.returncode < 0:
        name = signal_name(-child.returncode)
        return {"probe_problem": f"the probing process died of signal {name}"}
    try:
        answer = json.loads(output)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or child.returncode:
        return {"probe_problem": f"the probing process answered nothing (exit {child.returncode})"}
    return answer


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill the child; one that hangs inside the kernel cannot die, and is left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)
    if child.stdout is not None:
        child.stdout.close()


def _kernel_driver(proc: Path) -> str:
    """The version of the loaded kernel module, empty when it does not say."""
    try:
        text = (proc / "driver" / "nvidia" / "version").read_text(errors="replace")
    except OSError:
        return ""
    found = _VERSION.search(text)
    return found[1] if found else ""
