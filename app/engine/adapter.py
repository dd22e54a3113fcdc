"""Attaches the LoRA adapter through Unsloth and gathers what stands where afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from app.config import ModelRequest
from app.engine.arguments import adapter_arguments
from app.engine.weights import to_host
from app.errors import BootError
from app.facts import layers
from app.facts.adapter import AdapterFacts, Asked, Pair, Projection, inventory
from app.facts.names import origin_name
from app.outcome import Fault
from app.plan import Plan

_SOURCE = "BOOT_FINETUNE_* and unsloth_zoo.peft_utils.get_peft_regex (2026.10.9)"
_ADAPTER = "default"  # the name PEFT gives the only adapter
_FUSED_NDIM = 3  # expert, row, column: transformers 5 keeps a layer's routed experts in one tensor


def attach(model: Any, plan: Plan) -> Any:
    """The PEFT model, by `FastModel.get_peft_model` with the plan's values.

    A request that no layer of this model can serve ends in a BootError before anything is changed.
    """
    import unsloth
    from peft.utils import NoMatchingPeftModuleError

    options = adapter_arguments(plan.request)
    _refuse_impossible(model, plan.request)
    if unsloth.DEVICE_TYPE == "cpu":
        # Unsloth's CPU backend drops the finetune_* flags and puts LoRA on the towers too
        # (unsloth_zoo/cpu/loader.py). Its CUDA path turns the flags into this expression.
        options["target_modules"] = _target_modules(model, plan.request)

    try:
        return unsloth.FastModel.get_peft_model(model, **options)
    except NoMatchingPeftModuleError as error:
        raise _nothing_to_adapt(model, plan.request, str(error)) from error
    except ValueError as error:
        if "lora_dropout" not in str(error):
            raise
        # peft's ParamWrapper, which carries a pair on experts that are one tensor.
        raise BootError(
            f"LoRA on the routed experts of this model works without dropout only: {error}",
            fault=Fault.CONFIG,
            expected="BOOT_LORA_DROPOUT=0",
            actual=f"BOOT_LORA_DROPOUT={plan.request.lora_dropout}",
            source="peft.tuners.lora.layer.ParamWrapper (0.21.2)",
            next_step="set BOOT_LORA_DROPOUT=0, or BOOT_FINETUNE_MLP_MODULES=false",
        ) from error


def _target_modules(model: nn.Module, request: ModelRequest) -> str:
    """The regular expression that Unsloth's CUDA path would hand to PEFT."""
    from unsloth_zoo.peft_utils import get_peft_regex

    flags = Asked.of(request)
    try:
        found: str = get_peft_regex(
            model,
            finetune_vision_layers=flags.vision,
            finetune_language_layers=flags.language,
            finetune_attention_modules=flags.attention,
            finetune_mlp_modules=flags.mlp,
        )
    except RuntimeError as error:  # its only use of the class: nothing matches the flags
        raise _nothing_to_adapt(model, request, str(error)) from error
    return found


def _refuse_impossible(model: nn.Module, request: ModelRequest) -> None:
    """Unsloth falls back to other parts of the model where the asked part matches nothing.

    Seen: vision without MLP on Gemma 3n puts LoRA on language and audio attention; vision without
    language on a text-only model puts it on the language layers.
    """
    asked, found = Asked.of(request), projections(model)
    problems = asked.unmet((item.component, item.kind) for item in found)
    reachable = [
        item for item in found if not item.fused and asked.allows(item.component, item.kind)
    ]
    if not problems and not reachable:
        problems = ("only routed experts are asked for, and they are no Linear in this model",)
    if problems:
        raise _nothing_to_adapt(model, request, "; ".join(problems))


def _nothing_to_adapt(model: nn.Module, request: ModelRequest, why: str) -> BootError:
    return BootError(
        f"LoRA cannot be attached as asked: {why}",
        fault=Fault.CONFIG,
        expected=str(Asked.of(request)),
        actual=inventory(projections(model)),
        source=_SOURCE,
        next_step="set the BOOT_FINETUNE_* flags to parts that this model has",
    )


def projections(model: nn.Module) -> tuple[Projection, ...]:
    """Every Linear of the base model, packed or not, and every fused block of routed experts."""
    lora = _lora_layers(model)
    inside = tuple(f"{name}." for name in lora)
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        inner = name.startswith(inside) and not name.endswith(".base_layer")
        if not isinstance(module, nn.Linear) or inner:
            continue
        origin = origin_name(name)
        parent = modules.get(name.removesuffix(".base_layer").rpartition(".")[0])
        found.append(_projection(origin, module, beside_experts=hasattr(parent, "experts")))
    found += [
        _fused(origin_name(name))
        for name, p in model.named_parameters()
        if len(_shape(p)) == _FUSED_NDIM and "experts" in name.split(".") and "lora_" not in name
    ]
    return tuple(found)


def _projection(name: str, module: Any, *, beside_experts: bool) -> Projection:
    weight = getattr(module, "weight", None)
    return Projection(
        name=name,
        component=layers.component(name),
        kind=layers.kind(name, beside_experts=beside_experts),
        in_stack=layers.in_stack(name),
        packed=getattr(weight, "quant_state", None) is not None,
    )


