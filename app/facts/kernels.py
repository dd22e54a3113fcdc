"""Facts of real kernels that were run on the device. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from app.outcome import Finding


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel of one library, with inputs whose result is known.

    `first_s` includes what the first call loads or compiles, `again_s` does not. `wrong` is what
    came out in the place of what must, `failure` what an exception amounts to; `skipped` says why
    it was not tried.
    """

    library: str
    name: str
    first_s: float = 0.0
    again_s: float = 0.0
    wrong: str = ""
    failure: Finding | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernels that were tried, on which device (its name, or `cpu`)."""

    device: str
    runs: tuple[KernelRun, ...] = ()
