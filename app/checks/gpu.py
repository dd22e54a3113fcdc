"""Judges of the gpu stage: is there exactly one device, of the right class, that answers."""

from __future__ import annotations

from app.checks import Check
from app.facts.gpu import ERRORS, NO_DEVICE, REQUEST, DeviceFacts, GpuFacts
from app.facts.host import size
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

_CLIFF = GIB  # a context and cuBLAS's workspace alone take most of it: nothing can boot in less
_QUIET = GIB  # in use on an idle device by a context of ours and the driver
_HIDDEN = frozenset({"", "-1", "NoDevFiles"})  # the last one is what Slurm sets without a request


def required(_facts: GpuFacts, plan: Plan) -> Finding:
    """Says why the stage does or does not look at devices."""
    if not plan.profile.needs_gpu:
        return skipped(f"profile {plan.profile.name} needs no device")
    return passed(f"profile {plan.profile.name} needs one CUDA device", expected="1 device")


def device_files(facts: GpuFacts, _plan: Plan) -> Finding:
    """Comes before the driver's version: a forgotten --gpus looks like an old driver later."""
    expected = "/dev/nvidia0 (or another number), /dev/nvidiactl and /dev/nvidia-uvm"
    actual = ", ".join(facts.device_files) or "none"
    if facts.looked and facts.n_devices:  # what the driver could open is there, by any name
        return passed("the driver reaches its devices", expected=expected, actual=actual)
    if not any(name[-1].isdigit() for name in facts.device_files):
        return failed(
            "no GPU is visible in this container: no NVIDIA device file in /dev",
            expected=expected,
            actual=actual,
            next_step=REQUEST,
        )
    lacking = {"nvidiactl", "nvidia-uvm"} - set(facts.device_files)
    if lacking:
        return failed(
            f"no /dev/{' and no /dev/'.join(sorted(lacking))} in this container",
            expected=expected,
            actual=actual,
            next_step="run nvidia-modprobe -u -c 0 on the node, and pass the files in",
        )
    return passed(f"/dev has {actual}", expected=expected, actual=actual)


def libcuda(facts: GpuFacts, _plan: Plan) -> Finding:
    """The driver's library comes from the host; an image holds none."""
    if facts.load_error:
        return failed(
            f"libcuda.so.1 cannot be loaded: {facts.load_error}",
            expected="the driver's libcuda.so.1, mounted in by the container toolkit",
            actual=facts.libcuda or "no file",
            next_step="start the container through the NVIDIA container toolkit with "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            if facts.device_files
            else REQUEST,
        )
    if facts.probe_problem and not facts.libcuda:
        return skipped(f"the probe did not get that far: {facts.probe_problem}")
    return passed(f"{facts.libcuda} loads", actual=facts.libcuda)


def cuda_init(facts: GpuFacts, _plan: Plan) -> Finding:
    """The first call that talks to the kernel module; its number says what is broken."""
    if facts.load_error:
        return skipped("libcuda.so.1 was not loaded")
    expected = "CUDA_SUCCESS from cuInit and from the device queries"
    if facts.probe_problem:
        return failed(
            f"asking the CUDA driver failed: {facts.probe_problem}",
            expected=expected,
            actual=facts.probe_problem,
            next_step="take another node, and have this one's driver looked at",
        )
    if facts.init_error:
        return _driver_failure(facts, facts.init_error, expected)
    return passed("the CUDA driver answers", expected=expected, actual="CUDA_SUCCESS")


def _driver_failure(facts: GpuFacts, code: int, expected: str) -> Finding:
    name, step, fault = _error(code)
    if code == NO_DEVICE and facts.device_files and facts.visible in _HIDDEN:
        fault = Fault.CONFIG
        step = "unset CUDA_VISIBLE_DEVICES, or request a GPU from the scheduler that emptied it"
        name += f" with CUDA_VISIBLE_DEVICES={facts.visible!r}"
    return failed(
        f"{facts.call} returned {code} {name}",
        expected=expected,
        actual=f"{code} {name}",
        next_step=step,
        fault=fault,
    )


def _error(code: int) -> tuple[str, str, Fault]:
    return ERRORS.get(code, (f"CUDA error {code}", "take another node", Fault.NODE_UNFIT))


def count(facts: GpuFacts, _plan: Plan) -> Finding:
    """More devices than asked for is somebody else's GPU."""
    if not facts.looked:
        return skipped("the CUDA driver did not answer")
    n = facts.n_devices or 0
    if n == 1:
        return passed("one device is visible", expected="1", actual="1")
    names = ", ".join(f"{device.index}: {device.name}" for device in facts.devices) or "none"
    if n == 0:
        return failed(
            "the driver sees no device",
            expected="1",
            actual="0",
            next_step=REQUEST,
            fault=Fault.NODE_UNFIT,
        )
    return failed(
        f"{n} devices are visible, and this boot is for one",
        expected="1",
        actual=f"{n} ({names})",
        next_step="request one GPU (docker: --gpus device=0), or set CUDA_VISIBLE_DEVICES to the "
        "UUID of the one that this job was granted",
    )