def _fused(name: str) -> Projection:
    component, kind = layers.component(name), layers.kind(name)
    return Projection(name, component, kind, layers.in_stack(name), fused=True)


def _lora_layers(model: nn.Module) -> dict[str, Any]:
    """Modules that hold a LoRA pair of the one adapter, by their path."""
    from peft.tuners.lora import LoraLayer

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and _ADAPTER in module.lora_A
    }


def lora_parameters(model: nn.Module) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
    """Origin name of each adapted module -> its A and B, in the model's order."""
    return {
        _pair_name(name, layer): _matrices(layer) for name, layer in _lora_layers(model).items()
    }


def _pair_name(name: str, layer: Any) -> str:
    """A pair on a bare parameter (fused experts) is named by the parameter, not its module."""
    parameter = getattr(layer, "parameter_name", "")
    origin = origin_name(name)
    return f"{origin}.{parameter}" if parameter else origin


def gather(model: nn.Module) -> AdapterFacts:
    """What the adapted model is. Reads B once from the device; changes nothing."""
    held = _lora_layers(model)
    places = {item.name: item for item in projections(model)}
    # A bias or a magnitude vector inside a LoRA layer is no pair's matrix: it counts as other.
    lora_ids = {id(matrix) for pair in lora_parameters(model).values() for matrix in pair}
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    frozen = [
        name for name, p in model.named_parameters() if id(p) in lora_ids and not p.requires_grad
    ]
    return AdapterFacts(
        pairs=_pairs(held, places),
        projections=tuple(places.values()),
        other_trainable=tuple(name for name, p in trainable if id(p) not in lora_ids),
        modules_to_save=_modules_to_save(model),
        frozen_lora=tuple(frozen),
        other_adapters=_other_adapters(model),
        inactive=tuple(_pair_name(path, layer) for path, layer in held.items() if _is_off(layer)),
        n_trainable=sum(p.numel() for _, p in trainable),
        n_total=sum(_shape(p).numel() for p in model.parameters()),
    )


def _pairs(held: dict[str, Any], places: dict[str, Projection]) -> tuple[Pair, ...]:
    zero = _all_zero([layer.lora_B[_ADAPTER].weight for layer in held.values()])
    uses = Counter(id(matrix) for layer in held.values() for matrix in _matrices(layer))
    pairs = []
    for (path, layer), is_zero in zip(held.items(), zero, strict=True):
        name = _pair_name(path, layer)
        place = places.get(name) or _projection(name, layer, beside_experts=False)
        shared = any(uses[id(matrix)] > 1 for matrix in _matrices(layer))
        pairs.append(replace(_pair(place, layer, b_zero=is_zero), shared=shared))
    return tuple(pairs)


def _matrices(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight


def _other_adapters(model: nn.Module) -> tuple[str, ...]:
    from peft.tuners.lora import LoraLayer

    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    return tuple(sorted({name for layer in adapted for name in layer.lora_A} - {_ADAPTER}))


def _is_off(layer: Any) -> bool:
    """Whether the layer computes without its pair: switched off, merged, or set to another one."""
    return bool(layer.disable_adapters or layer.merged or _ADAPTER not in layer.active_adapters)


def _pair(place: Projection, layer: Any, *, b_zero: bool | None) -> Pair:
    a, b = _matrices(layer)
    r = int(layer.r[_ADAPTER])
    base = layer.get_base_layer()
    # rsLoRA scales by alpha / sqrt(r); it is off here, and would show as another alpha.
    alpha = float(layer.scaling[_ADAPTER]) * r
    return Pair(
        name=place.name,
        component=place.component,
        kind=place.kind,
        r=r,
        alpha=alpha,
        dropout=float(getattr(layer.lora_dropout[_ADAPTER], "p", 0.0)),
        a_shape=tuple(a.shape),
        b_shape=tuple(b.shape),
        b_zero=b_zero,
        features=(base.in_features, base.out_features) if isinstance(base, nn.Linear) else None,
    )


def _all_zero(tensors: list[torch.Tensor]) -> list[bool | None]:
    """For each tensor whether it is all zero; None on meta."""
    readable = [tensor for tensor in tensors if not tensor.is_meta]
    counts = iter(to_host([torch.count_nonzero(tensor) for tensor in readable]))
    return [None if tensor.is_meta else next(counts) == 0 for tensor in tensors]


def _modules_to_save(model: nn.Module) -> tuple[str, ...]:
    from peft.utils import ModulesToSaveWrapper

    return tuple(
        origin_name(name)
        for name, module in model.named_modules()
        if isinstance(module, ModulesToSaveWrapper)
    )


def _shape(parameter: nn.Parameter) -> torch.Size:
    """Of what it stands for: bitsandbytes packs two numbers in a byte, of fused experts too."""
    state = getattr(parameter, "quant_state", None)
    shape = getattr(state, "shape", None)
    return parameter.shape if shape is None else torch.Size(shape)
