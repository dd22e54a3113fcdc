"""Facts of the numerics stage: are the numbers numbers, and does a training step work.

A leaf: stdlib and other facts only. Floats are as measured, NaN and infinity included; the report
turns those into None. Times are seconds, sizes bytes, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from app.facts.headroom import HeadroomFacts

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

    Of scales that the loader computed the file's tensor is the weight.
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
    `all_zero` weights of nothing but zeros (a healthy norm may be that: Gemma's adds one),
    `zero_matrices` those of them that no healthy model has;
    `unlike_file` those that hold zeros alone, or more than float16 can, and in the file do not.
    """

    n_scanned: int = 0
    not_finite: tuple[NotFinite, ...] = ()
    not_judged: tuple[str, ...] = ()
    on_meta: tuple[str, ...] = ()
    largest_magnitude: float | None = None
    largest_name: str = ""
    all_zero: tuple[str, ...] = ()
    zero_matrices: tuple[str, ...] = ()
    unlike_file: tuple[str, ...] = ()
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
class Recomputed:
    """Gradient checkpointing as it is: a layer that it covers runs once more for its gradients.

    Counted over the layers that hold a LoRA pair. `offloaded`: Unsloth moves what lies between the
    layers to the host.
    """

    n_layers: int = 0
    n_again: int = 0
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on the device. `peak` is the most while stepping, what is not torch's included.

    On a CPU it is the process's most so far. `low` and `high` are the forecast's bounds for a batch
    of this length, None where there is no forecast, and `no_forecast` says why.
    """

    peak: int | None = None
    low: int | None = None
    high: int | None = None
    no_forecast: str = ""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Training steps on one fixed batch. `arithmetic` says how they were computed, and why.

    `base_loss` is without the adapter, `start_loss` with it, both before any step and without
    dropout; where they differ the base's was computed once more, as `base_loss_again`. `losses` and
    `gradient_norms` have one value per step, in order.
    """

    learning_rate: float
    arithmetic: str
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
    tokens_per_s: float | None = None  # of the steps after the first, where there are several
    recomputed: Recomputed = Recomputed()
    memory: MemoryUse = MemoryUse()
    base_loss_again: float | None = None

    @property
    def finite(self) -> bool:
        """Whether every loss and gradient was a number."""
        values = (self.base_loss, self.start_loss, *self.losses, *self.gradient_norms)
        return not self.bad_gradients and all(isfinite(value) for value in values)


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """Greedy tokens after a prompt of `n_prompt`, with the trained adapter.

    `largest` is the largest magnitude of each token's logits. `problem` is the exception's line
    where the model cannot generate, `note` why the prompt is no chat.
    """

    n_prompt: int
    tokens: tuple[int, ...] = ()
    largest: tuple[float, ...] = ()
    note: str = ""
    problem: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LeftFacts:
    """What is not as it was before the first step, of `n_compared` things; `kept_bytes` on a GPU.

    Libraries keep work space of their own from their first use on; `workspace_bytes` is what they
    may keep.
    """

    changed: tuple[str, ...] = ()
    n_compared: int = 0
    kept_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NumericsFacts:
    """All of the stage. `steps` None with the reason when no step could be tried.

    `generation` None when the steps were already no numbers.
    """

    weights: WeightFacts
    steps: StepFacts | None = None
    no_steps_reason: str = ""
    generation: GenerationFacts | None = None
    headroom: HeadroomFacts | None = None
    left: LeftFacts | None = None
