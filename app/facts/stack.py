"""Facts of the software stack, read in the worker once Unsloth is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.outcome import Finding


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that an imported package was run from.

    `folder` is the one of its distribution's record; `recorded` whether the file lies there,
    `editable` whether it lies in the checkout that the record names.
    """

    module: str
    file: str
    folder: str
    recorded: bool = True
    editable: bool = False


@dataclass(frozen=True, slots=True)
class CodeFolder:
    """Where a library will put the code that it generates.

    `pinned` is False where that is the folder that the library uses unless told otherwise: one for
    all profiles.
    """

    library: str
    path: str
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What computes. `packages` maps a distribution to its version from metadata.

    `missing` are packages a boot cannot do without, `broken` those that are there and cannot be
    imported, with the finding that says why; `architectures` what torch's wheel holds
    kernels for, `sm_90` or `compute_90`; `cudnn` is the library's number and `cudnn_built` the
    release that torch was built with; `bnb_library` the class of bitsandbytes' native library,
    `bnb_file` that library's file, empty where none is loaded, and `bnb_problem` its own words.
    """

    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    broken: Mapping[str, Finding] = field(default_factory=dict)
    cuda: str | None = None  # torch.version.cuda, None for a CPU wheel
    cudnn: int | None = None
    cudnn_built: tuple[int, ...] = ()
    architectures: tuple[str, ...] = ()
    device_type: str = ""  # unsloth.DEVICE_TYPE
    bnb_library: str = ""
    bnb_compiled_with_cuda: bool = False
    bnb_problem: str = ""
    bnb_file: str = ""
    origins: tuple[Origin, ...] = ()
    code_folders: tuple[CodeFolder, ...] = ()
