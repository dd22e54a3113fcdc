"""Facts of a loaded model: every tensor, every packed layer, every declared dtype.

Dtypes are torch's names without the module, devices torch's own text (`cuda:0`, `cpu`, `meta`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["parameter", "buffer", "quant_state"]
Category = Literal["packed", "quant_state", "lora", "norm", "embedding", "other"]
_BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # bitsandbytes 0.50 has kernels for these
# What became of a weight that the checkpoint packs: see `PackedFate`.
Fate = Literal["linear4bit", "packed", "dequantised", "differs", "bytes", "ignored", "absent"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One parameter, buffer or tensor of a quant state; persistent is what the state dict holds."""

    name: str
    kind: Kind
    category: Category
    dtype: str
    device: str
    numel: int
    requires_grad: bool = False
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class QuantState:
    """Of one packed weight. `absmax_dtype` is uint8 when the scales are packed too (nested)."""

    dtype: str
    quant_type: str
    blocksize: int
    nested: bool
    absmax_dtype: str
    shape: tuple[int, ...]
    n_absmax: int | None = None
    nested_blocksize: int | None = None
    n_nested_absmax: int | None = None
    odd_maps: tuple[str, ...] = ()  # what the code tables are instead of what they must be

    def problem(self, shape: tuple[int, ...] | None) -> tuple[str, str]:
        """Expected and actual where the parts disagree, else empty texts.

        bitsandbytes' kernels believe the state: scales that are too few are read past their end.
        """
        if shape is not None and self.shape != shape:
            return f"shape {shape}", f"shape {self.shape} in the quant state"
        for size in (self.blocksize, *([self.nested_blocksize] if self.nested_blocksize else [])):
            if size not in _BLOCKSIZES:
                return f"a block size of {_BLOCKSIZES[0]} to {_BLOCKSIZES[-1]}", f"{size}"
        wanted = -(-math.prod(self.shape) // self.blocksize)
        if self.n_absmax not in (None, wanted):
            return f"{wanted} scales", f"{self.n_absmax} scales"
        if self.nested_blocksize and self.n_nested_absmax is not None:
            wanted = -(-wanted // self.nested_blocksize)
            if self.n_nested_absmax != wanted:
                return f"{wanted} nested scales", f"{self.n_nested_absmax} nested scales"
        return ("nf4's code tables", ", ".join(self.odd_maps)) if self.odd_maps else ("", "")


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A module with a packed weight. `numel` counts stored elements, `features` unpacked ones.

    `linear` is False for fused experts, which have no compute dtype of their own.
    """

    name: str
    linear: bool
    weight_dtype: str
    numel: int
    features: int
    quant_storage: str
    compute_dtype: str | None
    state: QuantState | None
    projection: bool  # of the language model's attention or MLP
    shape: tuple[int, ...] | None = None  # as the module declares it


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """A Linear that is not packed. `skipped` is whether the quantiser was told to leave it."""

    name: str
    dtype: str
    projection: bool
    skipped: bool


@dataclass(frozen=True, slots=True)
class PackedFate:
    """A weight that the checkpoint packs, and what the model made of it.

    `linear4bit` and `packed` (fused experts) are as stored; `dequantised` equals the checkpoint's
    values and `differs` does not (a fresh weight, for instance); `bytes` are packed numbers in a
    module that cannot read them; `ignored` has no module and the model's class ignores the key;
    `absent` has no module and nobody says why.
    """

    name: str
    fate: Fate
    nested: bool
    projection: bool


@dataclass(frozen=True, slots=True)
class Census:
    """One look at a model. `checkpoint_packs` is None where no checkpoint was given to compare.

    `families` are the model types of the configuration, outermost first, and `force_float32` is
    Unsloth's own list of families that cannot run in float16.
    """

    tensors: tuple[TensorFacts, ...]
    packed: tuple[PackedLayer, ...] = ()
    plain: tuple[PlainLinear, ...] = ()
    fates: tuple[PackedFate, ...] = ()
    checkpoint_packs: bool | None = None
    device_map: Mapping[str, str] = field(default_factory=dict)
    model_class: str = ""
    model_dtype: str = ""
    config_dtypes: Mapping[str, str] = field(default_factory=dict)
    default_dtype: str = "float32"  # of tensors that are made without one
    bnb_compute_dtype: str | None = None
    forced_float32: bool | None = None
    families: tuple[str, ...] = ()
    force_float32: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def parameters(self) -> tuple[TensorFacts, ...]:
        """The parameters alone."""
        return tuple(tensor for tensor in self.tensors if tensor.kind == "parameter")

    @property
    def buffers(self) -> tuple[TensorFacts, ...]:
        """The buffers alone."""
        return tuple(tensor for tensor in self.tensors if tensor.kind == "buffer")
