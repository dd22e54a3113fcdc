"""Facts of the cast: what going from the checkpoint's dtype to another one does to each tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorCast:
    """One floating tensor of the checkpoint, counted in values. `largest` is a finite magnitude.

    `held` is the dtype that the model holds it in, or packed it from; empty where the model does
    not have it. Only where it is the target did the cast take place.
    """

    name: str
    dtype: str  # of the file
    target: str
    held: str
    n: int
    n_overflow: int = 0  # finite in the file, infinite in the target
    n_zero: int = 0  # not zero in the file, zero in the target
    n_subnormal: int = 0  # in the target
    n_not_finite: int = 0  # in the file already
    largest: float = 0.0

    @property
    def took_place(self) -> bool:
        """Whether the model went through the target with it."""
        return self.held == self.target


@dataclass(frozen=True, slots=True)
class CastFacts:
    """All tensors whose cast is not harmless by the two dtypes alone, per target.

    `n_exact` counts the tensors that are harmless in every target: no value can overflow or come
    near zero, and no byte of them is read. `unread` names files that could not be read to their
    end, with the reason.
    """

    tensors: tuple[TensorCast, ...] = ()
    n_exact: int = 0
    n_bytes: int = 0  # read
    unread: tuple[str, ...] = ()
    reason: str = ""  # why nothing was looked at
    seconds: float = 0.0
