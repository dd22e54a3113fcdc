"""Proofs of what is installed: the lock, torch's build, cuDNN, bitsandbytes."""

from __future__ import annotations

import re

from app.bake.lock import differences
from app.bake.scene import Scene
from app.checks import stack
from app.facts.architectures import Kernels, kernels_for, machine_code
from app.facts.cudnn import OLDEST_SINCE, serves
from app.facts.driver_branches import FIRST_BRANCH, least_driver
from app.facts.packages import canonical
from app.facts.stack import StackFacts
from app.facts.words import listed, one_line
from app.image import NONE
from app.outcome import Finding, failed, passed, skipped, warned
from app.probes.wheel import torch_architectures

_REBUILD = "build the environment anew from the lock, and install nothing beside it"
_ALL = 1000  # packages that a finding may name: a build log has room for every one
_CUDNN = re.compile(r"nvidia-cudnn-cu\d+")


def changes(scene: Scene) -> dict[str, str]:
    """Where the environment differs from what is wanted, as `5.17.0 -> 5.18.0`."""
    wrong, extra = differences(scene.wanted, scene.packages.versions)
    moved = {name: f"{wanted} -> {found or NONE}" for name, (wanted, found) in wrong.items()}
    return dict(sorted((moved | {name: f"{NONE} -> {extra[name]}" for name in extra}).items()))


def lock(scene: Scene) -> Finding:
    """Every package of the lock in its version, and no other."""
    found = scene.packages
    expected = f"the {len(scene.wanted)} packages of {scene.wanted_by}, and no other"
    wrong = [
        f"{name} is recorded as {' and as '.join(each)}" for name, each in found.doubled.items()
    ]
    if scene.derived and not wrong:
        moved = [f"{name} {change}" for name, change in changes(scene).items()]
        if not moved:
            return passed(f"{len(found.versions)} packages, as {scene.wanted_by} has them")
        return warned(
            f"{len(moved)} packages differ from {scene.wanted_by}: {listed(moved, _ALL)}",
            expected=expected,
            actual=listed(moved, _ALL),
            next_step="none, where that is what this image is derived for: what follows proves it",
        )
    unlike, extra = differences(scene.wanted, found.versions)
    wrong += [
        f"{name} {wanted} is {actual or 'missing'}" for name, (wanted, actual) in unlike.items()
    ]
    wrong += [f"{name} {version} is not in the lock" for name, version in extra.items()]
    if wrong:
        return failed(
            f"the environment is not what {scene.wanted_by} says ({len(wrong)} packages)",
            expected=expected,
            actual=listed(wrong, _ALL, between="; "),
            next_step=_REBUILD,
        )
    return passed(f"{len(found.versions)} packages, exactly those of {scene.wanted_by}")


def architectures(scene: Scene) -> Finding:
    """Kernels for the profile's hardware, or PTX for it, in torch's own library."""
    found, source = torch_architectures(None, [str(scene.site)])
    finding = stack.architectures(StackFacts("", architectures=found), scene.plan)
    if not found and finding.status.blocks:
        return failed(
            f"{finding.reason}: {source}",
            expected=finding.expected,
            actual=source,
            next_step=_REBUILD,
        )
    return finding


def driver(scene: Scene) -> Finding:
    """The image must be able to say which drivers run it."""
    torch = scene.packages.torch
    release = torch.cuda if torch else None
    if release is None:
        if not scene.plan.profile.needs_gpu:
            return skipped("this torch is built without CUDA")
        return failed(
            "torch is not built for CUDA",
            expected="a torch built for CUDA",
            actual=(torch.problem or f"a build for {torch.other or 'CPUs'}")
            if torch
            else "no torch",
            next_step=_REBUILD,
        )
    least = least_driver(release)
    if least is None:
        return failed(
            f"nobody has said which driver runs CUDA {one_line(release)}",
            expected=f"one of CUDA {', '.join(map(str, FIRST_BRANCH))}",
            actual=f"CUDA {one_line(release)}, as torch/version.py says",
            next_step="add its first driver branch to app/facts/driver_branches.py, from NVIDIA's "
            "CUDA compatibility guide",
        )
    return passed(f"CUDA {release} runs from driver {least} on")


