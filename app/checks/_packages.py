"""Judges of the installed packages. The checks are listed in `app.checks.host`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.checks import Check
from app.checks._versions import numbers, unmet
from app.facts.architectures import Kernels, kernels_for
from app.facts.host import HostFacts
from app.facts.packages import REQUIRED_PACKAGES, PackagesFacts, Shadow, canonical
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan

UNTOLD = "the packages were not looked at"
REBUILD = "use this profile's image, or install its lock (docker/requirements.*.txt) as a whole"
_MAIN = ("torch", "unsloth", "transformers", "peft", "bitsandbytes")
_ENGINE = frozenset(REQUIRED_PACKAGES)


def packages(facts: HostFacts, plan: Plan) -> Finding:
    """What must be there is, and is what the image was built from.

    Outside an image nobody has said which versions are right: what is known not to fit only warns,
    and the stack stage imports it.
    """
    found = facts.packages
    if found is None:
        return skipped(UNTOLD)
    absent = [*found.missing, *(f"{name} (its files are gone)" for name in found.gone)]
    if absent:
        return failed(
            f"not installed: {listed(absent)}",
            expected=f"every package that a boot imports: {', '.join(REQUIRED_PACKAGES)}",
            actual=f"missing: {listed(absent)}",
            next_step=REBUILD,
        )
    if plan.baked is not None:
        wrong = list(_unlike(found, plan.baked.versions))
        if wrong:
            return failed(
                f"this image does not hold what it was built from: {listed(wrong, 3)}",
                expected="the versions in image.json",
                actual=listed(wrong, between="; "),
                next_step="pull the image again; in an image derived from it, run `python -m "
                "app.bake --derived` after the last change",
            )
    else:
        doubts = [*_misfits(found, plan), *_twice(found)]
        if doubts:
            return warned(
                f"packages that do not fit: {listed(doubts, 3)}",
                expected="versions that each other's metadata allows",
                actual=listed(doubts, between="; "),
                next_step=REBUILD,
            )
    return passed(
        ", ".join(f"{name} {found.versions.get(name, '?')}" for name in _MAIN)
        + _on_xformers(found, plan),
        actual=f"{len(found.versions)} packages are installed",
    )


def _on_xformers(found: PackagesFacts, plan: Plan) -> str:
    """A note where it is of no use: Unsloth goes on without, and Gemma 3n asks for none of it."""
    built, wanted = found.xformers, plan.profile.compute_capability
    if built is None or wanted is None:
        return ""
    if not _same(built.torch, found.versions.get("torch", "")):
        return f"; xFormers is of no use here: it was built for torch {one_line(built.torch)}"
    if built.architectures and kernels_for(built.architectures, wanted) is Kernels.NONE:
        return f"; xFormers is of no use here: it has no kernels for {plan.profile.title}"
    return ""


def _unlike(found: PackagesFacts, wanted: Mapping[str, str]) -> Iterator[str]:
    """Where the installed set differs from the image's own list."""
    for name, version in wanted.items():
        actual = found.versions.get(canonical(name))
        # A wheel from another index carries `+cu128`, which not every list names.
        if actual is None or not _same(actual, version):
            yield f"{name} {version} is {actual or 'missing'}"
    yield from _twice(found)


def _same(one: str, other: str) -> bool:
    """Equal, but for a local part that only one of them names."""
    (public, _, local), (public_2, _, local_2) = one.partition("+"), other.partition("+")
    return public == public_2 and (local == local_2 or not (local and local_2))


def _twice(found: PackagesFacts) -> Iterator[str]:
    for name, versions in found.doubled.items():
        yield f"{name} is recorded as {' and as '.join(versions)}"


def _misfits(found: PackagesFacts, plan: Plan) -> Iterator[str]:
    """What metadata forbids, then what only breaks in use (tried on these versions, 2026-11)."""
    for need in found.needs:
        version = found.versions.get(need.on)
        if version is None:
            yield f"{need.package} needs {need.on}, which is not installed"
        elif clause := unmet(version, need.clauses):
            yield f"{need.package} needs {need.on}{clause} and has {version}"
    zoo, unsloth = (found.versions.get(name) for name in ("unsloth-zoo", "unsloth"))
    if zoo != unsloth:  # they patch each other's code
        yield f"unsloth {unsloth} and unsloth_zoo {zoo} are not one release"
    torchao, torch = (numbers(found.versions.get(name, "")) for name in ("torchao", "torch"))
    if torchao and torchao < (0, 16):
        yield f"peft refuses torchao {found.versions['torchao']}: it needs 0.16"
    if torch[:2] == (2, 7) and plan.profile.compute_capability == (7, 0):
        yield "the Triton of torch 2.7 cannot compile matrix products for this hardware"
    bitsandbytes = numbers(found.versions.get("bitsandbytes", ""))
    if bitsandbytes and bitsandbytes < (0, 46, 1) and not plan.profile.needs_gpu:
        yield f"bitsandbytes {found.versions['bitsandbytes']} cannot pack 4 bits on a CPU"


def package_origin(facts: HostFacts, plan: Plan) -> Finding:
    """Whether another module comes first; an image promises what it holds, and not that."""
    found = facts.packages
    if found is None:
        return skipped(UNTOLD)
    expected = "the stack's packages from the interpreter's own folders"
    # A folder of installed packages is somebody's choice, as far as the engine does not need them.
    shadows = [each for each in found.shadows if not each.installed or each.module in _ENGINE]
    if not shadows:
        return passed("nothing comes before the installed packages", expected=expected)
    first = sorted(shadows, key=lambda shadow: shadow.module not in _ENGINE)
    actual = listed((_shadow(shadow) for shadow in first), between="; ")
    reason = (
        f"{one_line(first[0].module)} would be imported from {one_line(first[0].taken)} "
        f"({first[0].place}), before the installed one"
        + (f" (+{len(first) - 1} more)" if len(first) > 1 else "")
    )
    step = "take that folder out of PYTHONPATH, or rename what lies in it"
    if first[0].place != "PYTHONPATH":
        step = "set PYTHONNOUSERSITE=1, or remove the package from the user's site"
    judged = failed if plan.baked is not None and first[0].module in _ENGINE else warned
    return judged(reason, expected=expected, actual=actual, next_step=step)


def _shadow(shadow: Shadow) -> str:
    kind = "a package" if shadow.installed else "a module"
    return f"{shadow.module}: {kind} in {shadow.taken} hides the one in {shadow.hidden}"


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.packages",
        Fault.INTERNAL,
        "records of installed packages (*.dist-info), image.json",
        packages,
        cause="A package is missing or half removed, or something was installed over the image's "
        "lock (pip install in a start script, an upgrade of one package alone).",
        fix="Use the image as it was built. In an image derived from it run `python -m app.bake "
        "--derived` after the last change, which proves the set anew. Outside an image install the "
        "whole lock of this profile into an environment of its own.",
    ),
    Check(
        "host.package_origin",
        Fault.CONFIG,
        "the search path of this interpreter",
        package_origin,
        cause="PYTHONPATH or a user's site (~/.local) holds a module with the name of one of the "
        "stack's packages or of Python's own, and Python imports the first that it finds: a "
        "folder `datasets` of a project is enough.",
        fix="Take the folder out of PYTHONPATH or rename the module; set PYTHONNOUSERSITE=1 where "
        "the home folder is shared.",
    ),
)
