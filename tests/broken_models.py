"""Models broken on purpose, and the healthy ones that they are made of.

`float16_model` stands in for a V100's: what Unsloth's CUDA path makes of an NF4 checkpoint, made
by hand on a CPU (`tests.shadow_cuda` shows that path's own). Each mutation changes one thing and
leaves the first parameter as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LAYER = "model.language_model.layers.1.mlp.up_proj"


def transformers_model(folder: Path) -> Any:
    """A plain transformers load as float16: the checkpoint's own configuration wins."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu")


def float16_model(folder: Path) -> Any:
    """What Unsloth's CUDA path makes on a V100: float16 in compute and quant state too."""
    import torch
    from bitsandbytes.nn import Linear4bit

    model = transformers_model(folder)
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.compute_dtype = torch.float16
            module.weight.quant_state.dtype = torch.float16
    model.config.quantization_config.bnb_4bit_compute_dtype = torch.float16
    model._unsloth_forced_float32 = True
    return model


def _buffer(model: Any) -> None:
    import torch

    owner = model.get_submodule("model.language_model.rotary_emb")
    name = next(iter(owner._buffers))
    owner._buffers[name] = owner._buffers[name].to(torch.bfloat16)


def _quant_state_dtype(model: Any) -> None:
    import torch

    model.get_submodule(LAYER).weight.quant_state.dtype = torch.bfloat16


def _no_quant_state(model: Any) -> None:
    model.get_submodule(LAYER).weight.quant_state = None


def _meta(model: Any) -> None:
    import torch

    norm = model.get_submodule("model.language_model.norm")
    norm.weight = torch.nn.Parameter(norm.weight.to("meta"), requires_grad=False)


def _float64(model: Any) -> None:
    import torch

    norm = model.get_submodule("model.language_model.norm")
    norm.weight = torch.nn.Parameter(norm.weight.to(torch.float64), requires_grad=False)


def _plain(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Replace a packed layer by a plain one with its numbers, changed: the CUDA path's own way."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    layer = model.get_submodule(name)
    weight = change(dequantize_4bit(layer.weight.data, layer.weight.quant_state))
    plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
    plain.weight = torch.nn.Parameter(weight, requires_grad=False)
    model.set_submodule(name, plain)


# Not among the projections that must stay packed: the loader may dequantise it.
OTHER_LAYER = "model.language_model.per_layer_model_projection"


def _dequantised(model: Any) -> None:
    _plain(model, OTHER_LAYER, lambda weight: weight)


def _wrong_values(model: Any) -> None:
    _plain(model, OTHER_LAYER, lambda weight: weight.roll(1, 0))


def _fresh(model: Any) -> None:
    import torch

    _plain(model, OTHER_LAYER, lambda weight: 0.02 * torch.randn_like(weight))


def _projection_dequantised(model: Any) -> None:
    _plain(model, LAYER, lambda weight: weight)


MUTATIONS: Mapping[str, Callable[[Any], None]] = {
    "healthy": lambda _model: None,
    "dequantised": _dequantised,
    "buffer": _buffer,
    "quant state dtype": _quant_state_dtype,
    "no quant state": _no_quant_state,
    "meta": _meta,
    "float64": _float64,
    "wrong values": _wrong_values,
    "fresh weight": _fresh,
    "projection dequantised": _projection_dequantised,
}
