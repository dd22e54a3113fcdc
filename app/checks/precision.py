"""Judges of precision: each asks one rule of `_contract`, after load and after the adapter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from app.checks import Check
from app.checks import _contract as contract
from app.checks._contract import Rule, offenders
from app.facts.census import Census
from app.facts.names import origin_name
from app.facts.words import NAMED, listed
from app.outcome import Fault, Finding, Severity, failed, passed, warned
from app.plan import Plan
from app.sections import (
    ObservedPrecision,
    Offender,
    Precision,
    RequestedPrecision,
    ResolvedPrecision,
)

_IN_REASON = 3

# Only this one is a warning: what a file declares about itself can be stale without harm.
_WARNS = ("precision.config_dtypes",)


def _judge(
    rule: Rule, good: str | Callable[[Census], str], next_step: str, cause: str
) -> Check[Census]:
    """A check that fails with the rule's offenders, or says what is good."""
    name = f"precision.{rule.__name__}"
    severity = Severity.WARNING if name in _WARNS else Severity.CRITICAL

    def judge(census: Census, plan: Plan) -> Finding:
        found = list(rule(census, plan))
        if not found:
            return passed(good if isinstance(good, str) else good(census))
        say = warned if severity is Severity.WARNING else failed
        kinds = Counter(each.category for each in found)
        counted = ", ".join(f"{n} {category}" for category, n in kinds.items())
        return say(
            f"{counted}: {listed(map(_named, found), _IN_REASON)}",
            expected=found[0].expected,
            actual=listed(map(_named, found), between="; "),
            next_step=next_step,
        )

    source = "the precision contract: " + " ".join((rule.__doc__ or "").split())
    return Check(name, Fault.PRECISION, source, judge, severity, cause, next_step)


def _named(offender: Offender) -> str:
    return f"{offender.name} ({offender.actual})"


def _counted(census: Census) -> str:
    """What the stage's one line in the verdict says when all is well."""
    n_parameters, n_buffers = len(census.parameters), len(census.buffers)
    packed = f"{len(census.packed)} layers in 4 bits" if census.packed else "nothing in 4 bits"
    return f"{n_parameters} parameters and {n_buffers} buffers judged, {packed}"


def observed(census: Census) -> ObservedPrecision:
    """One census as counts for the report."""
    dtypes: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in census.tensors:
        dtypes[tensor.category][tensor.dtype] += 1
    linear = [layer for layer in census.packed if layer.linear]
    return ObservedPrecision(
        dtypes={
            category: dict(sorted(found.items())) for category, found in sorted(dtypes.items())
        },
        n_parameters=len(census.parameters),
        n_buffers=len(census.buffers),
        n_packed_layers=len(census.packed),
        n_dequantised=sum(each.fate == "dequantised" for each in census.fates),
        compute_dtypes=dict(Counter(layer.compute_dtype or "none" for layer in linear)),
        quant_state_dtypes=dict(
            Counter(layer.state.dtype if layer.state else "none" for layer in census.packed)
        ),
        devices=dict(Counter(tensor.device for tensor in census.tensors)),
        forced_float32=census.forced_float32,
        model_dtype=census.model_dtype,
        not_judged=[
            tensor.name
            for tensor in census.buffers
            if not tensor.persistent and tensor.dtype.startswith(("float", "bfloat"))
        ],
        seconds=census.seconds,
    )


def section(taken: Sequence[Census], plan: Plan) -> Precision:
    """Requested, resolved and observed; offenders of all looks, each once, the first ten.

    Looks are taken after the load, after the adapter, and after the steps of the numerics stage.
    """
    profile = plan.profile
    looks = dict(zip(("load", "adapter", "numerics"), taken, strict=False))
    found = {
        (origin_name(each.name), each.actual): each
        for census in looks.values()
        for each in offenders(census, plan)
    }
    return Precision(
        requested=RequestedPrecision(hardware=profile.name, load_in_4bit=plan.request.load_in_4bit),
        resolved=ResolvedPrecision(
            compute_dtype=profile.compute_dtype,
            device=profile.device,
            reason=profile.dtype_reason,
            forced_float32=contract.expects_forced_float32(taken[0], plan),
        ),
        observed={name: observed(census) for name, census in looks.items()},
        offenders=list(found.values())[:NAMED],
        n_offenders=dict(Counter(each.category for each in found.values())),
    )


_CAST = "another library cast the model, or the profile is another than the image's: see offenders"
_RELOAD = (
    "load through FastModel with the profile's dtype; a plain transformers load keeps the file's"
)
_CHECKPOINT = "use a checkpoint that Unsloth packed, or set BOOT_LOAD_IN_4BIT to what it is"
_PLACE = "free the device's memory, and let nothing offload or move parts of the model"

CHECKS: tuple[Check[Census], ...] = (
    _judge(
        contract.has_parameters,
        _counted,
        _CHECKPOINT,
        "the loader gave back a shell: an empty module, or one without weights of its own",
    ),
    _judge(
        contract.forbidden_dtypes,
        "the forbidden 16-bit type is nowhere",
        _CAST,
        "the checkpoint's own type survived the load, or a library cast a part of the model: "
        "bfloat16 on a V100, float16 on an H100",
    ),
    _judge(
        contract.wide_dtypes,
        "float64 is nowhere",
        _CAST,
        "a buffer made by numpy or by a default dtype of float64",
    ),
    _judge(
        contract.allowed_dtypes,
        "no other floating type",
        _CAST,
        "a checkpoint in float8 or its like that the loader did not convert",
    ),
    _judge(
        contract.wanted_dtype,
        "the wanted type is there",
        _RELOAD,
        "everything was loaded in float32: slow, and twice the memory",
    ),
    _judge(
        contract.packed_layers,
        "packed as the checkpoint and the request say",
        _CHECKPOINT,
        "weights that the file packs were made anew at random, or layers that should be in 4 bits "
        "are not",
    ),
    _judge(
        contract.quant_states,
        "every packed layer has its nf4 quant state",
        _CHECKPOINT,
        "versions of transformers and bitsandbytes that lose the quant state, or a checkpoint "
        "packed as fp4",
    ),
    _judge(
        contract.quant_dtypes,
        "compute and quant-state types agree with the profile",
        _RELOAD,
        "the packed file's own compute type was kept, so layers unpack to another type than they "
        "compute in",
    ),
    _judge(
        contract.lora_dtypes,
        "LoRA is float32, where there is one",
        _CAST,
        "the adapter was made in 16 bits, or cast by a trainer's preparation",
    ),
    _judge(
        contract.devices,
        "everything is on one device",
        _PLACE,
        "too little free memory, so that parts of the model stayed on meta or in host memory",
    ),
    _judge(
        contract.device_map,
        "nothing is offloaded",
        _PLACE,
        "a device map that spreads or offloads the model, as `auto` does when memory is short",
    ),
    _judge(
        contract.config_dtypes,
        "configurations declare the profile's types",
        _RELOAD,
        "config.json declares the type that the model was saved in; trainers read it",
    ),
    _judge(
        contract.forced_float32,
        "Unsloth's float32 path is as it must be for this family",
        "check the versions of unsloth and unsloth_zoo against the lock",
        "a family that overflows in float16 without Unsloth's float32 path, or the path where it "
        "does not belong",
    ),
)
