"""Facts of the installed packages as their files show them. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Without one of these a boot of the default model cannot work. timm and torchvision are no
# dependencies of unsloth, but Gemma 3n's vision tower needs both. Import and distribution differ
# by `-` and `_` only.
REQUIRED_PACKAGES: tuple[str, ...] = (
    *("torch", "torchvision", "triton", "unsloth", "unsloth_zoo", "transformers", "peft"),
    *("bitsandbytes", "trl", "accelerate", "datasets", "timm", "tokenizers", "safetensors"),
    *("huggingface_hub", "numpy"),
)
# Recorded where present: each has broken a boot elsewhere, and none is needed by every profile.
OPTIONAL_PACKAGES: tuple[str, ...] = (
    *("torchao", "xformers", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)


def canonical(name: str) -> str:
    """A distribution's name in the one spelling that the packaging standards compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def compares(left: Sequence[int], sign: str, right: Sequence[int]) -> bool:
    """Compare release numbers as versions are: 2.10 is above 2.9, and 2.10 equals 2.10.0."""
    length = max(len(left), len(right))
    a, b = ([*each, *(0,) * (length - len(each))] for each in (left, right))
    return {
        "==": a == b,
        "!=": a != b,
        "<": a < b,
        "<=": a <= b,
        ">": a > b,
        ">=": a >= b,
    }[sign]


@dataclass(frozen=True, slots=True)
class Shadow:
    """A module that the stack would import from a place that comes before its own.

    `taken` is the folder that comes first, `place` what that is (PYTHONPATH, a user's site),
    `hidden` the folder of the copy that is not used, `installed` whether the first one lies among
    records of installed packages, and is no loose file.
    """

    module: str
    taken: str
    place: str
    hidden: str
    installed: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """One requirement that a package's metadata states without a condition: `>=1.5.0,<2.0`."""

    package: str
    on: str
    clauses: str = ""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """torch/version.py: `cuda` None for a wheel without CUDA, `other` is `hip` or `xpu`.

    `problem` says why it could not be read.
    """

    cuda: str | None = None
    other: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class XformersBuild:
    """The version of torch that xFormers was built for, and the devices it has kernels for."""

    torch: str
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BitsandbytesFacts:
    """The native library that bitsandbytes would load for torch's CUDA, by its own rule (0.50).

    `override` is BNB_CUDA_VERSION as set. `wanted` is the file's name, `file` its path where it is
    there. `exact` is False where another minor version of CUDA stands in. `available` are the
    names of all CUDA libraries; `problem` says why `file` is no library.
    """

    override: str | None = None
    wanted: str = ""
    file: str = ""
    exact: bool = True
    available: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NativeFacts:
    """A compiled library of the stack, as the loader would see it.

    `lacks` are libraries that it needs and that are nowhere the loader looks; `versions` symbol
    versions that it needs and the library found does not offer (`GLIBC_2.38 (libc.so.6)`).
    `problem` says why it could not be read.
    """

    path: str
    lacks: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PackagesFacts:
    """What is installed along the search path.

    `versions` maps a distribution (canonical name) to the version of the record that comes first.
    `missing` of the required packages have no record, `gone` have one and no importable module.
    `doubled` maps a name to the versions that one folder records. `glibc` is this process's,
    `libstdcxx` the file that the loader would take, empty where it finds none.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    doubled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shadows: tuple[Shadow, ...] = ()
    needs: tuple[Needs, ...] = ()
    torch: TorchBuild | None = None
    torch_architectures: tuple[str, ...] = ()
    bitsandbytes: BitsandbytesFacts | None = None
    xformers: XformersBuild | None = None
    native: tuple[NativeFacts, ...] = ()
    glibc: str = ""
    libstdcxx: str = ""
    libstdcxx_by: str = ""  # the variable that put it first, empty where none did
