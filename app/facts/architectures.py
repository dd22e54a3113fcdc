"""CUDA's rule of which compiled code runs on which device. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

_ENTRY = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


class Kernels(StrEnum):
    """What a build holds for a device."""

    BINARY = "binary"  # runs at once
    PTX = "ptx"  # the driver compiles it at first use
    NONE = "none"


def machine_code(capability: tuple[int, int]) -> str:
    """The architecture's name: `sm_90` for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def kernels_for(architectures: Iterable[str], capability: tuple[int, int]) -> Kernels:
    """The best that a list such as `sm_75 sm_90 compute_90` has for a capability.

    A cubin runs on the same major and the same or a higher minor; PTX is compiled for any later
    capability; the suffix `a` binds to one capability, `f` to one family.
    """
    entries = list(architectures)
    if any(_runs(entry, "sm", capability) for entry in entries):
        return Kernels.BINARY
    if any(_runs(entry, "compute", capability) for entry in entries):
        return Kernels.PTX
    return Kernels.NONE


def _runs(entry: str, kind: str, wanted: tuple[int, int]) -> bool:
    found = _ENTRY.fullmatch(entry)
    if found is None or found[1] != kind:
        return False
    built = (int(found[2]), int(found[3]))
    if found[4] == "a":
        return built == wanted
    if kind == "compute" and not found[4]:
        return built <= wanted
    return built[0] == wanted[0] and built[1] <= wanted[1]
