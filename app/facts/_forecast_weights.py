"""What each tensor of a checkpoint takes once it is in the model, from headers alone.

Every tensor gets a lower and an upper bound in bytes; they are equal where the loader leaves no
choice. The lower bound is what a failing verdict rests on, so that it leaves out what a model's
class may not build and counts as packed whatever may be packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from app.facts._forecast_names import CategoryT, Place, place_of
from app.facts._forecast_shape import Shape
from app.facts.adapter import Projection
from app.facts.checkpoint import STATE, CheckpointFacts, TensorHeader
from app.plan import Plan
from app.profiles import Profile

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_SMALL_FLOATS = "F8_"  # unpacked to 16 bits, kept, or packed further: the family decides
_MATRIX = 2  # dimensions
# A scale for 64 weights; scales are packed in turn, with one float32 for 256 of them
# (bitsandbytes 0.50: quantize_4bit's blocksize, quantize_blockwise's for nested scales).
_BLOCK, _NESTED_BLOCK = 64, 256
# Code tables of 16 and 256 float32 and one offset for each packed weight.
_TABLES = 4 * (16 + 256 + 1)
_OFFSET = 4  # bytes: a float32 that the file keeps inside the state's JSON


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor as the model will hold it; bytes.

    `plain` is what it takes in 16 bits (32 on a CPU): dequantised for a product, or before it is
    packed. `transit` is what it takes beyond `high` while it is loaded: packed `on_the_device`,
    else converted on the host. `mapped`: on a CPU it stays as it is in the file, whose pages the
    kernel can take back at any time. `sides` are those of a matrix unpacked, None for anything
    else; `layer` is the number in the language model's stack.
    """

    category: CategoryT
    low: int
    high: int
    projection: Projection
    certain: bool = False
    plain: int = 0
    transit: int = 0
    on_the_device: bool = False
    sides: tuple[int, int] | None = None
    layer: int | None = None
    packs: bool = False
    mapped: bool = False


def width_of(profile: Profile) -> int:
    """Bytes of an element of the compute dtype."""
    return _BYTES[profile.compute_dtype]


def weights(checkpoint: CheckpointFacts, shape: Shape, plan: Plan) -> tuple[Weight, ...]:
    """Every tensor of the files that becomes part of the model."""
    return tuple(_Reader(checkpoint, shape, plan).read())


