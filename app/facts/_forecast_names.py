"""What a tensor's name tells of its place in a model. Layers share a name, so answers are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from app.facts import layers
from app.facts.adapter import Projection
from app.facts.projections import is_projection

CategoryT = Literal[
    "packed weights", "scales", "embeddings", "head", "norms", "towers", "buffers", "other weights"
]
_TOWERS = frozenset({"vision", "audio", "projector"})
_EMBEDDINGS = frozenset(
    ("embed_tokens", "embed_tokens_per_layer", "wte", "wpe", "embed_in", "embed_positions")
) | {"word_embeddings", "tok_embeddings", "position_embeddings"}
_HEADS = frozenset(("lm_head", "embed_out", "output"))
_BUFFERS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
# Computed by every class, whatever an old file holds.
_COMPUTED = frozenset(("inv_freq", "masked_bias", "position_ids"))
# Parts of models that speak: the class that is trained may leave them out.
_DOUBTFUL = frozenset(("talker", "token2wav", "code2wav"))
_KEYS_AND_VALUES = frozenset(("k_proj", "v_proj", "k_norm", "v_norm"))


@dataclass(frozen=True, slots=True)
class Place:
    """One kind of tensor. `certain`: a projection of the language model, which must be packed.

    `absent`: computed by the class, or of its extra head for several tokens at once (`mtp`).
    """

    category: CategoryT
    projection: Projection
    certain: bool
    absent: bool
    doubtful: bool
    shares: bool  # keys and values, which a layer can take from another one
    weight: bool  # the leaf is `weight`


def place_of(name: str) -> tuple[Place, int | None]:
    """The kind, and the number of the language model's layer where it is in one."""
    place = _place(layers.unnumbered(name))
    found = None if place.projection.component in _TOWERS else layers.LAYER.search(name)
    return place, int(found[1]) if found else None


@lru_cache(maxsize=4096)
def _place(name: str) -> Place:
    """For a name whose numbers are all 0."""
    module, _, leaf = name.rpartition(".")
    parts = name.split(".")
    component, kind = layers.component(module), layers.kind(module)
    return Place(
        category=_category(parts, tower=component in _TOWERS),
        projection=Projection(module, component, kind, layers.in_stack(f"{module}.")),
        certain=leaf == "weight" and is_projection(module),
        absent=leaf in _COMPUTED or "mtp" in parts,
        doubtful=not _DOUBTFUL.isdisjoint(parts),
        shares=not _KEYS_AND_VALUES.isdisjoint(parts),
        weight=leaf == "weight",
    )


def _category(parts: list[str], *, tower: bool) -> CategoryT:
    found: CategoryT = "other weights"
    if parts[-1] in _BUFFERS:
        found = "buffers"
    elif any("norm" in part or part.startswith("ln_") for part in parts[-2:]):
        found = "norms"
    elif tower:
        found = "towers"
    elif not _EMBEDDINGS.isdisjoint(parts):
        found = "embeddings"
    elif not _HEADS.isdisjoint(parts) and not any(part.isdecimal() for part in parts):
        found = "head"
    return found
