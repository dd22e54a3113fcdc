"""Judges of the forecast of memory: does what is coming fit into what there is.

Only what is certain fails: the lower bound of weights and context. Everything else warns.
"""

from __future__ import annotations

from app.checks import Check
from app.facts.forecast import ForecastFacts, MemoryPart, PlaceT, Pool
from app.facts.host import size
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

_QUIET = GIB  # in use on an idle device by a context of ours and the driver
_LARGE = 0.05  # of the whole need: parts below it are not worth lowering
_BY_LENGTH = frozenset({"hidden states", "one layer", "attention scores", "logits"})
_BY_RANK = frozenset({"LoRA", "gradients", "optimizer"})


def device_memory(facts: ForecastFacts, plan: Plan) -> Finding:
    """The model and its training must fit the device; on a rehearsal that is the host."""
    pool = facts.device
    why = facts.problem or ("" if pool.total_bytes is not None else _unknown(pool))
    if why or pool.total_bytes is None:
        return skipped(f"no forecast of the device's memory: {why}")
    expected = _need(facts, "device")
    sure = facts.sure("device")
    if sure > pool.total_bytes + pool.swap_bytes:
        return failed(
            f"the model alone takes at least {size(sure)}, and {one_line(pool.name)} has "
            f"{size(pool.total_bytes)} in all",
            expected=expected,
            actual=_there(pool),
            next_step=_other_place(facts, plan),
        )
    if pool.free_bytes is None:
        return skipped(f"{expected}; {_unknown(pool)}")
    # What is free was read inside a context, which then counts as taken.
    taken = (part for part in facts.parts if part.place == "device" and part.name in _TAKEN)
    weights = sure - sum(part.low_bytes for part in taken)
    if weights > pool.free_bytes:
        return _occupied(facts, plan, weights, expected)
    if facts.high("device") > pool.free_bytes:
        return _tight(facts, plan, expected)
    reason = f"{_range(facts, 'device')} of {_there(pool)}"
    return passed(reason + _untrained(facts), expected=expected, actual=_there(pool))


_TAKEN = frozenset({"CUDA context", "libraries"})


def _occupied(facts: ForecastFacts, plan: Plan, weights: int, expected: str) -> Finding:
    """It would fit, were it not for others. A host can still make room, so there it warns."""
    pool = facts.device
    reason = (
        f"the weights alone take at least {size(weights)}, and only {size(pool.free_bytes)} of "
        f"{one_line(pool.name)} are free"
    )
    actual = _there(pool)
    if facts.device_is_host:
        step = "end other programs, raise the limit, or rehearse a smaller model"
        return warned(reason, expected=expected, actual=actual, next_step=step)
    held = f"; held by {listed(pool.holders)}" if pool.holders else ""
    if not held and (pool.total_bytes or 0) - (pool.free_bytes or 0) < _QUIET:
        # Nobody else is there: it is the driver and our own context, and waiting helps nothing.
        step = _other_place(facts, plan)
        return failed(reason, expected=expected, actual=actual, next_step=step)
    return failed(
        reason + held,
        expected=expected,
        actual=actual + held,
        next_step="wait for the GPU's other users to end, or take another GPU",
        fault=Fault.TEMPORARY,
    )


def _tight(facts: ForecastFacts, plan: Plan, expected: str) -> Finding:
    """It loads; whether it trains shows only then."""
    pool = facts.device
    likely = "will hardly fit" if facts.low("device") > (pool.free_bytes or 0) else "may not fit"
    return warned(
        f"training on {facts.tokens} tokens {likely}: {_range(facts, 'device')}, and "
        f"{size(pool.free_bytes)} of {one_line(pool.name)} are free",
        expected=expected,
        actual=_there(pool),
        next_step=_lower(facts, plan),
    )


def host_memory(facts: ForecastFacts, _plan: Plan) -> Finding:
    """What loading needs of the host; running out there ends in a kill without a word."""
    pool = facts.host
    if facts.device_is_host and not facts.problem:
        return skipped("on this profile the host is the device: see checkpoint.device_memory")
    why = facts.problem or ("" if pool.total_bytes is not None else _unknown(pool))
    if why or pool.total_bytes is None:
        return skipped(f"no forecast of the host's memory: {why}")
    expected, sure = _need(facts, "host"), facts.sure("host")
    step = "raise the container's memory limit (docker: --memory; Kubernetes: resources.limits)"
    if sure > pool.total_bytes + pool.swap_bytes:
        return failed(
            f"loading takes at least {size(sure)} of the host, and {one_line(pool.name)} is "
            f"{size(pool.total_bytes)}",
            expected=expected,
            actual=_there(pool),
            next_step=step,
        )
    if pool.free_bytes is None:
        return skipped(f"{expected}; {_unknown(pool)}")
    if facts.high("host") > pool.free_bytes:
        return warned(
            f"the host's memory may not do: {_range(facts, 'host')}, and "
            f"{size(pool.free_bytes)} can be had",
            expected=expected,
            actual=_there(pool),
            next_step=f"{step}, or lower BOOT_MAX_SEQ_LENGTH",
        )
    reason = f"{_range(facts, 'host')} of {_there(pool)}"
    return passed(reason, expected=expected, actual=_there(pool))