class _Reader:
    """Knows what holds for all tensors of one checkpoint under one plan."""

    def __init__(self, checkpoint: CheckpointFacts, shape: Shape, plan: Plan) -> None:
        self._checkpoint = checkpoint
        self._packed = frozenset(checkpoint.packed)
        self._shape = shape
        self._width = width_of(plan.profile)
        self._dtype = _NAMES[plan.profile.compute_dtype]
        self._on_gpu = plan.profile.needs_gpu
        self._packing = plan.request.load_in_4bit and checkpoint.quantization_config is None

    def read(self) -> Iterator[Weight]:
        scales: dict[str, int] = {}  # packed weight -> bytes beside it; most of a file's tensors
        for header in self._checkpoint.tensors:
            base = self._base(header.name)
            if base is not None:
                scales[base] = scales.get(base, 0) + self._companion(header)
                continue
            place, layer = place_of(header.name)
            if self._builds(place, layer):
                packed = header.name in self._packed
                yield (self._stored_packed if packed else self._weight)(header, place, layer)
        for base, size in scales.items():
            place, layer = place_of(base)
            if self._builds(place, layer):
                yield Weight("scales", size, size, place.projection, mapped=not self._on_gpu)

    def _base(self, name: str) -> str | None:
        """The packed weight that a small tensor belongs to."""
        at = name.find(".weight.") if self._packed else -1
        found = name[: at + len(".weight")]
        return found if at >= 0 and found in self._packed else None

    def _builds(self, place: Place, layer: int | None) -> bool:
        """Whether the model's class has a place for it, as far as that is known.

        Left out: layers beyond the configuration's count (DeepSeek's and GLM's extra layer for
        multi-token prediction), `mtp` parts, computed tables, and keys and values of layers that
        share another one's (transformers 5.17 builds none).
        """
        if place.absent:
            return False
        if layer is None or self._shape.layers is None:
            return True
        shared = self._shape.shared
        if shared is not None and layer >= shared and place.shares:
            return False
        return layer < self._shape.layers

    def _companion(self, header: TensorHeader) -> int:
        """Scales and code tables; the state's JSON becomes an object, and one float of it stays."""
        if STATE not in header.name:
            return header.n_bytes
        state = self._checkpoint.quant.states.get(header.name)
        return _OFFSET if isinstance(state, Mapping) and "nested_offset" in state else 0

    def _stored_packed(self, header: TensorHeader, place: Place, layer: int | None) -> Weight:
        """As in the file; the CUDA path unpacks what is on its own skip list, towers above all."""
        sides = self._sides(header)
        plain = (prod(sides) if sides else 2 * header.n_bytes) * self._width
        kept = place.certain or not self._on_gpu
        return Weight(
            "packed weights",
            header.n_bytes,
            header.n_bytes if kept else max(plain, header.n_bytes),
            place.projection,
            certain=place.certain,
            plain=plain,
            sides=sides,
            layer=layer,
            packs=True,
            mapped=not self._on_gpu,
        )

    def _sides(self, header: TensorHeader) -> tuple[int, int] | None:
        """Of the matrix that is packed, unless its quant state does not fit it."""
        shape = self._checkpoint.unpacked_shape(header)
        if shape is None or len(shape) != _MATRIX or prod(shape) > 2 * header.n_bytes:
            return None
        return shape[0], shape[1]

    def _weight(self, header: TensorHeader, place: Place, layer: int | None) -> Weight:
        """Plain in the file: cast to the compute dtype, or packed while it is loaded."""
        n = prod(header.shape)
        category = place.category
        if category == "norms" and len(header.shape) >= _MATRIX:
            category = "other weights"
        low, high = self._plain(header, n, category)
        packs = must = False
        if self._packing and header.dtype in _FLOATS:
            # Routed experts may end in one tensor, which is no Linear: either is possible.
            routed = place.projection.kind == "experts"
            must = header.is_matrix and place.certain and not routed
            packs = must or routed or (self._on_gpu and _may_pack(header, category))
            low = min(low, packed_bytes(n)) if packs else low
            high = packed_bytes(n) if must else high
        tied = category == "head" and self._shape.tied is not False
        plain = n * self._width
        return Weight(
            "packed weights" if must else category,
            0 if tied or place.doubtful else low,
            high,
            place.projection,
            certain=place.certain,
            plain=plain,
            transit=plain if packs or (self._on_gpu and header.dtype != self._dtype) else 0,
            on_the_device=packs,
            sides=(header.shape[0], header.shape[1]) if header.is_matrix and place.weight else None,
            layer=layer,
            packs=packs,
            mapped=not (self._on_gpu or packs) and header.n_bytes == high,
        )

    def _plain(self, header: TensorHeader, n: int, category: CategoryT) -> tuple[int, int]:
        """What is not packed: in the compute dtype, norms in it or in float32."""
        if header.dtype.startswith(_SMALL_FLOATS):
            return n // 2, n * self._width
        if header.dtype not in _FLOATS:
            return header.n_bytes, header.n_bytes
        wide = category in ("norms", "buffers")
        return n * self._width, n * (_BYTES["float32"] if wide else self._width)


def _may_pack(header: TensorHeader, category: CategoryT) -> bool:
    """Any Linear may be; embeddings and heads never are."""
    return header.is_matrix and category not in ("embeddings", "head")


def packed_bytes(n: int) -> int:
    """Half a byte each, and the nested scales that the engine asks for."""
    scales = -(-n // _BLOCK)
    return (n + 1) // 2 + scales + 4 * -(-scales // _NESTED_BLOCK) + _TABLES
