"""Judges of the software stack: is this the software that the profile's hardware needs."""

from __future__ import annotations

import re
from dataclasses import replace

from app.checks import Check, _places
from app.facts.architectures import Kernels, kernels_for, machine_code
from app.facts.cudnn import release, serves
from app.facts.stack import StackFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan
from app.sections import Software

_REBUILD = "use this profile's image, or rebuild it from its lock"
_CUDA_LIBRARY = re.compile(r"_cuda(\d\d)(\d+)\.so")


def architectures(facts: StackFacts, plan: Plan) -> Finding:
    """Whether torch's wheel has kernels for the profile's capability."""
    wanted = plan.profile.compute_capability
    if wanted is None:
        return skipped(f"the profile {plan.profile.name} has no GPU to run kernels on")
    listed = " ".join(facts.architectures) or "none"
    name = machine_code(wanted)
    found = kernels_for(facts.architectures, wanted)
    if found is Kernels.BINARY:
        return passed(f"torch has kernels for {name}", expected=name, actual=listed)
    if found is Kernels.PTX:
        return warned(
            f"torch has no kernels for {name}, only PTX that the driver compiles at first use",
            expected=name,
            actual=listed,
            next_step=f"expect slow first steps, or {_REBUILD}",
        )
    return failed(
        f"torch has no kernels for {plan.profile.title}",
        expected=f"{name}, or PTX for it",
        actual=listed,
        next_step="take hardware from that list, or the image or environment built for this one",
    )


def torch_build(facts: StackFacts, plan: Plan) -> Finding:
    """A CPU-only torch on a GPU profile: the resolver took the wrong index."""
    if not plan.profile.needs_gpu:
        return skipped("the rehearsal runs with any build of torch")
    version = facts.packages.get("torch", "unknown")
    if facts.cuda is None:
        return failed(
            "torch is a CPU-only build",
            expected="a torch built for CUDA",
            actual=f"torch {version}, no CUDA",
            next_step=_REBUILD,
        )
    return passed(f"torch {version} is built for CUDA {facts.cuda}", actual=facts.cuda)


def device_type(facts: StackFacts, plan: Plan) -> Finding:
    """What Unsloth decided to run on, which it does silently."""
    expected, actual = plan.profile.device, facts.device_type
    if actual == expected:
        return passed(f"Unsloth runs on {actual}", expected=expected, actual=actual)
    # With a CUDA build the device is what is missing; without one, torch_build names the image.
    fault = Fault.NODE_UNFIT if plan.profile.needs_gpu and facts.cuda else Fault.INTERNAL
    return failed(
        f"Unsloth runs on {actual or 'nothing'}, not on {expected}",
        expected=expected,
        actual=actual or "nothing",
        next_step="check that torch sees the device (driver, device request), and that no "
        "UNSLOTH_* variable redirects it",
        fault=fault,
    )


def bitsandbytes(facts: StackFacts, plan: Plan) -> Finding:
    """The native library: bitsandbytes only fails at the first call of a missing one."""
    if not plan.request.load_in_4bit:
        return skipped("4-bit loading is off")
    file = f", {one_line(facts.bnb_file)}" if facts.bnb_file else ""
    actual = f"{facts.bnb_library}, compiled with CUDA: {facts.bnb_compiled_with_cuda}{file}"
    if "bitsandbytes" in facts.broken:
        return skipped("bitsandbytes cannot be imported")
    dead = facts.bnb_library.startswith("ErrorHandler")
    if dead or (plan.profile.needs_gpu and not facts.bnb_compiled_with_cuda):
        return failed(
            "bitsandbytes has no native library for this device"
            + (f": {facts.bnb_problem}" if facts.bnb_problem else ""),
            expected="its CUDA library" if plan.profile.needs_gpu else "its CPU library",
            actual=actual,
            next_step=f"{_REBUILD}; unset BNB_CUDA_VERSION where it is set",
        )
    other = _of_another_cuda(facts, plan)
    return other or passed("bitsandbytes has its native library", actual=actual)


def _of_another_cuda(facts: StackFacts, plan: Plan) -> Finding | None:
    """Where BNB_CUDA_VERSION, or a missing file, made it take a library for another CUDA."""
    version = _CUDA_LIBRARY.search(facts.bnb_file)
    if version is None or not plan.profile.needs_gpu or facts.cuda is None:
        return None
    ours = f"{version[1]}.{version[2]}"
    if facts.cuda == ours:
        return None
    # By itself it never takes one of another major version: somebody has named it.
    other_major = facts.cuda.partition(".")[0] != version[1]
    reason = f"bitsandbytes has loaded its library for CUDA {ours} beside torch's {facts.cuda}"
    expected, actual = f"a library for CUDA {facts.cuda}", one_line(facts.bnb_file)
    step = "unset BNB_CUDA_VERSION"
    if other_major:
        return failed(reason, expected=expected, actual=actual, next_step=step, fault=Fault.CONFIG)
    return warned(
        reason, expected=expected, actual=actual, next_step=f"{step}; where it is unset, {_REBUILD}"
    )


