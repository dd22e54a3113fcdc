"""Where LoRA could stand, told from the tensor names of a file: an estimate before any load.

The rules are those of the adapter stage (`app.facts.layers`, `app.facts.adapter`), which judges the
real modules afterwards. What only a loaded model can tell (a matrix that is no Linear, keys that
transformers renames or splits) is left open: `unsure` names it, and nothing is refused for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from app.facts import layers
from app.facts.adapter import Asked, ComponentT, KindT, Projection
from app.facts.checkpoint import CheckpointFacts, TensorHeader

_FUSED = 3  # dimensions of routed experts in one tensor
_WEIGHT = ".weight"
# Leaves that are no Linear: norms per head (Cohere), embeddings, tables of positions.
# Gemma's `embedding_projection` and `embed_vision` are none of them.
_NO_LINEAR = re.compile(
    r"norm|conv|rotary|bias|^ln_|position|embed(?:ding)?s?$|embed_tokens|^w[tp]e$"
)
# Families whose projections are Conv1D, which only bitsandbytes turns into a Linear.
_CONV1D = ("gpt2", "gpt-sw3", "openai-gpt", "imagegpt", "decision_transformer")
_KEYS_AND_VALUES = frozenset(("k_proj", "v_proj"))


@dataclass(frozen=True, slots=True)
class Targets:
    """What could carry a pair.

    `unsure` are matrices of numbered layers of which the name does not tell the kind.
    `problem` says why nothing can be told of this file, empty where something can.
    """

    projections: tuple[Projection, ...] = ()
    unsure: tuple[Projection, ...] = ()
    problem: str = ""

    def expected(self, asked: Asked) -> tuple[Projection, ...]:
        """Those that must carry a pair under these flags."""
        return tuple(each for each in self.projections if asked.requires(each) and not each.fused)

    def reachable(self, asked: Asked) -> tuple[Projection, ...]:
        """Those that may carry one and are a Linear."""
        return tuple(
            each
            for each in self.projections
            if asked.allows(each.component, each.kind) and not each.fused
        )


def find_targets(checkpoint: CheckpointFacts, *, load_in_4bit: bool) -> Targets:
    """The targets of a file whose headers could be read."""
    if not checkpoint.tensors or any(shard.problem for shard in checkpoint.shards):
        return Targets(problem="the headers of the weights could not be read")
    kind = checkpoint.config.get("model_type")
    if kind in _CONV1D and not load_in_4bit:
        return Targets(problem=f"{kind} keeps its projections in modules that are no Linear")
    families = checkpoint.families
    found = list(_Reader(checkpoint, fuses=families is None or families.fuses).read())
    if not any(each.component == "language" for each in found):
        return Targets(problem="no layer of a language model is known by its name in the weights")
    return Targets(
        projections=tuple(each for each in found if not _unsure(each)),
        unsure=tuple(each for each in found if _unsure(each)),
    )


@lru_cache(maxsize=4096)
def _place(plain: str, *, beside_experts: bool) -> tuple[ComponentT, KindT, bool]:
    """Part of the model, kind, and whether in a layer: alike for all numbers of a name."""
    component: ComponentT = layers.component(plain)
    kind: KindT = layers.kind(plain, beside_experts=beside_experts)
    if kind == "other" and plain.rpartition(".")[2] in ("gate", "router"):
        component = "other"  # a router, and nothing that is unsure
    return component, kind, layers.in_stack(plain)


@lru_cache(maxsize=4096)
def _may_be_linear(leaf: str) -> bool:
    return _NO_LINEAR.search(leaf) is None


class _Reader:
    """What holds for all tensors of one file."""

    def __init__(self, checkpoint: CheckpointFacts, *, fuses: bool) -> None:
        self._checkpoint, self._fuses = checkpoint, fuses
        self._packed = frozenset(checkpoint.packed)
        self._beside_experts = {
            name.partition(".experts.")[0] for name in self._names() if ".experts." in name
        }
        self._first_shared = _first_shared(checkpoint) if fuses else None

    def _names(self) -> Iterator[str]:
        return (header.name for header in self._checkpoint.tensors)

    def read(self) -> Iterator[Projection]:
        """Every matrix that is, or becomes, a Linear of the model or a block of experts."""
        blocks: dict[str, None] = {}
        for header in self._checkpoint.tensors:
            linear = self._is_linear(header)
            if not linear and len(header.shape) != _FUSED:
                continue
            name = header.name.removesuffix(_WEIGHT)
            if self._is_block(name, linear=linear):
                blocks[_block(name)] = None
            elif linear and self._is_built(name):
                yield self._projection(name, packed=header.name in self._packed)
        for name in blocks:
            component, kind = layers.component(name), layers.kind(name)
            yield Projection(name, component, kind, layers.in_stack(name), fused=True)

    def _is_block(self, name: str, *, linear: bool) -> bool:
        """Routed experts: one tensor in the file, or one a model of transformers 5 makes of many.

        What shares a name with them but is for every token (`shared_experts`) is no part of it.
        """
        if linear and not self._fuses:
            return False
        inside = "experts" in name and "experts" in name.split(".")
        return inside and layers.kind(name) == "experts"

    def _is_linear(self, header: TensorHeader) -> bool:
        if not header.name.endswith(_WEIGHT) or not header.is_matrix:
            return False
        return _may_be_linear(header.name.removesuffix(_WEIGHT).rpartition(".")[2])

    def _is_built(self, name: str) -> bool:
        """transformers 5 builds no k and v on the layers that share another layer's."""
        if self._first_shared is None or _KEYS_AND_VALUES.isdisjoint(name.split(".")):
            return True
        layer = layers.LAYER.search(name)
        if layer is None or layers.component(name) != "language":
            return True
        return int(layer[1]) < self._first_shared

    def _projection(self, name: str, *, packed: bool) -> Projection:
        beside = name.rpartition(".")[0] in self._beside_experts
        component, kind, in_stack = _place(layers.unnumbered(name), beside_experts=beside)
        return Projection(name, component, kind, in_stack, packed=packed)


def _unsure(each: Projection) -> bool:
    """In a layer of a part that flags choose, and of no known kind."""
    return each.in_stack and each.kind == "other" and each.component in ("language", "vision")


def _block(name: str) -> str:
    """The one tensor that experts of one projection end in."""
    parts = name.split(".")
    at = parts.index("experts")
    return ".".join(part for i, part in enumerate(parts) if i <= at or not part.isdecimal())


def _first_shared(checkpoint: CheckpointFacts) -> int | None:
    """The first layer that shares keys and values of an earlier one (Gemma 3n and 4)."""
    table = checkpoint.text_config
    n_layers, shared = table.get("num_hidden_layers"), table.get("num_kv_shared_layers")
    if type(n_layers) is int and type(shared) is int and 0 < shared < n_layers:
        return n_layers - shared
    return None
