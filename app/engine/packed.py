"""Packed weights: which modules they belong to, which must be packed, and what became of each."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.facts.census import Fate, PackedFate
from app.facts.checkpoint import CheckpointFacts
from app.facts.names import origin_name
from app.facts.projections import PATTERN, is_projection

if TYPE_CHECKING:
    import torch

# For transformers' skip list, whose entries are tried as regular expressions from the start of a
# module's full name: matches every name that is no projection.
SKIP_PATTERN = rf"(?!{PATTERN})"

# A dequantised weight went bfloat16 -> target, perhaps on a device whose fused multiply-add rounds
# a scale differently: one unit in bfloat16's last place (8 bits), plus half of float16's smallest
# number for what it flushes to zero. A wrong weight is off by orders of magnitude more.
_RELATIVE, _ABSOLUTE = 2.0**-7, 2.0**-24


def base_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model below peft's wrapper, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    found: torch.nn.Module = inner() if callable(inner) else model
    return found


def key_mapper(base: torch.nn.Module, names: Iterable[str]) -> Callable[[str], str]:
    """From a checkpoint's key to the model's: by the conversions that transformers used to load.

    transformers 5 renames keys on load, keeps the conversions that matched on the model
    (`_weight_conversions`), and adds or strips the base model's prefix by what the model has. Here
    its own function is asked, in the order of `convert_and_load_state_dict_in_model`.
    """
    from transformers import core_model_loading as loading

    found = getattr(base, "_weight_conversions", None) or []
    renamings = [each for each in found if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in found if isinstance(each, loading.WeightConverter)]
    known = dict.fromkeys(names, True)
    prefix = getattr(base, "base_model_prefix", None) or None

    def renamed(key: str) -> str:
        name, _ = loading.rename_source_key(key, renamings, converters, prefix, known)
        if name not in known and key in known:
            name, _ = loading.rename_source_key(key, [], [], prefix, known)
        return str(name)

    return renamed


def fates(model: torch.nn.Module, checkpoint: CheckpointFacts) -> tuple[PackedFate, ...]:
    """What the model made of every weight that the checkpoint packs."""
    base = base_model(model)
    modules = _modules(base)
    names = {
        f"{path}.{leaf}" if path else leaf
        for path, module in modules.items()
        for leaf, value in (*module._parameters.items(), *module._buffers.items())
        if value is not None
    }
    rename = key_mapper(base, names)
    ignored = [re.compile(each) for each in _ignored_keys(base)]
    files = {header.name: header.file for header in checkpoint.tensors}
    nested = {name for name in files if name.endswith(".nested_absmax")}

    def fate_of(key: str) -> PackedFate:
        name = rename(key)
        path, _, leaf = name.rpartition(".")
        fate: Fate
        if name not in names:
            fate = "ignored" if any(each.search(name) for each in ignored) else "absent"
        else:
            weight = modules[path]._parameters.get(leaf)
            fate = _kept(modules[path], weight)
            if fate == "dequantised" and weight is not None:
                fate = _compared(weight, checkpoint.folder, key, files)
        return PackedFate(name, fate, f"{key}.nested_absmax" in nested, is_projection(path))

    return tuple(fate_of(key) for key in checkpoint.packed)


def misfits(
    model: torch.nn.Module, checkpoint: CheckpointFacts, conversions: Iterable[Any]
) -> list[str]:
    """Tensors of the file in another shape than the model's, before it is loaded.

    With a quantiser transformers 5.17 records no mismatch and puts such a tensor into the module.
    What a conversion merges or splits (experts) is left to it: it raises by itself.
    """
    from transformers import core_model_loading as loading

    # Asking marks a conversion as used, and that decides which ones the model keeps.
    mine = copy.deepcopy([each for each in conversions if not _reads_packed(each)])
    renamings = [each for each in mine if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in mine if isinstance(each, loading.WeightConverter)]
    wanted = model.state_dict()
    prefix = getattr(model, "base_model_prefix", None) or None
    unpacked = _unpacked_shapes(checkpoint)
    parts = {f"{name}." for name in checkpoint.packed}
    found = []
    for header in checkpoint.tensors:
        if parts & _heads(header.name):
            continue  # an absmax or a map: judged with the quant state
        key, args = header.name, (prefix, wanted)
        name, source = loading.rename_source_key(key, renamings, converters, *args)
        if name not in wanted and key in wanted:
            name, source = loading.rename_source_key(key, [], [], *args)
        if source is not None or name not in wanted:
            continue
        here = _stored_shape(model, name, tuple(wanted[name].shape), packed=key in unpacked)
        there = unpacked.get(key, header.shape)
        if there != here and not (key in unpacked and len(here) != len(there)):
            found.append(f"{name}: {there} in the file, {here} in the model")
    return found


def _heads(name: str) -> set[str]:
    """Beginnings of a name that end in a dot."""
    return {name[: at + 1] for at, letter in enumerate(name) if letter == "."}


def _reads_packed(conversion: Any) -> bool:
    """The quantiser's own conversion, which takes every weight and changes no plain one."""
    operations = getattr(conversion, "operations", None) or ()
    return any(type(each).__name__ == "Bnb4bitDeserialize" for each in operations)


