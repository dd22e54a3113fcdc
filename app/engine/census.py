"""Counts everything a model holds. Reads descriptions, and of values the code tables alone."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from app.engine import packed
from app.facts.census import (
    Category,
    Census,
    Kind,
    PackedLayer,
    PlainLinear,
    QuantState,
    TensorFacts,
)
from app.facts.checkpoint import CheckpointFacts
from app.facts.names import dtype_name, origin_name
from app.facts.projections import is_projection

if TYPE_CHECKING:
    import torch

_CODES, _NESTED_CODES = 2**4, 2**8  # values that 4 bits, and the 8 bits of a scale, can name


def take(model: torch.nn.Module, checkpoint: CheckpointFacts | None = None) -> Census:
    """Look at every parameter, buffer and quant state, with or without an adapter.

    No value is read but the small code tables of packed weights, and the weights that the
    checkpoint packs and the model does not (a few dozen at most), compared with the file.
    """
    import torch

    began = time.monotonic()
    base = packed.base_model(model)
    config = getattr(base, "config", None)
    fates = packed.fates(model, checkpoint) if checkpoint is not None else ()
    quantization = getattr(config, "quantization_config", None)
    forced = getattr(model, "_unsloth_forced_float32", None)
    return Census(
        tensors=tuple(_tensors(model)),
        packed=tuple(_packed_layers(model)),
        plain=tuple(_plain_linears(model)),
        fates=fates,
        checkpoint_packs=None if checkpoint is None else bool(checkpoint.packed),
        device_map=_device_map(model),
        model_class=type(base).__name__,
        model_dtype=dtype_name(getattr(base, "dtype", "")),
        config_dtypes=dict(_config_dtypes(config)),
        default_dtype=dtype_name(torch.get_default_dtype()),
        bnb_compute_dtype=_bnb_compute_dtype(quantization),
        forced_float32=None if forced is None else bool(forced),
        families=tuple(dict.fromkeys(_families(config))),
        force_float32=_force_float32(),
        seconds=round(time.monotonic() - began, 3),
    )


def _tensors(model: torch.nn.Module) -> Iterator[TensorFacts]:
    """Every tensor under every name it has."""
    for path, module in model.named_modules():
        held: list[tuple[str, Kind, torch.Tensor | None]] = [
            *((leaf, "parameter", value) for leaf, value in module._parameters.items()),
            *((leaf, "buffer", value) for leaf, value in module._buffers.items()),
        ]
        for leaf, kind, value in held:
            if value is None:
                continue
            name = f"{path}.{leaf}" if path else leaf
            yield TensorFacts(
                name=name,
                kind=kind,
                category=_category(name, module, value),
                dtype=dtype_name(value.dtype),
                device=str(value.device),
                numel=value.numel(),
                requires_grad=value.requires_grad,
                persistent=leaf not in module._non_persistent_buffers_set,
            )
            yield from _state_tensors(name, getattr(value, "quant_state", None))


def _category(name: str, module: torch.nn.Module, value: torch.Tensor) -> Category:
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    leaf = name.rpartition(".")[2]
    if isinstance(value, Params4bit) or (isinstance(module, Linear4bit) and leaf == "weight"):
        return "packed"
    if any(part.startswith("lora_") for part in name.split(".")):
        return "lora"
    # By class name, as every family writes its own RMSNorm; batch norm has timm's class names.
    batch_norm = torch.nn.modules.batchnorm._NormBase
    if "norm" in type(module).__name__.lower() or isinstance(module, batch_norm):
        return "norm"
    return "embedding" if isinstance(module, torch.nn.Embedding) else "other"


def _state_tensors(name: str, state: Any) -> Iterator[TensorFacts]:
    """The tensors of a quant state: they are in no list of parameters or buffers."""
    if state is None:
        return
    inner = getattr(state, "state2", None)
    parts = {
        "absmax": getattr(state, "absmax", None),
        "quant_map": getattr(state, "code", None),
        "offset": getattr(state, "offset", None),
        "nested_absmax": getattr(inner, "absmax", None),
        "nested_quant_map": getattr(inner, "code", None),
    }
    for part, value in parts.items():
        if value is not None and hasattr(value, "device"):
            dtype, device = dtype_name(value.dtype), str(value.device)
            label = f"{name}.{part}"
            yield TensorFacts(label, "quant_state", "quant_state", dtype, device, value.numel())


def _packed_layers(model: torch.nn.Module) -> Iterator[PackedLayer]:
    """Every module with a packed weight. peft's `Linear4bit` is a wrapper, not bitsandbytes'."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for path, module in model.named_modules():
        linear = isinstance(module, Linear4bit)
        for leaf, weight in module._parameters.items():
            if not isinstance(weight, Params4bit) and not (linear and leaf == "weight"):
                continue
            state = getattr(weight, "quant_state", None)
            shape = tuple(getattr(state, "shape", None) or ())
            declared = module.in_features * module.out_features if linear else 0
            yield PackedLayer(
                name=path if linear else f"{path}.{leaf}",
                linear=linear,
                weight_dtype=dtype_name(getattr(weight, "dtype", "none")),
                numel=_count(weight),
                features=math.prod(shape) if shape else declared,
                quant_storage=dtype_name((module if linear else weight).quant_storage),
                compute_dtype=_optional(getattr(module, "compute_dtype", None)),
                state=_state(state),
                shape=(module.out_features, module.in_features) if linear else None,
                projection=is_projection(origin_name(path)),
            )


