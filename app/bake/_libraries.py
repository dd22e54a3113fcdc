"""Proof that every native library loads, as far as one can without a driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from app.bake.scene import Scene
from app.facts.libraries import LibrariesFacts, LoadFacts
from app.facts.words import listed
from app.outcome import Finding, failed, passed
from app.probes.libraries import probe_libraries

_DEADLINE_S = 900.0  # a slow disk; 550 libraries take some 5 s from a fast one
_ALL = 1000
# A node brings these, and an image must not.
_DRIVER = re.compile(r"lib(?:cuda|nvidia-[\w-]+)\.so(?:\.\d+)?")
_MISSING = re.compile(r"(\S+): cannot open shared object file: No such file or directory")


@dataclass(frozen=True, slots=True)
class Idle:
    """Files that no boot opens, by shell pattern, and the libraries that they may lack."""

    pattern: str
    lacks: re.Pattern[str]
    why: str


# Tried on both locks: nothing else may be missing, and these files only their own.
IDLE: tuple[Idle, ...] = (
    Idle(
        "bitsandbytes/libbitsandbytes_*.so",
        re.compile(
            r"lib(?:cudart|cublas|cublasLt|cusparse|hipblas|hipblaslt|rocrand|sycl)\.so\..*"
            r"|lib(?:svml|irng|imf)\.so|libintlc\.so\.5"
        ),
        "bitsandbytes for other devices",
    ),
    Idle(
        "xformers/_C.so",
        re.compile(r"libcudart\.so\.12"),
        "xFormers for another CUDA, which Unsloth does without",
    ),
    Idle(
        "nvidia/*/lib/libcufile_rdma.so.*",
        re.compile(r"lib(?:mlx5|rdmacm|ibverbs)\.so\.1"),
        "GPUDirect Storage over a network",
    ),
    Idle(
        "nvidia/nvshmem/lib/nvshmem_*.so.*",
        re.compile(r"lib(?:mpi|pmix|oshmem|mlx5|ibverbs|fabric|ucs|ucp)\.so\.\d+"),
        "NVSHMEM between nodes",
    ),
)


def libraries(scene: Scene) -> Finding:
    """All of them: the import of the stack loads a part, and a run finds out about the rest."""
    found = probe_libraries(scene.site, scene.variables, _DEADLINE_S)
    own = scene.packages.bitsandbytes
    # bitsandbytes' one for this torch must load: nothing excuses it.
    return judge(found, Path(own.file).name if own else "")


def judge(found: LibrariesFacts, needed: str) -> Finding:
    """What was loaded; `needed` is the name of a file that must be, whatever it matches."""
    expected = "every library loads, but for the driver's and what no boot opens"
    bad, waiting, idle = [], [], dict.fromkeys((each.why for each in IDLE), 0)
    for each in found.tried:
        missing = _missing(each)
        if not each.error and not missing:
            continue
        rest = [name for name in missing if not _DRIVER.fullmatch(name)]
        why = "" if Path(each.path).name == needed else _excuse(each.path, rest)
        if missing and not rest:
            waiting.append(each.path)
        elif missing and why:
            idle[why] += 1
        else:
            bad.append(f"{each.path}: {_said(each, rest)}")
    if found.problem or not found.tried:
        bad.append(found.problem or "no library was found")
    if bad:
        return failed(
            f"{len(bad)} of {len(found.tried)} native libraries do not load",
            expected=expected,
            actual=listed(bad, _ALL, between="; "),
            next_step="install the lock as a whole, and the package of the distribution that has a "
            "missing library; a file that no boot opens may be taken out (docker/slim.txt)",
        )
    loaded = len(found.tried) - len(waiting) - sum(idle.values())
    parts = [f"{loaded} of {len(found.tried)} load, with every symbol"]
    parts += [f"{len(waiting)} wait for a driver ({', '.join(waiting)})"] if waiting else []
    lacking = ", ".join(f"{number} {why}" for why, number in idle.items() if number)
    parts += [f"what no boot opens lacks its own: {lacking}"] if lacking else []
    return passed("; ".join(parts), expected=expected)


def _missing(each: LoadFacts) -> tuple[str, ...]:
    """Its own lacks, and what one of its needs lacks: the loader names the first only."""
    named = _MISSING.match(each.error)
    first = (named[1],) if named and not named[1].startswith("/") else ()
    return tuple(dict.fromkeys((*each.lacks, *first)))


def _excuse(path: str, missing: Iterable[str]) -> str:
    """Why this file may lack these; empty where it may not."""
    for idle in IDLE:
        if fnmatchcase(path, idle.pattern):
            return idle.why if all(idle.lacks.fullmatch(name) for name in missing) else ""
    return ""


def _said(each: LoadFacts, missing: list[str]) -> str:
    """The loader's words begin with the path once more."""
    if missing:
        return f"lacks {', '.join(missing)}"
    return each.error.removeprefix(f"{each.path}: ").rpartition(f"{each.path}: ")[2]
