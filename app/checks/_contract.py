"""The precision contract: rules over a census that name whatever breaks them. Pure, no torch.

Checks and the report's section read the same rules, so they cannot disagree. The design has the
table; dtypes come from the profile's fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from app.facts.census import Census, PackedLayer, TensorFacts
from app.facts.names import origin_name
from app.plan import Plan
from app.sections import Offender

Rule = Callable[[Census, Plan], Iterator[Offender]]

_SCALES = "float32"  # bitsandbytes keeps scales and code books in it, whatever is computed in
_LORA = "float32"  # peft and Unsloth both keep it
_STORAGE = "uint8"
_WIDE = ("float64", "complex128")
_NOWHERE = ("disk", "meta")  # accelerate's words in `hf_device_map`
_BYTES = ("uint8", "int8")  # nothing can read them outside a packed layer


def _floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _is_lora(tensor: TensorFacts) -> bool:
    return tensor.category == "lora" and tensor.kind == "parameter"


def _of(tensor: TensorFacts, expected: str) -> Offender:
    category = f"{tensor.category} buffer" if tensor.kind == "buffer" else tensor.category
    return Offender(name=tensor.name, category=category, expected=expected, actual=tensor.dtype)


def _any_of(dtypes: tuple[str, ...]) -> str:
    return " or ".join(dict.fromkeys(dtypes))


def has_parameters(census: Census, _plan: Plan) -> Iterator[Offender]:
    """A model without parameters proves nothing (the origin counts it as slippage)."""
    if not census.parameters:
        yield Offender(name="model", category="model", expected="parameters", actual="none")
    empty = [each.name for each in census.parameters if each.category == "norm" and not each.numel]
    for name in [*empty, *(each.name for each in census.plain if each.dtype == "none")]:
        yield Offender(name=name, category="model", expected="a weight", actual="none")


def forbidden_dtypes(census: Census, plan: Plan) -> Iterator[Offender]:
    """The forbidden 16-bit type is in no parameter, buffer (persistent or not) or quant state."""
    forbidden = set(plan.profile.forbidden_dtypes) - set(_WIDE)
    allowed = _any_of(plan.profile.float_dtypes)
    yield from (_of(each, allowed) for each in census.tensors if each.dtype in forbidden)


def wide_dtypes(census: Census, plan: Plan) -> Iterator[Offender]:
    """float64 is nowhere: it is always an accident, and slow on every card but these two."""
    allowed = _any_of(plan.profile.float_dtypes)
    yield from (_of(each, allowed) for each in census.tensors if each.dtype in _WIDE)


def allowed_dtypes(census: Census, plan: Plan) -> Iterator[Offender]:
    """Other floating types (float8 and its like) are not in the profile's list either."""
    known = {*plan.profile.float_dtypes, *plan.profile.forbidden_dtypes, *_WIDE}
    for tensor in census.tensors:
        if not _floating(tensor.dtype) or tensor.category == "packed" or _is_lora(tensor):
            continue
        if tensor.category == "quant_state":
            if tensor.dtype != _SCALES:
                yield _of(tensor, _SCALES)
        elif tensor.dtype not in known:
            yield _of(tensor, _any_of(plan.profile.float_dtypes))


def wanted_dtype(census: Census, plan: Plan) -> Iterator[Offender]:
    """The wanted type is there: in compute dtypes when layers are packed, else in parameters."""
    profile = plan.profile
    if census.packed and plan.request.load_in_4bit:
        wanted: tuple[str, ...] = profile.quant_dtypes
        found = {layer.compute_dtype or "none" for layer in census.packed if layer.linear}
    else:
        wanted = (profile.compute_dtype,)
        found = {each.dtype for each in census.parameters if each.category != "lora"}
    if census.parameters and not found & set(wanted):
        actual = _any_of(tuple(sorted(found))) or "none"
        yield Offender(name="model", category="model", expected=_any_of(wanted), actual=actual)


