"""Names of a model's tensors and modules, as facts hold them. Standard library only."""

from __future__ import annotations

_PEFT_PREFIX = "base_model.model."
_PEFT_WRAPPED = ("base_layer", "original_module")


def origin_name(name: str) -> str:
    """The base model's own path of a module or parameter, without what PEFT put around it."""
    name = name.removeprefix(_PEFT_PREFIX)
    return ".".join(segment for segment in name.split(".") if segment not in _PEFT_WRAPPED)


def dtype_name(dtype: object) -> str:
    """`bfloat16` for torch's `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")