def cudnn(scene: Scene) -> Finding:
    """Of one version by record and by the library itself, and old enough for the hardware."""
    recorded = {
        name: version
        for name, version in scene.packages.versions.items()
        if _CUDNN.fullmatch(canonical(name))
    }
    if not recorded and not scene.plan.profile.needs_gpu:
        return skipped("this environment has no cuDNN")
    libraries = sorted(scene.site.glob("nvidia/*/lib/libcudnn.so.*"))
    expected = "one cuDNN of the lock, that tells its version"
    if len(recorded) != 1 or len(libraries) != 1:
        return failed(
            f"{len(recorded)} packages and {len(libraries)} libraries of cuDNN",
            expected=expected,
            actual=listed([*map(" ".join, recorded.items()), *(each.name for each in libraries)])
            or "none",
            next_step=_REBUILD,
        )
    ((name, version),) = recorded.items()
    ran = scene.run("-m", "app.bake.cudnn_child", str(libraries[0]))
    told = ran.out.strip()
    if ran.problem or not version.startswith(f"{told}."):
        return failed(
            f"cuDNN's library and its package {name} {version} do not agree",
            expected=f"{expected}: {version}",
            actual=ran.problem or f"cudnnGetVersion says {one_line(told)}",
            next_step=_REBUILD,
        )
    return _cudnn_fits(told, scene)


def _cudnn_fits(told: str, scene: Scene) -> Finding:
    wanted = scene.plan.profile.compute_capability
    number = tuple(int(part) for part in told.split("."))
    if wanted is None or wanted >= OLDEST_SINCE:
        return passed(f"cuDNN {told}, as its library says")
    if not serves(number, wanted):
        return failed(
            f"cuDNN {told} has no kernels for {scene.plan.profile.title}",
            expected="cuDNN before 9.11, the last releases with Volta",
            actual=f"cuDNN {told}",
            next_step="pin nvidia-cudnn-cu12 to 9.10.2.21 with the torch that wants it "
            "(docker/requirements.v100.in)",
        )
    return passed(f"cuDNN {told} still has kernels for {scene.plan.profile.title}")


def bitsandbytes(scene: Scene) -> Finding:
    """The native library for exactly this torch's CUDA, with kernels for the hardware."""
    found, wanted = scene.packages.bitsandbytes, scene.plan.profile.compute_capability
    if found is None:
        return failed(
            "bitsandbytes, or a torch that it could serve, is not installed",
            expected="bitsandbytes with a library for torch's CUDA",
            actual="nothing to look at",
            next_step=_REBUILD,
        )
    device = scene.packages.torch.cuda if wanted and scene.packages.torch else None
    expected = f"a library for CUDA {device}" if device else "a library for the CPU"
    if found.problem or not found.file or not found.exact:
        has = listed(found.available, _ALL) or "none"
        return failed(
            f"bitsandbytes has no library of its own for {'CUDA ' + device if device else 'CPUs'}",
            expected=expected,
            actual=found.problem or f"it has {has}",
            next_step="take the release of bitsandbytes that has one, or keep the file when the "
            "environment is made smaller (docker/slim.txt)",
        )
    if wanted is None:
        return passed(f"{found.wanted} is there")
    name = machine_code(wanted)
    if kernels_for(found.architectures, wanted) is Kernels.NONE:
        return failed(
            f"{found.wanted} has no kernels for {scene.plan.profile.title}",
            expected=f"{name}, or PTX for it",
            actual=" ".join(found.architectures) or "no CUDA kernels",
            next_step="take the release of bitsandbytes that was built for this hardware",
        )
    return passed(f"{found.wanted} has kernels for {name}", actual=" ".join(found.architectures))