def packed_layers(census: Census, plan: Plan) -> Iterator[Offender]:
    """What the checkpoint packed and the model builds is packed, or equals the checkpoint."""
    if not plan.request.load_in_4bit:
        for layer in census.packed:
            yield Offender(
                name=layer.name, category="packed", expected="not packed", actual="4 bits"
            )
        return
    if census.parameters and not census.packed:
        yield Offender(name="model", category="packed", expected="4-bit layers", actual="none")
    for tensor in census.parameters:
        if tensor.category != "packed" and tensor.dtype in _BYTES:
            yield _of(tensor, "floating, or a packed layer")
    if census.checkpoint_packs:
        yield from _fates(census)
    elif census.checkpoint_packs is False:
        for plain in census.plain:
            if plain.projection or not plain.skipped:
                found = plain.dtype
                yield Offender(name=plain.name, category="packed", expected="4 bits", actual=found)


def _fates(census: Census) -> Iterator[Offender]:
    wrong = {
        "differs": ("the checkpoint's values", "other values"),
        "bytes": ("a layer that can read 4 bits", "packed numbers in a plain layer"),
        "absent": ("a module, or a key that the model ignores", "no module"),
    }
    for each in census.fates:
        expected, actual = wrong.get(each.fate, ("", ""))
        if each.projection and each.fate == "dequantised":
            # Only other modules may be dequantised: those on Unsloth's own skip list.
            expected, actual = "4 bits", "dequantised"
        if expected:
            yield Offender(name=each.name, category="packed", expected=expected, actual=actual)


def quant_states(census: Census, _plan: Plan) -> Iterator[Offender]:
    """Every packed layer is nf4 in bytes, with a quant state, nested as its file says."""
    nested = {each.name: each.nested for each in census.fates}
    for layer in census.packed:
        name = origin_name(f"{layer.name}.weight" if layer.linear else layer.name)
        expected, actual = _state_problem(layer, census, nested=nested.get(name))
        if expected:
            yield Offender(name=layer.name, category="packed", expected=expected, actual=actual)


def _state_problem(layer: PackedLayer, census: Census, *, nested: bool | None) -> tuple[str, str]:
    state = layer.state
    if state is None:
        return "a quant state", "none: its numbers cannot be read"
    if state.quant_type != "nf4":
        return "nf4", state.quant_type
    if {layer.weight_dtype, layer.quant_storage} != {_STORAGE}:
        return _STORAGE, f"{layer.weight_dtype}, storage {layer.quant_storage}"
    if layer.numel != (layer.features + 1) // 2:
        return f"{(layer.features + 1) // 2} bytes", f"{layer.numel} bytes"
    # Quantised on the fly the engine asks for nested scales; a file says what it has.
    wanted = True if nested is None and census.checkpoint_packs is False else nested
    if wanted is not None and state.nested != wanted:
        return ("nested scales" if wanted else "plain scales"), f"nested: {state.nested}"
    scales = _STORAGE if state.nested else _SCALES
    odd = state.absmax_dtype != scales
    return (scales, state.absmax_dtype) if odd else state.problem(layer.shape)


def quant_dtypes(census: Census, plan: Plan) -> Iterator[Offender]:
    """What a layer computes in and what it unpacks to are one type, the profile's."""
    allowed = plan.profile.quant_dtypes
    for layer in census.packed:
        unpacked = layer.state.dtype if layer.state else None
        found = [unpacked] if not layer.linear else [unpacked, layer.compute_dtype]
        known = {each for each in found if each is not None}
        missing = layer.linear and layer.compute_dtype is None
        if len(known) > 1 or missing or not known <= set(allowed):
            actual = (
                f"quant state {unpacked or 'none'}, computes in {layer.compute_dtype or 'none'}"
            )
            yield Offender(
                name=layer.name, category="quant_dtype", expected=_any_of(allowed), actual=actual
            )


