"""Judges of the driver itself: its version, and whether CUDA and NVML answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.checks import Check
from app.checks._gpu_common import (
    CAPABILITIES,
    MAKE_AN_INSTANCE,
    empty_mig,
    has_devices,
    hidden_by,
    lacks,
    nvml_silent,
)
from app.facts.driver_errors import (
    COMPAT_REFUSED,
    CUDA_MISMATCHES,
    DRAIN_IT,
    FUNCTION_NOT_FOUND,
    GONE,
    LIBRARY_NOT_FOUND,
    NO_DEVICE,
    NVML_MISMATCH,
    TAKE_OTHER,
    nvml_error,
    start_error,
)
from app.facts.gpu import GpuFacts, LibraryFile
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

_OS_OR_UNKNOWN = frozenset({304, 999})  # what a missing /dev/nvidia-uvm gives
# What CUDA answers of a board that has fallen off the bus, besides what it does of other causes.
_OF_A_LOST_BOARD = frozenset({3, NO_DEVICE, 101, 304, 999})
# The first driver branch that runs a major version of CUDA (NVIDIA's CUDA compatibility guide).
_BRANCHES = {11: 450, 12: 525, 13: 580}
# The last branch that runs devices of a capability (its release notes name what it no longer runs).
_LAST_BRANCH = {(7, 0): 580}
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?")
_LOCAL = re.compile(r"\+cu(\d+)\d$")


def driver(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the node's driver is new enough for the profile and for the image's CUDA."""
    least = _least_driver(plan)
    text = one_line(facts.driver or facts.nvml.driver)
    major = _leading(text)
    wanted_cuda = _image_cuda(plan.baked.versions) if plan.baked else None
    compat = _compat(facts)
    if wanted_cuda and facts.cuda_version and facts.cuda_version // 1000 < wanted_cuda:
        return failed(
            f"the driver runs CUDA up to {_dotted(facts.cuda_version)}, the image holds "
            f"CUDA {wanted_cuda}",
            expected=f"a driver for CUDA {wanted_cuda} or newer",
            actual=f"driver {text or 'unknown'}, CUDA {_dotted(facts.cuda_version)}",
            next_step=f"take a node with driver {least} or newer" if least else TAKE_OTHER,
        )
    if major is None or least is None:
        return _by_cuda(facts, least)
    expected, actual = f"driver {least} or newer", f"driver {text}"
    last = _LAST_BRANCH.get(plan.profile.compute_capability or (0, 0))
    if last is not None and major > last and not facts.looked:
        return failed(
            f"the node's driver {text} no longer runs {plan.profile.title}",
            expected=f"driver {least} to {last}",
            actual=actual,
            next_step=f"take a node with driver {last}, the last branch for this hardware",
        )
    if major >= least:
        cuda = f", CUDA {_dotted(facts.cuda_version)}" if facts.cuda_version else ""
        return passed(actual + cuda, expected=expected, actual=actual)
    if compat and facts.looked:  # NVIDIA's way to run a newer CUDA on an older driver
        return passed(
            f"{actual}, with {one_line(compat.path)} for the image's CUDA",
            expected=expected,
            actual=actual,
        )
    return failed(
        f"the node's driver {text} is too old for this profile",
        expected=expected,
        actual=actual,
        next_step=f"take a node with driver {least} or newer",
    )


def _by_cuda(facts: GpuFacts, least: int | None) -> Finding:
    """The same by cuDriverGetVersion, where nothing tells the driver's own version."""
    untold = "neither /proc/driver/nvidia/version nor NVML tells the driver's version"
    wanted = max((cuda for cuda, first in _BRANCHES.items() if first <= (least or 0)), default=0)
    if not wanted or not facts.cuda_version or facts.cuda_version // 1000 >= wanted:
        return skipped(untold)
    return failed(
        f"the driver runs CUDA up to {_dotted(facts.cuda_version)}, too old for this profile",
        expected=f"driver {least} or newer, for CUDA {wanted}",
        actual=f"CUDA {_dotted(facts.cuda_version)}; {untold}",
        next_step=f"take a node with driver {least} or newer",
    )


def _least_driver(plan: Plan) -> int | None:
    """Major version that profile and image both can work with."""
    baked = plan.baked.minimum_driver if plan.baked else None
    known = [least for least in (plan.profile.min_driver, baked) if least is not None]
    return max(known, default=None)


def _image_cuda(versions: Mapping[str, str]) -> int | None:
    """Major version of the CUDA in the image, from its packages; None where they do not tell."""
    for name, version in versions.items():
        found = _RUNTIME.fullmatch(name)
        if found:
            return int(found[1]) if found[1] else _leading(version)
    local = _LOCAL.search(versions.get("torch", ""))
    return int(local[1]) if local else None


def _leading(text: str) -> int | None:
    major = text.partition(".")[0]
    return int(major) if re.fullmatch(r"[0-9]{1,6}", major) else None


def _dotted(cuda_version: int) -> str:
    """13000 is 13.0, as cuDriverGetVersion counts."""
    return f"{cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _compat(facts: GpuFacts) -> LibraryFile | None:
    return next((library for library in facts.libraries if library.kind == "compat"), None)


