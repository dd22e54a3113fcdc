"""The origin's dtype guards, judging every tensor of a model instead of the first.

Works on anything that offers `parameters()`, so also on the mocks of users without a GPU. Imports
torch only where the caller has done so already: dtypes are compared by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from app.config import ALLOWED_HARDWARE, HardwareT
from app.profiles import PROFILES, Profile

MAX_NAMED = 10


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

    Calls `model.parameters()` or its named form once. Raises BF16SlippageError on v100 and
    FP16SlippageError on h100, ValueError for other hardware.
    """
    if hardware not in ALLOWED_HARDWARE:
        raise ValueError(f"hardware must be one of {', '.join(ALLOWED_HARDWARE)}: {hardware!r}")
    judge(model, PROFILES[hardware])


def judge(model: Any, profile: Profile) -> None:  # noqa: ANN401 - a model or the mock of one
    """The same for any profile of a GPU."""
    found = list(tensors_of(model))
    if not found:
        raise NoParametersError(
            f"Model has no parameters; its dtype for {profile.name.upper()} cannot be verified. "
            "Halt training."
        )
    floating = [(name, dtype) for name, dtype in found if "float" in dtype]
    wrong = [(name, dtype) for name, dtype in floating if dtype not in profile.float_dtypes]
    if wrong:
        raise slippage(profile, wrong)
    if not any(dtype == profile.compute_dtype for _, dtype in floating):
        raise slippage(profile, floating, lead=f"nothing is {profile.compute_dtype}: ")


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


def tensors_of(model: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - a model or a mock
    """Name and dtype of everything that holds or decides precision in a model."""
    if not is_module(model):
        for index, parameter in enumerate(model.parameters()):
            yield f"parameter {index}", dtype_name(parameter.dtype)
        return
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        yield name, dtype_name(tensor.dtype)
        state = getattr(tensor, "quant_state", None)
        if state is not None:
            yield f"{name}.quant_state", dtype_name(state.dtype)
    for name, module in model.named_modules():
        compute_dtype = vars(module).get("compute_dtype")
        if compute_dtype is not None:
            yield f"{name}.compute_dtype", dtype_name(compute_dtype)


def is_module(model: object) -> bool:
    """Whether a model is a real `torch.nn.Module`; torch is not imported to find out."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    module_class = getattr(nn, "Module", None)
    return isinstance(module_class, type) and isinstance(model, module_class)


def dtype_name(dtype: object) -> str:
    """`torch.float16` -> `float16`."""
    return str(dtype).removeprefix("torch.")