def _unknown(pool: Pool) -> str:
    return pool.problem or f"how much memory {one_line(pool.name)} has was not read"


def _range(facts: ForecastFacts, place: PlaceT) -> str:
    return f"{size(facts.low(place))} to {size(facts.high(place))} are needed"


def _need(facts: ForecastFacts, place: PlaceT) -> str:
    """Both bounds, with the largest parts."""
    parts = sorted(
        (part for part in facts.parts if part.place == place), key=lambda part: -part.high_bytes
    )
    largest = ", ".join(_bounds(part) for part in parts[:4] if part.high_bytes)
    return f"{_range(facts, place)} for {facts.tokens} tokens ({largest})"


def _bounds(part: MemoryPart) -> str:
    if part.low_bytes == part.high_bytes:
        return f"{part.name} {size(part.low_bytes)}"
    return f"{part.name} {size(part.low_bytes)} to {size(part.high_bytes)}"


def _there(pool: Pool) -> str:
    return f"{one_line(pool.name)}: {size(pool.free_bytes)} free of {size(pool.total_bytes)}"


def _untrained(facts: ForecastFacts) -> str:
    return f"; nothing is said of training: {facts.no_training}" if facts.no_training else ""


def _other_place(facts: ForecastFacts, plan: Plan) -> str:
    where = "a machine" if facts.device_is_host else "a card"
    step = f"take {where} with more memory, or a smaller model"
    return step if plan.request.load_in_4bit else f"{step}, or set BOOT_LOAD_IN_4BIT=true"


def _lower(facts: ForecastFacts, plan: Plan) -> str:
    """What would help, the largest first; nothing that would not."""
    whole = facts.high("device")
    request = plan.request
    by_length = sum(part.high_bytes for part in facts.parts if part.name in _BY_LENGTH)
    by_rank = sum(part.high_bytes for part in facts.parts if part.name in _BY_RANK)
    steps = []
    if facts.fitting_tokens:
        steps.append(f"set BOOT_MAX_SEQ_LENGTH={facts.fitting_tokens}, which fits")
    elif by_length > _LARGE * whole:
        steps.append("lower BOOT_MAX_SEQ_LENGTH")
    if request.use_gradient_checkpointing is False:
        steps.append("set BOOT_USE_GRADIENT_CHECKPOINTING=unsloth")
    if by_rank > _LARGE * whole:
        steps.append(f"lower BOOT_LORA_R={request.lora_r}")
    if not request.load_in_4bit:
        steps.append("set BOOT_LOAD_IN_4BIT=true")
    if not facts.device_is_host:
        steps.append("take a card with more memory that is free")
    return "; or ".join(steps) or "rehearse on a machine with more memory"


CHECKS: tuple[Check[ForecastFacts], ...] = (
    Check(
        "checkpoint.device_memory",
        Fault.HARDWARE_MISMATCH,
        "a forecast from the headers and the settings",
        device_memory,
        cause="The model's weights do not fit the card, or other processes hold what would be "
        "needed. A warning means that weights fit and training at BOOT_MAX_SEQ_LENGTH may not.",
        fix="Take a card with more memory, a smaller model or 4 bits; where others hold the "
        "memory, wait for them or take another GPU; for a warning lower BOOT_MAX_SEQ_LENGTH or "
        "BOOT_LORA_R, or keep BOOT_USE_GRADIENT_CHECKPOINTING=unsloth.",
    ),
    Check(
        "checkpoint.host_memory",
        Fault.HARDWARE_MISMATCH,
        "a forecast from the headers and the settings",
        host_memory,
        cause="The container's memory limit is smaller than what the imports and the load need, "
        "and the kernel would kill the boot without a word (exit 137).",
        fix="Raise the memory limit of the container or the job; with gradient checkpointing "
        "`unsloth` long sequences need host memory too, so lower BOOT_MAX_SEQ_LENGTH else.",
    ),
)