def _one(facts: GpuFacts, _plan: Plan) -> DeviceFacts | Finding:
    """The device to judge, or why there is none."""
    if not facts.looked:
        return skipped("the CUDA driver did not answer")
    if not facts.devices:
        return skipped("no device is visible")
    return facts.devices[0]


def capability(facts: GpuFacts, plan: Plan) -> Finding:
    """The class of hardware decides the precision, so it must be the one that was asked for."""
    device = _one(facts, plan)
    if isinstance(device, Finding):
        return device
    wanted = plan.profile.compute_capability
    others = [found for found in facts.devices if found.capability != wanted]
    expected = f"compute capability {_dotted(wanted)} ({plan.profile.title})"
    if others:
        actual = f"{_dotted(others[0].capability)} ({others[0].name})"
        return failed(
            f"this GPU is not of profile {plan.profile.name}: {actual}",
            expected=expected,
            actual=actual,
            next_step="take a node of the profile's class, or the image built for this one",
        )
    return passed(
        f"{device.name} has {_dotted(device.capability)}",
        expected=expected,
        actual=_dotted(device.capability),
    )


def driver(facts: GpuFacts, plan: Plan) -> Finding:
    """By the kernel module's version, which is the node's own."""
    least = plan.profile.min_driver
    if facts.driver_major is None or least is None:
        return skipped("/proc/driver/nvidia/version does not tell the driver's version")
    expected, actual = f"driver {least} or newer", f"driver {facts.driver}"
    if facts.driver_major < least:
        return failed(
            f"the node's driver {facts.driver} is too old for this profile",
            expected=expected,
            actual=actual,
            next_step=f"take a node with driver {least} or newer",
        )
    cuda = (
        f", CUDA {facts.cuda_version // 1000}.{facts.cuda_version % 1000 // 10}"
        if (facts.cuda_version)
        else ""
    )
    return passed(actual + cuda, expected=expected, actual=actual)


def memory(facts: GpuFacts, plan: Plan) -> Finding:
    """Total by the profile; of the rest only what no boot survives fails here."""
    device = _one(facts, plan)
    if isinstance(device, Finding):
        return device
    least = plan.profile.min_memory_bytes
    expected = f"at least {size(least)} in total, and next to all of it free"
    actual = f"{size(device.total_bytes)} in total, {size(device.free_bytes)} free"
    if device.total_bytes < least:
        return failed(
            f"{device.name} has {size(device.total_bytes)} of memory",
            expected=expected,
            actual=actual,
            next_step="take a whole GPU of the profile's class (no MIG slice)",
        )
    if device.context_error:
        name, step, fault = _error(device.context_error)
        return failed(
            f"no context on {device.name}: {device.context_error} {name}",
            expected=expected,
            actual=actual,
            next_step=step,
            fault=fault,
        )
    return _free(device, expected, actual)


def _free(device: DeviceFacts, expected: str, actual: str) -> Finding:
    """Who else is on the device; what a model needs is forecast where the model is known."""
    if device.free_bytes is None:
        return skipped(f"{actual}: the driver does not tell how much is free")
    used = device.total_bytes - device.free_bytes
    if device.free_bytes < _CLIFF:
        return failed(
            f"{device.name} is full: {actual}",
            expected=expected,
            actual=actual,
            next_step="wait for its other user to end, or take another GPU",
            fault=Fault.TEMPORARY,
        )
    if used > _QUIET:
        return warned(
            f"{size(used)} of {device.name} is in use already",
            expected=expected,
            actual=actual,
            next_step="look for another process on this GPU",
        )
    return passed(actual, expected=expected, actual=actual)


def _dotted(capability: tuple[int, int] | None) -> str:
    return "none" if capability is None else f"{capability[0]}.{capability[1]}"


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check("gpu.required", Fault.CONFIG, "the profile", required),
    Check("gpu.device_files", Fault.NODE_UNFIT, "/dev", device_files),
    Check("gpu.libcuda", Fault.NODE_UNFIT, "the dynamic loader", libcuda),
    Check("gpu.cuda_init", Fault.NODE_UNFIT, "CUDA driver API", cuda_init),
    Check("gpu.count", Fault.CONFIG, "one device per boot", count),
    Check("gpu.capability", Fault.HARDWARE_MISMATCH, "the profile", capability),
    Check("gpu.driver", Fault.NODE_UNFIT, "the profile, /proc/driver/nvidia/version", driver),
    Check("gpu.memory", Fault.HARDWARE_MISMATCH, "the profile, cuMemGetInfo", memory),
)


def checks_for(plan: Plan) -> tuple[Check[GpuFacts], ...]:
    """All of them where a device is needed, else the one that says why none is."""
    return CHECKS if plan.profile.needs_gpu else CHECKS[:1]
