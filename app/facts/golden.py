"""Facts of the NF4 proof: what the device unpacks and multiplies, against host references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UnpackerT = Literal["bitsandbytes", "unsloth"]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """One packed weight of its kind, unpacked on the device and compared bit for bit.

    A kind is a shape, a block size, a nested block size (None for plain scales), a dtype, and the
    dtypes of storage and arithmetic. `first` names the first value that differs: its place, what it
    must be and what it is. `problem` is what the kernel raised, or handed back that is no such
    weight.
    """

    name: str
    shape: tuple[int, ...]
    blocksize: int
    nested_blocksize: int | None
    dtype: str
    by: UnpackerT
    n_layers: int  # of this kind in the model
    n_compared: int = 0
    n_different: int = 0
    first: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """A 4-bit product of `rows` seeded rows against float64: relative root-mean-square error.

    `of` is what was computed: the output, or the gradient that a training step sends back to the
    input. `problem` is what the kernel raised.
    """

    name: str
    rows: int
    dtype: str
    error: float
    tolerance: float
    problem: str = ""
    of: Literal["output", "input gradient"] = "output"


@dataclass(frozen=True, slots=True)
class GoldenFacts:
    """`changed` are scales and tables in memory that are not the file's, by name.

    `reason` says why nothing was compared: a model without a packed layer.
    """

    unpacked: tuple[Unpacked, ...] = ()
    products: tuple[Product, ...] = ()
    n_scales: int = 0  # tensors that were compared with the file
    changed: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0
