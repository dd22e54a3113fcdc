"""Finds the native library that bitsandbytes would load, without importing it.

The rule is that of bitsandbytes 0.50.2 (`cextension.py`): BNB_CUDA_VERSION as it stands, else the
library for torch's CUDA, else the highest below it of the same major version, else the lowest one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from app.facts.packages import BitsandbytesFacts, TorchBuild
from app.facts.words import error_text
from app.plan import Plan
from app.probes.elf import ElfError, read_library
from app.probes.wheel import kernel_architectures

_CUDA_LIBRARY = re.compile(r"libbitsandbytes_cuda(\d\d)(\d+)\.so")
_CPU_LIBRARY = "libbitsandbytes_cpu.so"
_VERSION = re.compile(r"(\d+)\.(\d+)")


def probe_bitsandbytes(
    folder: Path | None, torch: TorchBuild | None, plan: Plan, environ: Mapping[str, str]
) -> BitsandbytesFacts | None:
    """The library for this profile's device; None without the package or a torch for it."""
    if folder is None or torch is None:
        return None
    if not plan.profile.needs_gpu:
        return _there(folder, _CPU_LIBRARY)
    versions = _versions(folder)
    available = tuple(versions[each] for each in sorted(versions))
    override = environ.get("BNB_CUDA_VERSION")
    if override is not None:
        wanted = f"libbitsandbytes_cuda{override}.so" if override.isdigit() else ""
        return _there(folder, wanted, override=override, available=available)
    asked = _VERSION.match(torch.cuda or "")
    if asked is None:
        return None
    version = (int(asked[1]), int(asked[2]))
    chosen = _closest(version, versions)
    wanted = f"libbitsandbytes_cuda{version[0]}{version[1]}.so"
    if chosen is None:
        return BitsandbytesFacts(wanted=wanted, available=available)
    return _there(folder, versions[chosen], exact=chosen == version, available=available)


def _versions(folder: Path) -> dict[tuple[int, int], str]:
    """CUDA version -> file name of every library that the package holds."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return {}
    matches = (match for name in names if (match := _CUDA_LIBRARY.fullmatch(name)))
    return {(int(match[1]), int(match[2])): match[0] for match in matches}


def _closest(
    wanted: tuple[int, int], versions: Mapping[tuple[int, int], str]
) -> tuple[int, int] | None:
    """What stands in for a version, of the same major one only."""
    same = [version for version in versions if version[0] == wanted[0]]
    below = [version for version in same if version <= wanted]
    return max(below) if below else min(same, default=None)


def _there(
    folder: Path,
    name: str,
    *,
    override: str | None = None,
    exact: bool = True,
    available: tuple[str, ...] = (),
) -> BitsandbytesFacts:
    """The library with what its file shows."""
    path, problem = folder / name, ""
    file = str(path) if name and path.is_file() else ""
    architectures: tuple[str, ...] = ()
    if file:
        try:
            read_library(path)
        except (OSError, ElfError) as error:
            problem = error_text(error)
        else:
            architectures = kernel_architectures(path)[0] if name != _CPU_LIBRARY else ()
    return BitsandbytesFacts(override, name, file, exact, available, architectures, problem)
