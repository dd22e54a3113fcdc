"""Judges of the driver itself: whether CUDA and NVML answer."""

from __future__ import annotations

import errno
import os

from app.checks import Check
from app.checks._gpu_absent import UNSET_IT, hidden_by, lost_board, why_no_device
from app.checks._gpu_common import (
    CAPABILITIES,
    WITHOUT_IT,
    compat_of,
    lacks,
    nvml_silent,
)
from app.checks._gpu_files import useless_file
from app.facts.driver_errors import (
    COMPAT_REFUSED,
    CUDA_MISMATCHES,
    DRAIN_IT,
    FUNCTION_NOT_FOUND,
    INVALID_DEVICE,
    LIBRARY_NOT_FOUND,
    NO_DEVICE,
    NVML_MISMATCH,
    TAKE_OTHER,
    DriverError,
    nvml_error,
    start_error,
)
from app.facts.gpu import GpuFacts, LibraryFile
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

# What a limit of processes or files, or a lack of memory, answers to a start.
_LIMITS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR})
_OS_OR_UNKNOWN = frozenset({304, 999})  # what a missing /dev/nvidia-uvm gives
# What CUDA answers of a board that has fallen off the bus, besides what it does of other causes;
# 3 is CUDA_ERROR_NOT_INITIALIZED.
_OF_A_LOST_BOARD = frozenset({3, INVALID_DEVICE, *_OS_OR_UNKNOWN})


def cuda_init(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether CUDA starts and describes its devices; the error's number says what is broken."""
    if facts.load_error:
        return skipped("libcuda.so.1 was not loaded")
    expected = "CUDA_SUCCESS from cuInit and from the device queries"
    call = one_line(facts.call) or "the CUDA driver"
    if facts.start_errno:
        return _not_started(facts.start_errno, expected)
    if facts.probe_problem:
        problem = one_line(facts.probe_problem, 400)
        problem += "" if call in problem else f" (in {call})"
        return failed(
            f"asking the CUDA driver failed: {problem}",
            expected=expected,
            actual=problem,
            next_step=DRAIN_IT if lost_board(facts) else TAKE_OTHER,
        )
    if facts.init_error is None:
        return skipped("the CUDA driver was not asked")
    if facts.init_error:
        return _refused(facts, facts.init_error, call, expected)
    waited = f" after {facts.waited_s:.0f} s" if facts.waited_s else ""
    return passed(f"the CUDA driver answers{waited}", expected=expected, actual="CUDA_SUCCESS")


def _not_started(number: int, expected: str) -> Finding:
    """No process to ask with, which is no word about the driver."""
    name = errno.errorcode.get(number, str(number))
    limits = number in _LIMITS
    return failed(
        f"no process could be started to ask the driver: {os.strerror(number)}",
        expected=expected,
        actual=f"{name} from the start of a Python process",
        next_step="raise the limits (pids.max, ulimit -u and -n), or try again later"
        if limits
        else "use this profile's image: its Python cannot be started again by this uid",
        fault=Fault.TEMPORARY if limits else Fault.INTERNAL,
    )


def _refused(facts: GpuFacts, number: int, call: str, expected: str) -> Finding:
    """The number's meaning, and what the other facts say about who caused it."""
    error = start_error(number)
    why, step, fault = _who_caused(facts, error)
    if not why and facts.waited_s:
        why = f" after {facts.waited_s:.0f} s of asking again"
    return failed(
        f"{call} returned {error.told}{why}",
        expected=expected,
        actual=error.told,
        next_step=step,
        fault=fault,
    )


def _who_caused(facts: GpuFacts, error: DriverError) -> tuple[str, str, Fault]:
    """What other facts add to the number, empty for nothing; the way out; whose fault it is."""
    number, step, fault = error.number, error.step, error.fault
    if number == NO_DEVICE:
        why, step, fault = why_no_device(facts)
        return f": {why}" if why else "", step, fault
    if number == INVALID_DEVICE and (hidden := hidden_by(facts)):
        return f": {hidden}", UNSET_IT, Fault.CONFIG
    if number in CUDA_MISMATCHES and (brought := _brought(facts, "libcuda")):
        return f": {one_line(brought.path)} came with the image", WITHOUT_IT, Fault.INTERNAL
    if number in CUDA_MISMATCHES | {COMPAT_REFUSED} and (compat := compat_of(facts)):
        why = f": {one_line(compat.path)} is CUDA's forward compatibility"
        return why, f"take its folder out of LD_LIBRARY_PATH, or {step}", fault
    if number in _OF_A_LOST_BOARD and lost_board(facts):
        return ": a board is lost", DRAIN_IT, fault
    if number in _OS_OR_UNKNOWN and "nvidia-uvm" in set(facts.device_files) - set(facts.unopenable):
        step = TAKE_OTHER
    return "", step, fault


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
    if found.start_errno:
        return _not_started(found.start_errno, expected)
    if found.load_error or found.init_error in (LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND):
        return _without(facts, silent, expected)
    if found.init_error is None and not found.problem:
        return skipped(silent)
    brought = _brought(facts, "libnvidia-ml") if found.init_error == NVML_MISMATCH else None
    if brought:
        silent += f": {one_line(brought.path)} came with the image"
        step, fault = WITHOUT_IT, Fault.INTERNAL
    elif found.init_error:
        error = nvml_error(found.init_error)
        step, fault = error.step, error.fault
    else:
        step, fault = TAKE_OTHER, Fault.NODE_UNFIT
    return failed(silent, expected=expected, actual=silent, next_step=step, fault=fault)


def _without(facts: GpuFacts, silent: str, expected: str) -> Finding:
    """No NVML at all: a boot can do without, but then nobody has looked at the board's health."""
    if bad := useless_file(facts, "libnvidia-ml"):
        return warned(
            f"the board's health cannot be read: {bad[0]}",
            expected=expected,
            actual=silent,
            next_step=bad[1],
        )
    return warned(
        f"the board's health cannot be read: {silent}{lacks(facts, 'utility')}",
        expected=expected,
        actual=silent,
        next_step=f"start the container with {CAPABILITIES}=compute,utility",
    )


CHECKS: tuple[Check[GpuFacts], ...] = (
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
        cause="libnvidia-ml.so.1 is missing because NVIDIA_DRIVER_CAPABILITIES lacks utility, or "
        "an empty or broken file stands in its place (both a warning), it is of another version "
        "than the kernel module (18), the driver is not loaded (9), or it hangs on a sick board.",
        fix="Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility; on a mismatch "
        "reboot the node, and take any copy of the library out of the image.",
    ),
)
