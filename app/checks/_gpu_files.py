"""Judges of what the launcher mounted in: device files and the driver's libraries."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from app.checks import Check
from app.checks._gpu_common import CAPABILITIES, WITHOUT_IT, lacks, libraries_of, numbered
from app.checks._gpu_version import outgrown, take_branch
from app.facts.driver_errors import REBOOT_IT, REQUEST, start_error
from app.facts.gpu import GpuFacts, LibraryFile, LibraryKind
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

# What only the kernel module can have said, through an open device file.
_OF_THE_KERNEL_MODULE = frozenset({2, 46, 102, 214, 220, 226, *range(802, 811), 919})
_TOOLKIT = (
    f"start the container through the NVIDIA container toolkit with {CAPABILITIES}=compute,utility"
)
_MEND = (
    "take another node; install this one's driver anew, or take the file's folder out of "
    "LD_LIBRARY_PATH"
)
_USELESS = frozenset({"empty", "broken"})
# Of a kind of library: what is wrong with it, the way out, whose fault it is.
_WRONG: Mapping[LibraryKind, tuple[str, str, Fault]] = {
    "stub": (
        "is CUDA's stub, which is for linking only",
        "take CUDA's stubs folder out of LD_LIBRARY_PATH",
        Fault.INTERNAL,
    ),
    "empty": (
        "is an empty file",
        f"{WITHOUT_IT} (an image saved from a container holds such)",
        Fault.INTERNAL,
    ),
    "broken": ("is no whole library for this machine", WITHOUT_IT, Fault.INTERNAL),
    "image": (
        "is a copy of the driver's library that the image brought, and not of this driver",
        f"{WITHOUT_IT}; on a node without containers, reboot it after an update of the driver",
        Fault.INTERNAL,
    ),
    "driver": ("is of another version than the kernel module", REBOOT_IT, Fault.NODE_UNFIT),
}


def device_files(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the container has the device files of a GPU, open to this process.

    Comes before the driver's version: a forgotten --gpus looks like an old driver later.
    """
    expected = "/dev/nvidia0 (or another number), /dev/nvidiactl and /dev/nvidia-uvm"
    actual = listed(facts.device_files, 40) or "none"
    if facts.looked and facts.n_devices:  # what the driver could open is there, by any name
        return passed("the driver reaches its devices", expected=expected, actual=actual)
    reached = _reached(facts)
    if reached:
        return skipped(reached)
    on_windows = "dxg" in facts.device_files  # its subsystem for Linux has this one alone
    if not numbered(facts) and not on_windows:
        return failed(
            "no GPU is visible in this container: "
            + (
                "/dev/nvidia<N>, one for each GPU, is not among its device files"
                if facts.device_files
                else "no NVIDIA device file in /dev"
            ),
            expected=expected,
            actual=actual,
            next_step=take_branch(last) if (last := outgrown(facts, plan)) else REQUEST,
        )
    lacking = {"nvidiactl", "nvidia-uvm"} - set(facts.device_files)
    if lacking and not on_windows:
        return failed(
            f"no /dev/{' and no /dev/'.join(sorted(lacking))} in this container",
            expected=expected,
            actual=actual,
            next_step="run nvidia-modprobe -u -c 0 on the node, and pass the files in",
        )
    if facts.unopenable:
        return _closed(facts, expected)
    return passed(f"/dev has {actual}", expected=expected, actual=actual)


def _reached(facts: GpuFacts) -> str:
    """What shows that the driver has its files, whatever it says then; empty for nothing.

    Without its files it answers at once, that there is no device or that something is unknown.
    """
    call = one_line(facts.call) or "the driver"
    if facts.probe_problem and facts.call:
        return f"{call} gave no answer, as it does at once where files are missing"
    if facts.init_error in _OF_THE_KERNEL_MODULE:
        return f"{call} returned {start_error(facts.init_error or 0).told}, so files are there"
    if not facts.device_files and facts.nvml.own_boards:
        return "NVML reaches boards, though no file in /dev has a name of NVIDIA's"
    return ""


def _closed(facts: GpuFacts, expected: str) -> Finding:
    """Files that are there and that the kernel does not let this process open."""
    told = ", ".join(
        f"/dev/{name}: {errno.errorcode.get(number, number)}"
        for name, number in facts.unopenable.items()
    )
    by_group = errno.EPERM in facts.unopenable.values()
    return failed(
        f"this process may not open its GPU: {one_line(told, 400)}",
        expected=f"{expected}, open to this process",
        actual=one_line(told, 400),
        next_step="let the container's device list hold these files (docker: --gpus; a systemd "
        "reload on the node takes them away: start the container anew)"
        if by_group
        else "run as a uid or group that the files' mode allows, or set their mode to 0666",
    )