def cuda_init(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether CUDA starts and describes its devices; the error's number says what is broken."""
    if facts.load_error:
        return skipped("libcuda.so.1 was not loaded")
    expected = "CUDA_SUCCESS from cuInit and from the device queries"
    call = one_line(facts.call) or "the CUDA driver"
    if facts.probe_problem:
        problem = one_line(facts.probe_problem, 400)
        problem += "" if call in problem else f" (in {call})"
        return failed(
            f"asking the CUDA driver failed: {problem}",
            expected=expected,
            actual=problem,
            next_step=DRAIN_IT if _lost(facts) else TAKE_OTHER,
        )
    if facts.init_error is None:
        return skipped("the CUDA driver was not asked")
    if facts.init_error:
        return _refused(facts, facts.init_error, call, expected)
    waited = f" after {facts.waited_s:.0f} s" if facts.waited_s else ""
    return passed(f"the CUDA driver answers{waited}", expected=expected, actual="CUDA_SUCCESS")


def _refused(facts: GpuFacts, number: int, call: str, expected: str) -> Finding:
    """The number's meaning, and what the other facts say about who caused it."""
    error = start_error(number)
    step, fault = error.step, error.fault
    why = f" after {facts.waited_s:.0f} s of asking again" if facts.waited_s else ""
    hidden = hidden_by(facts) if number in (NO_DEVICE, 101) else ""
    brought = _brought(facts, "libcuda")
    if hidden:
        why, fault = f": {hidden}", Fault.CONFIG
        step = "unset CUDA_VISIBLE_DEVICES, or request a GPU from the scheduler that set it"
    elif number in CUDA_MISMATCHES and brought:
        why, fault = f": {one_line(brought.path)} came with the image", Fault.INTERNAL
        step = "build the image without it: the container toolkit mounts the node's own"
    elif number in CUDA_MISMATCHES | {COMPAT_REFUSED} and (compat := _compat(facts)):
        why = f": {one_line(compat.path)} is CUDA's forward compatibility"
        step = f"take its folder out of LD_LIBRARY_PATH, or {error.step}"
    elif number in _OF_A_LOST_BOARD and _lost(facts):
        why, step = ": a board is lost", DRAIN_IT
    elif number == NO_DEVICE and empty_mig(facts):
        why, step = ": the board is in MIG mode without an instance", MAKE_AN_INSTANCE
    elif number == NO_DEVICE and facts.nvml.init_error:
        other = nvml_error(facts.nvml.init_error)
        why, step = f", and NVML's start {other.told}", other.step
    elif number == NO_DEVICE and has_devices(facts):
        why, step = ", and the node has one", DRAIN_IT
    elif number in _OS_OR_UNKNOWN and "nvidia-uvm" in set(facts.device_files) - set(
        facts.unopenable
    ):
        step = TAKE_OTHER
    return failed(
        f"{call} returned {error.told}{why}",
        expected=expected,
        actual=error.told,
        next_step=step,
        fault=fault,
    )


def _lost(facts: GpuFacts) -> bool:
    return any(board.handle_error in GONE for board in facts.nvml.boards)


def _brought(facts: GpuFacts, name: str) -> LibraryFile | None:
    """A library of the driver that came with the image."""
    of_image = (library for library in facts.libraries if library.kind == "image")
    return next((library for library in of_image if library.name.startswith(name)), None)


def nvml(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the driver's management library answers, which alone tells of a board's health."""
    found, silent = facts.nvml, nvml_silent(facts.nvml)
    expected = "NVML_SUCCESS from nvmlInit and for every board"
    if not silent:
        told = f", driver {one_line(found.driver)}" if found.driver else ""
        return passed(f"NVML answers{told}", expected=expected, actual="NVML_SUCCESS")
    if found.init_error is None and not found.problem:
        return skipped(silent)
    absent = found.init_error in (LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND)
    if absent or not (found.library or found.call or found.init_error):
        return _without(facts, silent, expected)
    error = nvml_error(found.init_error or 0)
    step, fault = (error.step, error.fault) if found.init_error else (TAKE_OTHER, None)
    brought = _brought(facts, "libnvidia-ml")
    if found.init_error == NVML_MISMATCH and brought:
        silent += f": {one_line(brought.path)} came with the image"
        step, fault = (
            "build the image without it: the toolkit mounts the node's own",
            Fault.INTERNAL,
        )
    return failed(silent, expected=expected, actual=silent, next_step=step, fault=fault)


def _without(facts: GpuFacts, silent: str, expected: str) -> Finding:
    """No NVML at all: a boot can do without, but then nobody has looked at the board's health."""
    return warned(
        f"the board's health cannot be read: {silent}{lacks(facts, 'utility')}",
        expected=expected,
        actual=silent,
        next_step=f"start the container with {CAPABILITIES}=compute,utility",
    )


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.driver",
        Fault.NODE_UNFIT,
        "the profile and the image; /proc/driver/nvidia/version, NVML, cuDriverGetVersion",
        driver,
        cause="The node's NVIDIA driver is older than the CUDA in the image needs.",
        fix="Send the job to nodes with a newer driver, or use an image built for an older CUDA.",
    ),
    Check(
        "gpu.cuda_init",
        Fault.NODE_UNFIT,
        "CUDA driver API (cuInit and device queries)",
        cuda_init,
        cause="A board fell off the bus (Xid 79), the fabric manager of an SXM node is not up "
        "(802), kernel module and libcuda differ (803), /dev/nvidia-uvm is missing (999), another "
        "process holds the GPU exclusively (46), CUDA_VISIBLE_DEVICES names no device (100), or "
        "the driver hangs.",
        fix="Follow the next step of the finding: it depends on the error's number. For most of "
        "them the job should run on another node and this one be drained.",
    ),
    Check(
        "gpu.nvml",
        Fault.NODE_UNFIT,
        "NVML (nvmlInit)",
        nvml,
        cause="libnvidia-ml.so.1 is missing because NVIDIA_DRIVER_CAPABILITIES lacks utility (a "
        "warning), it is of another version than the kernel module (18), the driver is not loaded "
        "(9), or it hangs on a sick board.",
        fix="Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility; on a mismatch "
        "reboot the node, and take any copy of the library out of the image.",
    ),
)