def _stored_shape(
    model: torch.nn.Module, name: str, shape: tuple[int, ...], *, packed: bool
) -> tuple[int, ...]:
    """GPT-2's Conv1D is stored transposed until it is packed."""
    path, _, leaf = name.rpartition(".")
    source = getattr(model.get_submodule(path), "source_cls", None) if leaf == "weight" else None
    return shape[::-1] if getattr(source, "__name__", "") == "Conv1D" and not packed else shape


def _unpacked_shapes(checkpoint: CheckpointFacts) -> dict[str, tuple[int, ...]]:
    """The shape of each packed weight by the file's quant state, where that can be read."""
    from safetensors import safe_open

    found: dict[str, tuple[int, ...]] = {}
    for header in checkpoint.tensors:
        weight, mark, _ = header.name.partition(".quant_state.bitsandbytes__")
        if not mark:
            continue
        with safe_open(checkpoint.folder / header.file, framework="pt", device="cpu") as file:
            data = bytes(file.get_tensor(header.name).flatten().tolist())
        try:
            found[weight] = tuple(int(size) for size in json.loads(data)["shape"])
        except (ValueError, KeyError, TypeError):
            continue  # the load itself fails on it, by name
    return found


def _modules(base: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules by the name they had before peft; its own and its copies are left out."""
    found = {}
    for name, module in base.named_modules():
        parts = name.split(".")
        if not any(part.startswith("lora_") or part == "modules_to_save" for part in parts):
            found[origin_name(name)] = module  # a wrapped module comes after its wrapper
    return found


def _ignored_keys(base: torch.nn.Module) -> Iterable[str]:
    """Regular expressions of keys that the model's class drops on load, by its own word."""
    return getattr(base, "_keys_to_ignore_on_load_unexpected", None) or ()


def _kept(module: torch.nn.Module, weight: torch.Tensor | None) -> Fate:
    """How a module holds a weight that was packed; `dequantised` is still to be compared."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    if isinstance(module, Linear4bit):
        return "linear4bit"
    if isinstance(weight, Params4bit) and not isinstance(module, torch.nn.Linear):
        return "packed"
    if weight is None or isinstance(weight, Params4bit) or not weight.is_floating_point():
        return "bytes"
    return "dequantised"


def _compared(weight: torch.Tensor, folder: Path, key: str, files: Mapping[str, str]) -> Fate:
    """Compare a plain weight with the checkpoint's, dequantised by bitsandbytes itself."""
    import torch

    if weight.is_meta:
        return "differs"
    expected = _dequantised(folder, key, files)
    if weight.dim() == expected.dim() + 1:
        return "dequantised"  # experts fused into one tensor: no single one to compare
    if weight.shape != expected.shape:
        return "differs"
    expected = expected.to(weight.dtype).float()
    actual = weight.detach().to("cpu", torch.float32)
    excess = (actual - expected).abs() / (_RELATIVE * expected.abs() + _ABSOLUTE)
    excess = torch.where(actual == expected, 0.0, excess)  # also where both are infinite
    worst = float(torch.nan_to_num(excess, nan=torch.inf).max())
    return "dequantised" if worst <= 1.0 else "differs"


def _dequantised(folder: Path, key: str, files: Mapping[str, str]) -> torch.Tensor:
    """One packed weight of the checkpoint as numbers; reads this weight's tensors only."""
    from bitsandbytes.functional import QuantState, dequantize_4bit
    from safetensors import safe_open

    tensors = {}
    for name in [key, *(name for name in files if name.startswith(f"{key}."))]:
        with safe_open(folder / files[name], framework="pt", device="cpu") as file:
            tensors[name.removeprefix(key).removeprefix(".")] = file.get_tensor(name)
    packed = tensors.pop("")
    unpacked: torch.Tensor = dequantize_4bit(packed, QuantState.from_dict(tensors, device="cpu"))
    return unpacked