def _optional(dtype: object) -> str | None:
    return None if dtype is None else dtype_name(dtype)


def _state(state: Any) -> QuantState | None:
    if state is None:
        return None
    inner = getattr(state, "state2", None)
    return QuantState(
        dtype=dtype_name(state.dtype),
        quant_type=str(state.quant_type),
        blocksize=int(state.blocksize),
        nested=bool(state.nested),
        absmax_dtype=dtype_name(getattr(state.absmax, "dtype", "none")),
        shape=tuple(state.shape or ()),
        n_absmax=_count(state.absmax),
        nested_blocksize=None if inner is None else int(inner.blocksize),
        n_nested_absmax=None if inner is None else _count(inner.absmax),
        odd_maps=tuple(_odd_maps(state.code, inner)),
    )


def _count(value: Any) -> int:
    return int(value.numel()) if hasattr(value, "numel") else 0


def _odd_maps(code: Any, inner: Any) -> Iterator[str]:
    """The tables that packed numbers are looked up in: nf4's sixteen, and 256 finite ones."""
    import torch
    from bitsandbytes.functional import get_4bit_type

    if _count(code) != _CODES or code.is_meta:
        yield f"a table of {_count(code)} values"
    elif not torch.allclose(
        code.detach().float().cpu(), get_4bit_type("nf4", device="cpu").float(), rtol=0, atol=1e-6
    ):
        yield "another table than nf4's"
    if inner is None:
        return
    if _count(inner.code) != _NESTED_CODES or inner.code.is_meta:
        yield f"a nested table of {_count(inner.code)} values"
    elif not bool(torch.isfinite(inner.code).all()):
        yield "a nested table that is not finite"


def _plain_linears(model: torch.nn.Module) -> Iterator[PlainLinear]:
    """Every Linear that is not packed, and whether the quantiser was told to leave it."""
    import torch
    from bitsandbytes.nn import Linear4bit
    from transformers.quantizers.quantizers_utils import should_convert_module

    quantizer = getattr(packed.base_model(model), "hf_quantizer", None)
    skip = getattr(quantizer, "modules_to_not_convert", None) or []
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or isinstance(module, Linear4bit):
            continue
        if any(part.startswith("lora_") for part in path.split(".")):
            continue
        name = origin_name(path)
        # Only exact Linears are replaced (transformers' replace_with_bnb_linear).
        left = type(module) is not torch.nn.Linear or not should_convert_module(name, skip)
        dtype = dtype_name(getattr(module.weight, "dtype", "none"))
        yield PlainLinear(path, dtype, is_projection(name), left)


def _device_map(model: torch.nn.Module) -> dict[str, str]:
    found = getattr(model, "hf_device_map", None) or {}
    return {str(part): str(device) for part, device in found.items()}


def _sub_configs(config: Any, path: str = "config") -> Iterator[tuple[str, Any]]:
    """A configuration and those inside it, by their path."""
    if config is None:
        return
    yield path, config
    for field, value in vars(config).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _sub_configs(value, f"{path}.{field}")


def _config_dtypes(config: Any) -> Iterator[tuple[str, str]]:
    for path, each in _sub_configs(config):
        dtype = getattr(each, "dtype", None)
        if dtype is not None:
            yield path, dtype_name(dtype)


def _families(config: Any) -> Iterator[str]:
    for _, each in _sub_configs(config):
        if getattr(each, "model_type", ""):
            yield str(each.model_type)


def _bnb_compute_dtype(quantization: Any) -> str | None:
    if isinstance(quantization, Mapping):
        return _optional(quantization.get("bnb_4bit_compute_dtype"))
    return _optional(getattr(quantization, "bnb_4bit_compute_dtype", None))


def _force_float32() -> tuple[str, ...]:
    """Unsloth's list of families that overflow in float16, as its loader uses it.

    The CUDA loader has its own, longer copy; the CPU backend never imports it. Empty where the
    model was loaded without Unsloth.
    """
    for name in ("unsloth.models.loader", "unsloth_zoo.model_lists"):
        found = getattr(sys.modules.get(name), "FORCE_FLOAT32", None)
        if found is not None:
            return tuple(found)
    return ()
