"""Judge of the driver's version: is it of a branch that runs the image's CUDA and the hardware."""

from __future__ import annotations

import re

from app.checks import Check
from app.checks._gpu_common import compat_of, newer_works
from app.facts.architectures import Kernels, kernels_for
from app.facts.driver_branches import (
    OLDER_ARCHITECTURES,
    OLDER_CUDA,
    OLDER_LOCK,
    cuda_major,
    cuda_of,
)
from app.facts.driver_errors import TAKE_OTHER
from app.facts.gpu import GpuFacts, cuda_release
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Baked, Plan

# The last branch that runs devices of a capability (release notes name what is no longer run).
_LAST_BRANCH = {(7, 0): 580}
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?")
_LOCAL = re.compile(r"\+cu(\d+)\d$")


def driver(facts: GpuFacts, plan: Plan) -> Finding:
    """Whether the node's driver is new enough for the CUDA in the image, else for the profile."""
    least = _least_driver(plan)
    text = one_line(facts.driver or facts.nvml.driver)
    major = _leading(text)
    wanted_cuda = _image_cuda(plan.baked) if plan.baked else None
    if wanted_cuda and facts.cuda_version and facts.cuda_version // 1000 < wanted_cuda:
        return failed(
            f"the driver runs CUDA up to {cuda_release(facts.cuda_version)}, the image holds "
            f"CUDA {wanted_cuda}",
            expected=f"a driver for CUDA {wanted_cuda} or newer",
            actual=f"driver {text or 'unknown'}, CUDA {cuda_release(facts.cuda_version)}",
            next_step=_newer_driver(facts, plan) if least else TAKE_OTHER,
        )
    if major is None or least is None:
        return _by_cuda(facts, least, plan)
    expected, actual = f"driver {least} or newer", f"driver {text}"
    last = outgrown(facts, plan)
    if last:
        return failed(
            f"the node's driver {text} no longer runs {plan.profile.title}",
            expected=f"driver {least} to {last}",
            actual=actual,
            next_step=take_branch(last),
        )
    if major >= least:
        cuda = f", CUDA {cuda_release(facts.cuda_version)}" if facts.cuda_version else ""
        return passed(actual + cuda, expected=expected, actual=actual)
    if runs := _forward(facts, major, wanted_cuda or cuda_of(least)):
        return passed(f"{actual} {runs}", expected=expected, actual=actual)
    return failed(
        f"the node's driver {text} is too old for {_who(plan)}",
        expected=expected,
        actual=actual,
        next_step=_newer_driver(facts, plan),
    )


def _forward(facts: GpuFacts, branch: int, wanted: int) -> str:
    """How an older driver runs the wanted CUDA by forward compatibility; empty where it does not.

    CUDA's own answer counts, whatever file gave it: a toolkit may have put it anywhere.
    """
    answered = (facts.cuda_version or 0) // 1000
    compat = compat_of(facts)
    if not facts.looked or answered < wanted:
        return ""
    if compat is None and (answered <= cuda_of(branch) or not newer_works(facts)):
        return ""
    by = f" ({one_line(compat.path)})" if compat else ""
    return f"runs CUDA {cuda_release(facts.cuda_version or 0)} by forward compatibility{by}"


def outgrown(facts: GpuFacts, plan: Plan) -> int:
    """The last driver branch for the profile's hardware, where this node's is later; else 0.

    A driver that shows a device runs it, whatever its version.
    """
    major = _leading(facts.driver or facts.nvml.driver)
    last = _LAST_BRANCH.get(plan.profile.compute_capability or (0, 0), 0)
    return last if last and major and major > last and not facts.looked else 0


def take_branch(last: int) -> str:
    """The way out of a driver that is too new."""
    return f"take a node with driver {last}, the last branch for this hardware"


def _newer_driver(facts: GpuFacts, plan: Plan) -> str:
    """The way out of a driver that is too old; an image's may be its older CUDA."""
    step = f"take a node with driver {_least_driver(plan)} or newer"
    older = cuda_major(OLDER_CUDA) or 0
    image = (_image_cuda(plan.baked) if plan.baked else None) or 0
    branch = _leading(one_line(facts.driver or facts.nvml.driver))
    runs = cuda_of(branch) if branch else (facts.cuda_version or 0) // 1000
    served = kernels_for(OLDER_ARCHITECTURES, plan.profile.compute_capability or (0, 0))
    if image <= older or runs < older or served is not Kernels.BINARY:
        return step
    return f"{step}, or an image built with LOCK={OLDER_LOCK} (CUDA {OLDER_CUDA})"


def _by_cuda(facts: GpuFacts, least: int | None, plan: Plan) -> Finding:
    """The same by cuDriverGetVersion, where nothing tells the driver's own version."""
    untold = "neither /proc/driver/nvidia/version nor NVML tells the driver's version"
    wanted = cuda_of(least or 0)
    if not wanted or not facts.cuda_version or facts.cuda_version // 1000 >= wanted:
        return skipped(untold)
    return failed(
        f"the driver runs CUDA up to {cuda_release(facts.cuda_version)}, too old for {_who(plan)}",
        expected=f"driver {least} or newer, for CUDA {wanted}",
        actual=f"CUDA {cuda_release(facts.cuda_version)}; {untold}",
        next_step=_newer_driver(facts, plan),
    )


def _own_minimum(plan: Plan) -> int | None:
    """The image's, which knows its CUDA; None outside an image, or where it does not tell."""
    return plan.baked.minimum_driver if plan.baked else None


def _least_driver(plan: Plan) -> int | None:
    """Major version that the software needs.

    An image's own number counts alone: one for the H100 with CUDA 12 is made for drivers that the
    profile, whose usual image has CUDA 13, would refuse.
    """
    own = _own_minimum(plan)
    return plan.profile.min_driver if own is None else own


def _who(plan: Plan) -> str:
    """Whose minimum it is."""
    return "this profile" if _own_minimum(plan) is None else "this image"


def _image_cuda(baked: Baked) -> int | None:
    """Major version of the CUDA in the image; by its packages where it was built before it told."""
    if (told := cuda_major(baked.cuda)) is not None:
        return told
    for name, version in baked.versions.items():
        found = _RUNTIME.fullmatch(name)
        if found:
            return int(found[1]) if found[1] else _leading(version)
    local = _LOCAL.search(baked.versions.get("torch", ""))
    return int(local[1]) if local else None


def _leading(text: str) -> int | None:
    """The major version that a text begins with, None where it begins with none."""
    major = text.partition(".")[0]
    return int(major) if re.fullmatch(r"[0-9]{1,6}", major) else None


CHECKS: tuple[Check[GpuFacts], ...] = (
    Check(
        "gpu.driver",
        Fault.NODE_UNFIT,
        "the profile and the image; /proc/driver/nvidia/version, NVML, cuDriverGetVersion",
        driver,
        cause="The node's NVIDIA driver is older than the CUDA in the image needs, or newer than "
        "the last branch that runs the hardware (580 for a V100).",
        fix="Send the job to nodes with a driver that the finding names, or use an image built for "
        "an older CUDA.",
    ),
)
