"""Whose fault a number is that is none: the file's, the cast's, or the device's."""

from __future__ import annotations

from app.facts.numerics import NotFinite
from app.outcome import Fault

_FLOAT16_MAX = 65504.0
NODE_STEP = "run the boot on another node; if it passes there, take this one out of service"


def blame(found: tuple[NotFinite, ...]) -> tuple[Fault, str, str]:
    """What made them so, by what the checkpoint's file holds under the same name."""
    if any(entry.file is not None and not entry.file.finite for entry in found):
        step = "use another copy or revision of the checkpoint"
        return Fault.DATA_INVALID, "they are not finite in the file either", step
    if all(_cast_overflow(entry) for entry in found):
        step = "use hardware that computes in bfloat16, or a checkpoint whose weights fit float16"
        return Fault.PRECISION, "a cast to float16 overflowed", step
    return Fault.NUMERICS, "the file's values are finite or not known", NODE_STEP


def _cast_overflow(entry: NotFinite) -> bool:
    """Infinite in float16 where the file holds more than float16 can.

    Without the file's tensor an infinity, and no NaN, in float16 is taken for the cast, which
    looks nowhere at what it does; a broken device does not only make clean infinities.
    """
    if entry.dtype != "float16" or entry.n_nan:
        return False
    return entry.file is None or entry.file.largest > _FLOAT16_MAX
