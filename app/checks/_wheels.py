"""Judges of what the wheels were built for. The checks are listed in `app.checks.host`."""

from __future__ import annotations

import re

from app.checks import Check
from app.checks._packages import REBUILD, UNTOLD
from app.facts.architectures import Kernels, kernels_for, machine_code
from app.facts.host import HostFacts
from app.facts.packages import BitsandbytesFacts, PackagesFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan


def torch_build(facts: HostFacts, plan: Plan) -> Finding:
    """A CPU-only torch on a GPU profile: the resolver took the wrong index."""
    if not plan.profile.needs_gpu:
        return skipped("the rehearsal runs with any build of torch")
    found = facts.packages
    if found is None or found.torch is None:
        return skipped("torch is not installed, as host.packages says" if found else UNTOLD)
    if found.torch.problem:
        return skipped(f"{found.torch.problem}; the stack stage asks torch itself")
    version = found.versions.get("torch", "unknown")
    if found.torch.cuda is None:
        kind = f"a build for {found.torch.other}" if found.torch.other else "a CPU-only build"
        return failed(
            f"torch {version} is {kind}",
            expected="a torch built for CUDA",
            actual=f"torch {version}, no CUDA",
            next_step=REBUILD,
        )
    return passed(f"torch {version} is built for CUDA {found.torch.cuda}", actual=found.torch.cuda)


def bitsandbytes_library(facts: HostFacts, plan: Plan) -> Finding:
    """The file: bitsandbytes fails at the first call of a missing one, minutes into a run."""
    if not plan.request.load_in_4bit:
        return skipped("4-bit loading is off")
    found = facts.packages
    library = found.bitsandbytes if found else None
    if found is None or library is None:
        return skipped("bitsandbytes and torch are not both there, for this device")
    device = f"CUDA {found.torch.cuda}" if plan.profile.needs_gpu and found.torch else "the CPU"
    expected = f"bitsandbytes' own library for {device}"
    has = listed(library.available) or "none"
    if library.override is not None and not library.file:
        return failed(
            f"BNB_CUDA_VERSION={one_line(library.override)} names no library of bitsandbytes",
            expected=expected,
            actual=f"libraries for CUDA: {has}",
            next_step="unset BNB_CUDA_VERSION",
            fault=Fault.CONFIG,
        )
    if not library.file or library.problem:
        what = f"is broken: {library.problem}" if library.problem else "is missing"
        return failed(
            f"bitsandbytes' library for {device}, {library.wanted}, {what}",
            expected=expected,
            actual=library.problem or f"libraries for CUDA: {has}",
            next_step=REBUILD,
        )
    return _fits(library, found, plan, expected)


def _fits(library: BitsandbytesFacts, found: PackagesFacts, plan: Plan, expected: str) -> Finding:
    """Whether the library that is there is right for torch and for the profile's hardware."""
    wanted = plan.profile.compute_capability
    major = re.search(r"_cuda(\d\d)\d+\.so", library.wanted)
    torch = (found.torch.cuda or "") if found.torch else ""
    if library.override is not None and major and not torch.startswith(f"{major[1]}."):
        return failed(
            f"BNB_CUDA_VERSION={library.override} is of another major version than torch's CUDA",
            expected=expected,
            actual=f"{library.wanted} beside CUDA {torch}",
            next_step="unset BNB_CUDA_VERSION",
            fault=Fault.CONFIG,
        )
    kernels = library.architectures
    if wanted and kernels and found.torch_architectures:
        has = [kernels_for(names, wanted) for names in (kernels, found.torch_architectures)]
        # A torch that lacks them too is for other hardware, as the gpu stage says.
        if has[0] is Kernels.NONE is not has[1]:
            return failed(
                f"{library.wanted} has no kernels for {plan.profile.title}, and torch has",
                expected=machine_code(wanted),
                actual=" ".join(kernels),
                next_step=REBUILD,
            )
    if library.override is not None or not library.exact:
        return warned(
            f"bitsandbytes takes {library.wanted}, which is not the one for torch's CUDA {torch}",
            expected=expected,
            actual=library.wanted,
            next_step="unset BNB_CUDA_VERSION" if library.override is not None else REBUILD,
        )
    return passed(f"{library.wanted} is there", expected=expected, actual=" ".join(kernels))


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.torch_build",
        Fault.INTERNAL,
        "torch/version.py",
        torch_build,
        cause="The resolver took torch from an index of CPU-only wheels, or of another vendor's.",
        fix="Install this profile's lock, which pins torch by hash.",
    ),
    Check(
        "host.bitsandbytes_library",
        Fault.INTERNAL,
        "bitsandbytes 0.50.2, cextension.py",
        bitsandbytes_library,
        cause="bitsandbytes was built without a library for the CUDA version of torch or for this "
        "hardware, its file is damaged, or BNB_CUDA_VERSION asks for another one.",
        fix="Unset BNB_CUDA_VERSION; install the versions of torch and bitsandbytes that this "
        "profile's lock pins.",
    ),
)
