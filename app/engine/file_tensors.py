"""What the checkpoint holds of a tensor that came out broken: the file's fault or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import product
from math import inf, isclose, isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from app.engine.packed import base_model, key_mapper
from app.facts.checkpoint import CheckpointFacts, TensorHeader
from app.facts.names import dtype_name, origin_name
from app.facts.numerics import FileTensor

_STATE = ".quant_state.bitsandbytes__"
# bitsandbytes' name of each part of a quant state, behind the weight's.
_SIDES = {
    "absmax": (".absmax",),
    "state2.absmax": (".nested_absmax",),
    "code": (".quant_map",),
    "state2.code": (".nested_quant_map",),
    "offset": (f"{_STATE}nf4", f"{_STATE}fp4"),
}


class FileTensors:
    """The checkpoint's tensors under the model's names, read where something is to be explained."""

    def __init__(self, model: nn.Module, checkpoint: CheckpointFacts | None) -> None:
        self._model, self._checkpoint = model, checkpoint

    @cached_property
    def _headers(self) -> dict[str, list[TensorHeader]]:
        """Several where the loader fuses tensors into one, as it does with experts.

        transformers maps every side tensor of a packed weight onto the weight itself, because
        bitsandbytes' converter takes them together; so the weight alone is renamed here.
        """
        if self._checkpoint is None:
            return {}
        names = [origin_name(name) for name, _ in self._model.named_parameters()]
        renamed = key_mapper(base_model(self._model), names)
        packed = frozenset(self._checkpoint.packed)
        found: dict[str, list[TensorHeader]] = {}
        for header in self._checkpoint.tensors:
            weight, side = _split(header.name, packed)
            found.setdefault(renamed(weight) + side, []).append(header)
        return found

    def differs(self, name: str, largest: float) -> bool:
        """Whether the file's largest magnitude is another one; False where the file has none.

        A cast moves it by a unit in bfloat16's last place, or to zero below float16's numbers.
        """
        found = self.tensor(name)
        return found is not None and not isclose(
            found.largest, largest, rel_tol=2.0**-7, abs_tol=2.0**-24
        )

    def tensor(self, name: str) -> FileTensor | None:
        """What the file holds; None where it has nothing of that name that is a floating number.

        A weight that is packed in the file and was unpacked on load is known by its scales.
        """
        for names in _file_names(name):
            read = [self._read(header) for n in names for header in self._headers.get(n, ())]
            known = [entry for entry in read if entry is not None]
            if known:
                finite = all(entry.finite for entry in known)
                return FileTensor(known[0].dtype, finite, max(entry.largest for entry in known))
        return None

    def packings(self, weights: Iterable[str]) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Name, part of the quant state and the file's own value of it, for packed weights.

        Nothing of a weight that the loader fused from several. Each file is opened once.

        Raises:
            OSError, SafetensorError: a file cannot be read.
        """
        files: dict[Path, Any] = {}
        with ExitStack() as opened:
            for weight, part, path, name in self._single(weights):
                if path not in files:
                    files[path] = opened.enter_context(safe_open(path, framework="pt"))
                tensor = files[path].get_tensor(name)
                if part != "offset":
                    yield weight, part, tensor
                elif (number := _nested_offset(tensor)) is not None:
                    yield weight, part, torch.tensor(number)

    def _single(self, weights: Iterable[str]) -> Iterator[tuple[str, str, Path, str]]:
        """Where the file holds one tensor for a part of a quant state."""
        if self._checkpoint is None:
            return
        for weight, (part, sides) in product(weights, _SIDES.items()):
            found = [h for side in sides for h in self._headers.get(f"{weight}{side}", ())]
            if len(found) == 1:
                yield weight, part, self._checkpoint.folder / found[0].file, found[0].name

    def _read(self, header: TensorHeader) -> FileTensor | None:
        if self._checkpoint is None:
            return None
        try:
            with safe_open(self._checkpoint.folder / header.file, framework="pt") as file:
                tensor = file.get_tensor(header.name)
        except (OSError, SafetensorError):
            return None  # the checkpoint stage judges files; here it only means "not known"
        if _STATE in header.name:
            return _offset(tensor)
        if not tensor.is_floating_point() or not tensor.numel():
            return None
        return _file_tensor(dtype_name(tensor.dtype), tensor.double().abs().max().item())


def _file_tensor(dtype: str, largest: float) -> FileTensor:
    finite = isfinite(largest)
    return FileTensor(dtype, finite, abs(largest) if finite else inf)


def _offset(tensor: torch.Tensor) -> FileTensor | None:
    number = _nested_offset(tensor)
    return None if number is None else _file_tensor("float32", number)


def _nested_offset(tensor: torch.Tensor) -> float | None:
    """The offset of nested scales stands in the bytes of a JSON text, where NaN may be written."""
    try:
        return float(json.loads(bytes(tensor.tolist()))["nested_offset"])
    except (ValueError, KeyError, TypeError):
        return None  # plain scales have none


def _split(key: str, packed: frozenset[str]) -> tuple[str, str]:
    """A key as the weight and what is written behind the weight's name; "" for a weight."""
    weight = key.rpartition(".")[0]
    while weight and weight not in packed:
        weight = weight.rpartition(".")[0]
    return (weight, key.removeprefix(weight)) if weight else (key, "")


def _file_names(name: str) -> tuple[tuple[str, ...], ...]:
    """Names under which a checkpoint may hold it, the first known one decides.

    A scale that the loader computed itself comes of the weight.
    """
    weight, _, part = name.partition(".quant_state.")
    if part:
        return tuple(f"{weight}{side}" for side in _SIDES.get(part, ())), (weight,)
    sides = tuple(f"{weight}{side}" for each in _SIDES.values() for side in each)
    return (weight,), sides