def cudnn(facts: StackFacts, plan: Plan) -> Finding:
    """The library that is loaded, which LD_LIBRARY_PATH can change, and NVIDIA's rule."""
    wanted = plan.profile.compute_capability
    if not plan.profile.needs_gpu or wanted is None:
        return skipped("a CPU runs nothing of cuDNN")
    if facts.cudnn is None:
        return skipped("this torch is built without cuDNN")
    found = release(facts.cudnn)
    told, built = (".".join(map(str, each)) for each in (found, facts.cudnn_built))
    if facts.cudnn_built and not _replaces(found, facts.cudnn_built):
        return failed(
            f"cuDNN {told} is loaded, and torch was built with {built}",
            expected=f"the cuDNN that came with torch, {built} or a later minor version",
            actual=told,
            next_step="take the folder with another cuDNN out of LD_LIBRARY_PATH",
        )
    if not serves(found, wanted):
        return failed(
            f"cuDNN {told} has no kernels for {plan.profile.title}",
            expected="cuDNN before 9.11, the last releases with Volta",
            actual=told,
            next_step=_REBUILD,
        )
    return passed(f"cuDNN {told} has kernels for {plan.profile.title}", actual=told)


def _replaces(found: tuple[int, ...], built: tuple[int, ...]) -> bool:
    """Torch's own rule: of the same major version, not older in the minor one."""
    return found[0] == built[0] and found[1] >= built[1]


def packages(facts: StackFacts, _plan: Plan) -> Finding:
    """Every package a boot needs is installed, by its metadata, and can be imported."""
    if facts.missing:
        return failed(
            f"not installed: {', '.join(facts.missing)}",
            expected="every package of the image's lock",
            actual=f"missing {', '.join(facts.missing)}",
            next_step=_REBUILD,
        )
    if facts.broken:
        found = list(facts.broken.values())
        return replace(found[0], reason="; ".join(each.reason for each in found))
    main = ("torch", "unsloth", "transformers", "peft", "bitsandbytes")
    return passed(", ".join(f"{name} {facts.packages.get(name, '?')}" for name in main))


def section(facts: StackFacts) -> Software:
    """The stack as the report shows it."""
    return Software(
        python=facts.python,
        packages=dict(facts.packages),
        cuda=facts.cuda,
        cudnn=facts.cudnn,
        device_type=facts.device_type,
        wheel_architectures=list(facts.architectures),
    )


CHECKS: tuple[Check[StackFacts], ...] = (
    Check(
        "stack.packages",
        Fault.INTERNAL,
        "what the engine imports",
        packages,
        cause="a package that is missing, or that fails at import: versions that do not fit, a "
        "native library that does not load",
        fix="use this profile's image, or rebuild the environment from its lock",
    ),
    Check(
        "stack.torch_build",
        Fault.INTERNAL,
        "torch.version.cuda",
        torch_build,
        cause="the resolver took a CPU-only build of torch",
        fix="use this profile's image, or rebuild the environment from its lock",
    ),
    Check(
        "stack.architectures",
        Fault.HARDWARE_MISMATCH,
        "CUDA's rules of binary and PTX compatibility; torch._C._cuda_getArchFlags",
        architectures,
        cause="the wheel was built for other cards: torch dropped sm_70 after 2.10, for instance",
        fix="run the image that was built for this hardware",
    ),
    Check(
        "stack.device_type",
        Fault.NODE_UNFIT,
        "unsloth.DEVICE_TYPE",
        device_type,
        cause="torch sees no device though the driver does, so that Unsloth would train on the CPU",
        fix="check driver, device request and CUDA_VISIBLE_DEVICES; take another node if they are "
        "right",
    ),
    Check(
        "stack.bitsandbytes",
        Fault.INTERNAL,
        "bitsandbytes.cextension.lib",
        bitsandbytes,
        cause="no native library for torch's CUDA, so that 4-bit layers would fail at their first "
        "use",
        fix="use this profile's image, or unset BNB_CUDA_VERSION",
    ),
    Check(
        "stack.cudnn",
        Fault.INTERNAL,
        "NVIDIA's support matrix of cuDNN; torch/backends/cudnn",
        cudnn,
        cause="a cuDNN that LD_LIBRARY_PATH brings, or one that has dropped the hardware: 9.11 "
        "dropped Volta",
        fix="take other copies of cuDNN out of LD_LIBRARY_PATH; use this profile's image",
    ),
    *_places.CHECKS,
)