def lora_dtypes(census: Census, _plan: Plan) -> Iterator[Offender]:
    """LoRA's matrices are float32 on every profile: an optimizer's steps vanish in 16 bits."""
    yield from (
        _of(each, _LORA) for each in census.tensors if _is_lora(each) and each.dtype != _LORA
    )


def devices(census: Census, plan: Plan) -> Iterator[Offender]:
    """Everything is on one device of the profile's type; nothing on meta or in host memory."""
    wanted = plan.profile.device
    counts = Counter(
        each.device for each in census.tensors if each.device.partition(":")[0] == wanted
    )
    home = counts.most_common(1)[0][0] if counts else wanted
    for each in census.tensors:
        if each.device != home:
            yield Offender(name=each.name, category="device", expected=home, actual=each.device)


def device_map(census: Census, plan: Plan) -> Iterator[Offender]:
    """The plan of accelerate names one place only, and no host memory on a GPU profile."""
    first = next(iter(census.device_map.values()), "")
    for part, place in census.device_map.items():
        elsewhere = place in _NOWHERE or (place == "cpu" and plan.profile.needs_gpu)
        if elsewhere or place != first:
            name = f"hf_device_map[{part or 'model'}]"
            expected = f"one {plan.profile.device} device"
            yield Offender(name=name, category="device_map", expected=expected, actual=place)


def config_dtypes(census: Census, plan: Plan) -> Iterator[Offender]:
    """What configurations declare, and trainers read; on a CPU a packed file's own type too."""
    allowed = (plan.profile.compute_dtype, *plan.profile.quant_dtypes)
    declared = {**census.config_dtypes, "model.dtype": census.model_dtype}
    if census.bnb_compute_dtype is not None:
        declared["config.quantization_config.bnb_4bit_compute_dtype"] = census.bnb_compute_dtype
    for name, dtype in declared.items():
        if dtype and dtype not in allowed:
            yield Offender(name=name, category="config", expected=_any_of(allowed), actual=dtype)
    if census.default_dtype != "float32":  # what a library has set and not put back
        name, actual = "torch.get_default_dtype()", census.default_dtype
        yield Offender(name=name, category="config", expected="float32", actual=actual)


def expects_forced_float32(census: Census, plan: Plan) -> bool:
    """Whether Unsloth must take its forced path: a family of its list, asked for in float16.

    Its loader (2026.10.9, models/loader.py) matches an entry exactly against the outermost type
    without `-` and `_`, or as a part of all types joined by commas, with one at the end.
    """
    if plan.profile.compute_dtype != "float16" or not census.families:
        return False
    outer = census.families[0].lower().replace("-", "").replace("_", "")
    joined = ",".join(census.families).lower() + ","
    return any(each.lower() == outer or each.lower() in joined for each in census.force_float32)


def forced_float32(census: Census, plan: Plan) -> Iterator[Offender]:
    """Unsloth's mark on the model agrees; the trainer decides about autocast by it."""
    expected, actual = expects_forced_float32(census, plan), bool(census.forced_float32)
    if expected != actual:
        name = "model._unsloth_forced_float32"
        yield Offender(name=name, category="config", expected=str(expected), actual=str(actual))


# The rules that fail a boot. `config_dtypes` only warns and makes no offender of the report.
RULES: tuple[Rule, ...] = (
    *(has_parameters, forbidden_dtypes, wide_dtypes, allowed_dtypes, wanted_dtype),
    *(packed_layers, quant_states, quant_dtypes, lora_dtypes, devices, device_map, forced_float32),
)


def offenders(census: Census, plan: Plan) -> list[Offender]:
    """All that breaks the contract, each once: the first rule to name a thing and its state."""
    found: dict[tuple[str, str], Offender] = {}
    for rule in RULES:
        for each in rule(census, plan):
            found.setdefault((each.name, each.actual), each)
    return list(found.values())
