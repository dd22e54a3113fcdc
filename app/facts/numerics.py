"""Facts of the numerics stage: are the numbers numbers, and does a training step work.

A leaf: stdlib only. Floats are as measured, NaN and infinity included; the report turns those into
None. Times are seconds, sizes bytes, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WhereT = Literal["parameter", "buffer", "absmax"]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """The same tensor in the checkpoint, read only when the one in memory is not finite."""

    dtype: str  # torch's name
    finite: bool
    largest: float  # magnitude; infinite when `finite` is False


@dataclass(frozen=True, slots=True)
class NotFinite:
    """One tensor that holds NaN or infinity. `file` is None where the file's tensor is not known.

    `quantised` marks scales that the loader computed, so that the file's tensor is the weight.
    """

    name: str
    where: WhereT
    dtype: str
    n_nan: int
    n_inf: int
    file: FileTensor | None = None


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """The finite scan. Integer tensors are no part of it, packed ones are judged by their scales.

    `not_judged` are non-persistent buffers that are not finite, `on_meta` tensors without data,
    `all_zero` weights of nothing but zeros (a healthy norm may be that: Gemma's adds one).
    """

    n_scanned: int = 0
    n_bytes: int = 0
    not_finite: tuple[NotFinite, ...] = ()
    not_judged: tuple[str, ...] = ()
    on_meta: tuple[str, ...] = ()
    largest_magnitude: float | None = None
    largest_name: str = ""
    all_zero: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PairGradient:
    """Whether A and B of one LoRA pair ever got a gradient that is not zero, over all steps.

    `unreachable` says why this batch cannot reach the pair; empty when it should.
    """

    name: str
    a: bool
    b: bool
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Training steps on one fixed batch. `arithmetic` says how they were computed, and why.

    `base_loss` is without the adapter, `start_loss` with it, both before any step and without
    dropout; `losses` and `gradient_norms` have one value per step, in order.
    """

    learning_rate: float
    arithmetic: str
    compute_dtype: str
    n_tokens: int
    n_supervised: int
    modalities: tuple[str, ...]
    notes: tuple[str, ...]
    base_loss: float
    start_loss: float
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    bad_gradients: tuple[str, ...]
    pairs: tuple[PairGradient, ...]
    n_skipped: int = 0  # steps that the float16 gradient scaler threw away to find its scale
    moved: tuple[str, ...] = ()
    n_watched: int = 0  # tensors of the base that were compared before and after
    seconds: float = 0.0  # the steps alone


@dataclass(frozen=True, slots=True)
class NumericsFacts:
    """All of the stage. `steps` None with the reason when no step could be tried."""

    weights: WeightFacts
    steps: StepFacts | None = None
    no_steps_reason: str = ""
