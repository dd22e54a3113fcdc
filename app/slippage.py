"""The origin's dtype guards, judging every tensor of a model instead of the first.

Works on anything that offers `parameters()`, so also on the mocks of users without a GPU. Looks at
`sys.modules["torch"]`, the real one or a stub, and never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from app.config import ALLOWED_HARDWARE, HardwareT
from app.profiles import PROFILES, Profile

MAX_NAMED = 10
# Every dtype of interest by torch's name, then its aliases, which are other objects in a mock.
_DTYPES = (
    *[(name, name) for name in ("float16", "bfloat16", "float32", "float64")],
    *[(name, name) for name in ("uint8", "int8", "int16", "int32", "int64", "bool")],
    *[("half", "float16"), ("float", "float32"), ("double", "float64")],
)


class BF16SlippageError(AssertionError):
    """A model meant for V100 is not safe there: bfloat16 in it, or no float16 at all.

    Volta has no bfloat16 units: it emulates, at a tenth of the speed. Raised before any optimizer
    exists.
    """


class FP16SlippageError(AssertionError):
    """A model meant for H100 computes in float16, or nowhere in bfloat16.

    float16 loses small gradients, which bfloat16 keeps. Raised before any optimizer exists.
    """


class NoParametersError(BF16SlippageError, FP16SlippageError):
    """A model without parameters proves nothing, on either card."""


def assert_fp16_dtype(model: Any) -> None:  # noqa: ANN401 - a model or the mock of one
    """`assert_dtype_for_hardware` for V100."""
    assert_dtype_for_hardware(model, "v100")


def assert_dtype_for_hardware(model: Any, hardware: HardwareT) -> None:  # noqa: ANN401 - as above
    """Judge the dtype of every parameter, buffer, quant state and compute dtype of a model.

    Calls `model.parameters()` once. Raises BF16SlippageError on v100 and
    FP16SlippageError on h100, ValueError for other hardware.
    """
    if hardware not in ALLOWED_HARDWARE:
        raise ValueError(f"hardware must be one of {', '.join(ALLOWED_HARDWARE)}: {hardware!r}")
    judge(model, PROFILES[hardware])


def judge(model: Any, profile: Profile) -> None:  # noqa: ANN401 - a model or the mock of one
    """The same for any profile of a GPU."""
    parameters = parameters_of(model)
    if not parameters:
        raise NoParametersError(
            f"Model has no parameters; its dtype for {profile.name.upper()} cannot be verified. "
            "Halt training."
        )
    found = [*dtypes_of(parameters), *dtypes_beside(model)]
    floating = [(name, dtype) for name, dtype in found if "float" in dtype]
    wrong = [(name, dtype) for name, dtype in floating if dtype not in profile.float_dtypes]
    if wrong:
        raise slippage(profile, wrong)
    lead = f"nothing is {profile.compute_dtype}"
    if not floating:
        raise slippage(profile, found, lead=f"{lead}, nor any other floating-point type: ")
    if not any(dtype == profile.compute_dtype for _, dtype in floating):
        raise slippage(profile, floating, lead=f"{lead}: ")


def slippage(
    profile: Profile, offenders: list[tuple[str, str]], lead: str = ""
) -> BF16SlippageError | FP16SlippageError:
    """The error of this card, naming the first offenders and the remedy."""
    named = ", ".join(f"{name} is {dtype}" for name, dtype in offenders[:MAX_NAMED])
    more = f" and {len(offenders) - MAX_NAMED} more" if len(offenders) > MAX_NAMED else ""
    title = profile.name.upper()
    wanted = profile.compute_dtype
    remedy = (
        f"Expected {wanted} (or float32 where the contract allows it): {profile.dtype_reason}. "
        f"Load with dtype=torch.{wanted} through the bootguard engine and check that nothing "
        "casts the model afterwards. Halt training."
    )
    if wanted == "float16":
        text = f"BF16 slipped through: {title} unsafe. {lead}{named}{more}. {remedy}"
        return BF16SlippageError(text)
    return FP16SlippageError(
        f"FP16 slipped through: {title} would lose gradients. {lead}{named}{more}. {remedy}"
    )


def parameters_of(model: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a model or a mock
    """What `parameters()` gives, by name where the name is known, then what it left out.

    An optimizer gets what `parameters()` gives, and a subclass may override it.
    """
    named = list(model.named_parameters()) if is_module(model) else []
    names = {id(parameter): name for name, parameter in named}
    given = list(model.parameters())
    shown = {id(parameter) for parameter in given}
    return [
        *((names.get(id(one), f"parameter {index}"), one) for index, one in enumerate(given)),
        *((name, one) for name, one in named if id(one) not in shown),
    ]


def dtypes_of(tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Name and dtype of tensors, and of the quant state that a packed one carries."""
    for name, tensor in tensors:
        yield name, dtype_name(tensor.dtype)
        # A mock answers every name: only what is really set on a tensor counts.
        state = getattr(tensor, "__dict__", {}).get("quant_state")
        if state is not None:
            yield f"{name}.quant_state", dtype_name(state.dtype)


def dtypes_beside(model: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - a model or a mock
    """Of what else holds or decides precision in a real module: buffers, compute dtypes."""
    if not is_module(model):
        return
    yield from dtypes_of(model.named_buffers())
    for name, module in model.named_modules():
        compute_dtype = vars(module).get("compute_dtype")
        if compute_dtype is not None:
            yield f"{name}.compute_dtype", dtype_name(compute_dtype)


def is_module(model: object) -> bool:
    """Whether a model is a real `torch.nn.Module`; torch is not imported to find out.

    By its type: a mock with a `spec` passes `isinstance`, and a stub of torch may have a `Module`
    that offers nothing.
    """
    nn = getattr(sys.modules.get("torch"), "nn", None)
    module_class = getattr(nn, "Module", None)
    return (
        isinstance(module_class, type)
        and issubclass(type(model), module_class)
        and hasattr(module_class, "named_parameters")
    )


def dtype_name(dtype: object) -> str:
    """`torch.float16` -> `float16`, also where torch is a stub whose dtypes are any objects."""
    torch = sys.modules.get("torch")
    known = [(name, getattr(torch, own)) for own, name in _DTYPES if hasattr(torch, own)]
    for name, one in known:
        if one is dtype:
            return name
    for name, one in known:
        if type(one) is type(dtype) and one == dtype:
            return name
    return str(dtype).removeprefix("torch.")
