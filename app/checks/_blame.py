"""Whose fault a number is that is none: the file's, the cast's, or the device's."""

from __future__ import annotations

from app.facts.headroom import FLOAT16_MAX
from app.facts.numerics import NotFinite, WeightFacts
from app.facts.words import listed
from app.outcome import Fault
from app.plan import Plan

NODE_STEP = "run the boot on another node; if it passes there, take this one out of service"


def blame(found: tuple[NotFinite, ...], plan: Plan) -> tuple[Fault, str, str]:
    """What made them so, by what the checkpoint's file holds under the same name."""
    if any(entry.file is not None and not entry.file.finite for entry in found):
        step = "use another copy or revision of the checkpoint"
        return Fault.DATA_INVALID, "they are not finite in the file either", step
    if all(_cast_overflow(entry, plan) for entry in found):
        step = "use hardware that computes in bfloat16, or a checkpoint whose weights fit float16"
        return Fault.PRECISION, "a cast to float16 overflowed", step
    if all(_packing_overflow(entry) for entry in found):
        step = "use another copy or revision of the checkpoint"
        return Fault.DATA_INVALID, "the file's values are too large to be packed", step
    return Fault.NUMERICS, "the file's values are finite or not known", NODE_STEP


def _cast_overflow(entry: NotFinite, plan: Plan) -> bool:
    """Not finite by way of float16, where the file holds more than float16 can.

    A scale was then computed of infinities (as NaN where scales are packed too), and a norm may
    have been brought up to float32 afterwards. Without the file's tensor an infinity, and no NaN,
    in float16 is taken for the cast, which looks nowhere at what it does; a broken device does not
    only make clean infinities.
    """
    beyond = entry.file is not None and entry.file.largest > FLOAT16_MAX
    if entry.where == "absmax":
        return beyond and plan.profile.compute_dtype == "float16"
    if entry.n_nan:
        return False
    if entry.dtype == "float16":
        return beyond or entry.file is None
    return beyond and (entry.dtype, plan.profile.compute_dtype) == ("float32", "float16")


def _packing_overflow(entry: NotFinite) -> bool:
    """A scale that the loader computed of weights out of all proportion."""
    return entry.where == "absmax" and entry.file is not None and entry.file.largest > FLOAT16_MAX


def suspects(weights: WeightFacts) -> str:
    """Weights that are finite and explain broken steps by themselves; empty when there are none.

    Those that the file holds otherwise are none: `weights_as_in_file` names them.
    """
    largest = f"{weights.largest_name} holds {weights.largest_magnitude}"
    zeros = [name for name in weights.all_zero if name not in weights.unlike_file]
    told = [largest] if _too_large(weights) else []
    told += [f"nothing but zeros in {listed(zeros)}"] if zeros else []
    return "; ".join(told)


def _too_large(weights: WeightFacts) -> bool:
    """Checkpoints hold a few hundreds at most; beyond float16 is out of proportion in any dtype.

    A fresh adapter is in no file.
    """
    beyond = (weights.largest_magnitude or 0.0) > FLOAT16_MAX
    ours = ".lora_" in weights.largest_name
    return beyond and not ours and weights.largest_name not in weights.unlike_file


def blame_steps(weights: WeightFacts, plan: Plan) -> tuple[Fault, str, str]:
    """Whose fault numbers are that training made of finite weights: fault, why, next step.

    Weights out of proportion explain them, and so do matrices of zeros, on every node; nothing else
    in the file is known to.
    """
    empty = set(weights.zero_matrices) - set(weights.unlike_file)
    if _too_large(weights) or empty:
        step = "use another copy or revision of the checkpoint"
        return Fault.DATA_INVALID, f"suspected weights: {suspects(weights)}", step
    if plan.profile.needs_gpu:
        return Fault.NUMERICS, "", NODE_STEP
    largest = f"{weights.largest_magnitude} in {weights.largest_name}"
    look = "check the numbers in config.json (norm epsilon, rope theta, scaling), then"
    return Fault.NUMERICS, f"the weights are finite, largest {largest}", f"{look} {NODE_STEP}"
