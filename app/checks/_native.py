"""Judges of the stack's compiled libraries. The checks are listed in `app.checks.host`."""

from __future__ import annotations

from pathlib import PurePath

from app.checks import Check
from app.checks._packages import REBUILD
from app.facts.host import HostFacts
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_STDCXX = "libstdc++.so.6"
# What a distribution and not a wheel brings, by its package on Debian and Ubuntu.
_OF_DISTRIBUTION = {_STDCXX: "libstdc++6", "libgcc_s.so.1": "libgcc-s1", "libz.so.1": "zlib1g"}


def native_libraries(facts: HostFacts, _plan: Plan) -> Finding:
    """The files are whole, and all that they link to is somewhere."""
    found = facts.packages
    if found is None or not found.native:
        return skipped("no compiled library of the stack was found")
    expected = "whole libraries, and everything that they link to"
    broken = [
        f"{PurePath(each.path).name}: {each.problem}" for each in found.native if each.problem
    ]
    if broken:
        return failed(
            f"a compiled library is broken: {listed(broken, 1)}",
            expected=expected,
            actual=listed(broken, between="; "),
            next_step=REBUILD,
        )
    needed_by: dict[str, str] = {}
    for each in found.native:
        for name in each.lacks:
            needed_by.setdefault(name, PurePath(each.path).name)
    if needed_by:
        of_system = [_OF_DISTRIBUTION[name] for name in needed_by if name in _OF_DISTRIBUTION]
        step = f"install {', '.join(of_system)} in the image" if of_system else REBUILD
        return failed(
            f"{listed(needed_by, 3)} is nowhere on this system",
            expected=expected,
            actual=listed((f"{by} needs {name}" for name, by in needed_by.items()), between="; "),
            next_step=step,
        )
    return passed(f"{len(found.native)} compiled libraries have all that they link to")


def glibc(facts: HostFacts, _plan: Plan) -> Finding:
    """Symbol versions: wheels ask for those of the distribution that they were built on."""
    found = facts.packages
    if found is None or not found.native:
        return skipped("no compiled library of the stack was found")
    if not found.glibc:
        return skipped("this C library does not say that it is glibc")
    expected = "the symbol versions that torch, Triton and bitsandbytes were built with"
    actual = f"glibc {found.glibc}, {found.libstdcxx or 'no ' + _STDCXX}"
    unmet = {name: PurePath(each.path).name for each in found.native for name in each.versions}
    if not unmet:
        return passed(f"glibc {found.glibc} is new enough", expected=expected, actual=actual)
    of_variable = bool(found.libstdcxx_by) and all(_STDCXX in name for name in unmet)
    return failed(
        f"the system's C or C++ library is too old: no {listed(unmet, 3)}",
        expected=expected,
        actual=f"{actual}; needed by {listed(dict.fromkeys(unmet.values()))}",
        next_step=f"take the folder of {found.libstdcxx} out of {found.libstdcxx_by}"
        if of_variable
        else "use this profile's image, or one built on a newer distribution",
        fault=Fault.CONFIG if of_variable else None,
    )


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.native_libraries",
        Fault.INTERNAL,
        "the libraries' own headers, the loader's places",
        native_libraries,
        cause="A wheel was cut off while it was copied, one of NVIDIA's packages was left out, or "
        "a slim image lacks a library of its distribution (libstdc++, zlib).",
        fix="Install this profile's lock as a whole, and the named packages of the distribution.",
    ),
    Check(
        "host.glibc",
        Fault.INTERNAL,
        "symbol versions in the libraries' own headers",
        glibc,
        cause="The image is built on a distribution that is older than the wheels (manylinux_2_28 "
        "wants glibc 2.28), or LD_LIBRARY_PATH puts an older libstdc++ first, as some conda "
        "environments do.",
        fix="Use an image on a newer distribution; take foreign library folders out of "
        "LD_LIBRARY_PATH.",
    ),
)
