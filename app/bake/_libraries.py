"""Proof that every native library loads, as far as one can without a driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from app.bake.scene import Scene
from app.facts.words import listed
from app.outcome import Finding, failed, passed

# A node brings these, and an image must not.
_DRIVER = re.compile(r"lib(?:cuda|nvidia-[\w-]+)\.so(?:\.\d+)?")
_MISSING = re.compile(r"(\S+): cannot open shared object file: No such file or directory")


@dataclass(frozen=True, slots=True)
class Tried:
    """One file, by its path below site-packages, and what the loader said of it.

    `error` is empty where it was loaded (a program is never loaded; its needs are looked up);
    `lacks` are the libraries that it needs and that the loader does not find.
    """

    path: str
    error: str = ""
    lacks: Sequence[str] = ()


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
    ran = scene.run("-m", "app.bake.libraries_child", str(scene.site))
    own = scene.packages.bitsandbytes
    # bitsandbytes' one for this torch must load: nothing excuses it.
    return judge(tried_in(ran.out), ran.problem, Path(own.file).name if own else "")


def tried_in(out: str) -> list[Tried]:
    """What the child told; where it was killed, its last line may be cut off."""
    lines = out.splitlines(keepends=True)
    return [Tried(**json.loads(line)) for line in lines if line.endswith("\n")]


def judge(tried: Sequence[Tried], problem: str, needed: str) -> Finding:
    """What was loaded; `problem` says why that ended before the last file.

    `needed` is the name of a file that must be, whatever it matches.
    """
    expected = "every library loads, but for the driver's and what no boot opens"
    bad, waiting, idle = [], [], dict.fromkeys((each.why for each in IDLE), 0)
    for each in tried:
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
    if problem or not tried:
        bad.append(f"not all were tried: {problem}" if problem else "no library was found")
    if bad:
        return failed(
            f"{len(bad)} of {len(tried)} native libraries do not load",
            expected=expected,
            actual=listed(bad, len(bad), between="; "),
            next_step="install the lock as a whole, and the package of the distribution that has a "
            "missing library; a file that no boot opens may be taken out (docker/slim.txt)",
        )
    loaded = len(tried) - len(waiting) - sum(idle.values())
    parts = [f"{loaded} of {len(tried)} load, with every symbol"]
    parts += [f"{len(waiting)} wait for a driver ({', '.join(waiting)})"] if waiting else []
    lacking = ", ".join(f"{number} {why}" for why, number in idle.items() if number)
    parts += [f"what no boot opens lacks its own: {lacking}"] if lacking else []
    return passed("; ".join(parts), expected=expected)


def _missing(each: Tried) -> tuple[str, ...]:
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


def _said(each: Tried, missing: list[str]) -> str:
    """The loader's words begin with the path once more."""
    if missing:
        return f"lacks {', '.join(missing)}"
    return each.error.removeprefix(f"{each.path}: ").rpartition(f"{each.path}: ")[2]