def libraries(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the driver's libraries are the node's own, whole, and of its kernel module's version.

    An image brings none but CUDA's forward compatibility, a libcuda that is meant to be there.
    """
    if not facts.libraries:
        return skipped("no library of the driver lies on the loader's path")
    expected = "the node's own libraries, of its kernel module's version"
    libraries = libraries_of(facts)
    shown = listed(_shown(library) for library in libraries)
    wrong = [(library, found) for library in libraries if (found := _wrong(library))]
    if not wrong:
        return passed(f"on the loader's path: {shown}", expected=expected, actual=shown)
    useless = [each for each in wrong if not _works(each[0], facts)]
    named = sorted(useless or wrong, key=lambda each: each[0].kind == "driver")
    _, (_, step, fault) = named[0]
    reason = "; ".join(f"{one_line(each.path or each.name)} {what}" for each, (what, *_) in named)
    kernel = one_line(facts.driver) or "unknown"
    actual = f"{listed(_shown(each) for each, _ in named)}; the kernel module is of {kernel}"
    if not useless:
        return warned(f"{reason}, and works here", expected=expected, actual=actual, next_step=step)
    return failed(reason, expected=expected, actual=actual, next_step=step, fault=fault)


def useless_file(facts: GpuFacts, name: str) -> tuple[str, str, Fault] | None:
    """A library that no loader can use: which and why, the way out, whose fault; None for none."""
    for library in facts.libraries:
        if library.name.startswith(name) and library.kind in _USELESS and (bad := _wrong(library)):
            return f"{one_line(library.path or library.name)} {bad[0]}", bad[1], bad[2]
    return None


def _wrong(library: LibraryFile) -> tuple[str, str, Fault] | None:
    """What is wrong with a library, the way out and whose fault it is; None for nothing."""
    if library.kind == "driver" and library.fits is not False:
        return None
    found = _WRONG.get(library.kind)
    if found and library.of_node and library.kind in _USELESS:
        return found[0], _MEND, Fault.NODE_UNFIT
    return found


def _works(library: LibraryFile, facts: GpuFacts) -> bool:
    """Whether what is loaded from it answers, so that it cannot be useless."""
    if library.name.startswith("libnvidia-ml"):
        return facts.nvml.init_error == 0
    return facts.looked


def _shown(library: LibraryFile) -> str:
    version = f" {one_line(library.version)}" if library.version else ""
    kind = "" if library.kind == "driver" else f" ({one_line(library.kind)})"
    return f"{one_line(library.name)}{version}{kind}"


def libcuda(facts: GpuFacts, _plan: Plan) -> Finding:
    """Whether the driver's libcuda.so.1, which comes from the node, can be loaded."""
    if facts.load_error:
        if bad := useless_file(facts, "libcuda"):
            return failed(
                f"libcuda.so.1 cannot be loaded: {bad[0]}",
                expected="the driver's libcuda.so.1, mounted in by the container toolkit",
                actual=one_line(facts.load_error, 400),
                next_step=bad[1],
                fault=bad[2],
            )
        left_out = lacks(facts, "compute")
        return failed(
            f"libcuda.so.1 cannot be loaded: {one_line(facts.load_error, 400)}{left_out}",
            expected="the driver's libcuda.so.1, mounted in by the container toolkit",
            actual=one_line(facts.libcuda) or "no file",
            next_step=_TOOLKIT if facts.device_files else REQUEST,
            fault=Fault.CONFIG if left_out and facts.device_files else None,
        )
    if not facts.libcuda:
        return skipped(
            f"the probe did not get that far: {one_line(facts.probe_problem, 400)}"
            if facts.probe_problem
            else "libcuda.so.1 was not looked for"
        )
    return passed(f"{one_line(facts.libcuda)} loads", actual=one_line(facts.libcuda))


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.device_files",
        Fault.NODE_UNFIT,
        "the device files in /dev",
        device_files,
        cause="The container was started without a GPU (no --gpus, no nvidia.com/gpu limit, no "
        "--gres), or the node has none. /dev/nvidia-uvm alone is missing where nothing on the node "
        "has used CUDA since its start. A systemd reload can take a running container's rights on "
        "these files away.",
        fix="Ask the launcher for one GPU. On the node, run nvidia-modprobe -u -c 0 and pass all "
        "three files in.",
    ),
    Check(
        "gpu.libraries",
        Fault.INTERNAL,
        "the loader's path; /proc/driver/nvidia/version",
        libraries,
        cause="The image holds a libcuda or libnvidia-ml of its own (installed with a driver "
        "package, or left empty when a running container was saved), CUDA's stubs folder is on "
        "LD_LIBRARY_PATH, or the node's driver was updated and the node not rebooted, or is "
        "installed by halves.",
        fix="Build the image without any file of the driver and take stubs out of LD_LIBRARY_PATH; "
        "reboot a node whose kernel module is older than its libraries.",
    ),
    Check(
        "gpu.libcuda",
        Fault.NODE_UNFIT,
        "the dynamic loader",
        libcuda,
        cause="The container was not started through the NVIDIA container toolkit, or "
        "NVIDIA_DRIVER_CAPABILITIES lacks compute, so that libcuda.so.1 was not mounted in.",
        fix="Use the NVIDIA runtime with NVIDIA_DRIVER_CAPABILITIES=compute,utility and ask for a "
        "GPU.",
    ),
)
