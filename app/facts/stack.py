"""Facts of the software stack, read in the worker once Unsloth is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.outcome import Finding


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What computes. `packages` maps a distribution to its version from metadata.

    `missing` are packages a boot cannot do without, `broken` those that are there and cannot be
    imported, with the finding that says why; `architectures` what torch's wheel holds
    kernels for, `sm_90` or `compute_90`; `bnb_library` the class of bitsandbytes' native library
    and `bnb_problem` its own words where it could not be loaded.
    """

    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    broken: Mapping[str, Finding] = field(default_factory=dict)
    cuda: str | None = None  # torch.version.cuda, None for a CPU wheel
    cudnn: int | None = None
    architectures: tuple[str, ...] = ()
    device_type: str = ""  # unsloth.DEVICE_TYPE
    bnb_library: str = ""
    bnb_compiled_with_cuda: bool = False
    bnb_problem: str = ""
