"""The report's `numerics`: what the device computes, and how it was proven.

Values are None where they are not finite: JSON has no NaN, and the check says so.
"""

from __future__ import annotations

import math

from pydantic import Field

from app.sections import Section


def finite(value: float) -> float | None:
    """The value as JSON can hold it."""
    return value if math.isfinite(value) else None


class Weights(Section):
    """The finite scan of parameters, persistent buffers and quant-state scales."""

    n_scanned: int
    n_not_finite: int
    not_finite: list[str] = Field(default_factory=list)  # the first ten
    largest_magnitude: float | None = None
    largest_name: str = ""
    seconds: float = 0.0


class CastTarget(Section):
    """What going to one dtype does to the checkpoint's values, counted; worst tensors by name."""

    dtype: str
    n_tensors: int
    n_values: int
    n_overflow: int
    n_zero: int
    n_subnormal: int
    n_not_finite: int = 0  # in the file already
    largest: float | None = None
    largest_name: str = ""
    overflowing: list[str] = Field(default_factory=list)  # the first ten


class Cast(Section):
    """The cast from the file's dtype. `n_exact` tensors lose nothing, by their dtypes alone."""

    targets: list[CastTarget] = Field(default_factory=list)
    n_exact: int = 0
    n_bytes: int = 0
    seconds: float = 0.0


class Nf4Kind(Section):
    """Weights of one shape and packing, of which one was unpacked and compared bit for bit."""

    name: str
    shape: list[int]
    blocksize: int
    nested_blocksize: int | None = None
    dtype: str
    by: str
    n_layers: int
    n_compared: int
    n_different: int


class Nf4Product(Section):
    """A 4-bit product against float64: relative error, root mean square, and what is allowed."""

    name: str
    of: str  # output, or input gradient
    rows: int
    dtype: str
    error: float | None
    tolerance: float


class Nf4(Section):
    """Unpacking and multiplying packed weights on the device, against references on the host."""

    kinds: list[Nf4Kind] = Field(default_factory=list)
    products: list[Nf4Product] = Field(default_factory=list)
    n_scales: int = 0
    n_changed: int = 0
    seconds: float = 0.0


class Steps(Section):
    """Training steps on one fixed, seeded batch."""

    n_steps: int
    learning_rate: float
    arithmetic: str = ""
    gradient_checkpointing: str = ""
    n_tokens: int  # of the batch
    modalities: list[str] = Field(default_factory=list)
    losses: list[float | None] = Field(default_factory=list)
    gradient_norms: list[float | None] = Field(default_factory=list)
    n_skipped: int = 0  # by the gradient scaler
    n_pairs: int
    n_pairs_with_gradient: int
    n_pairs_unreachable: int  # by this batch, with the reason in the check
    base_loss: float | None = None  # the same batch without the adapter
    peak_bytes: int | None = None  # of the device, while stepping; of a rehearsal the process's
    forecast_low_bytes: int | None = None  # for a batch of this length
    forecast_high_bytes: int | None = None
    tokens_per_s: float | None = None
    seconds: float = 0.0


class Generation(Section):
    """Greedy tokens after the chat template, with the adapter as it was after the steps."""

    n_tokens: int
    tokens: list[int] = Field(default_factory=list)
    largest_logit: float | None = None
    problem: str = ""  # why the model cannot generate
    seconds: float = 0.0


class ClassHeadroom(Section):
    """The largest value of a module class, and the powers of two up to float16's largest number."""

    module_class: str
    name: str
    dtype: str
    largest: float | None
    bits: float | None


class Headroom(Section):
    """Activations (forward) and their gradients (backward): the worst five of each."""

    n_modules: int
    n_classes: int
    forward: list[ClassHeadroom] = Field(default_factory=list)
    backward: list[ClassHeadroom] = Field(default_factory=list)
    seconds: float = 0.0


class Speed(Section):
    """A product of two matrices of `side` and a copy, in the compute dtype.

    `matmul_flops` and `float32_flops` are floating operations per second, `copy_bytes` bytes read
    and written per second.
    """

    device: str
    dtype: str
    side: int
    matmul_flops: float
    float32_flops: float
    copy_bytes: float
    seconds: float = 0.0


class Fingerprint(Section):
    """Two digests: of the loaded bytes, and of logits. Compare logits of equal keys only."""

    weights: str
    hashed: str
    n_tensors: int
    n_bytes: int
    logits: str
    key: str
    device: str
    stack: str
    threads: int
    n_tokens: int
    seconds: float = 0.0


class Numerics(Section):
    """What the device computes; a part that was not reached is None."""

    weights: Weights | None = None
    cast: Cast | None = None
    nf4: Nf4 | None = None
    steps: Steps | None = None
    generation: Generation | None = None
    headroom: Headroom | None = None
    speed: Speed | None = None
    fingerprint: Fingerprint | None = None
