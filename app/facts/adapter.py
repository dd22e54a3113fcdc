"""Facts of the adapter stage: what can carry a LoRA pair, what carries one, what else trains.

A leaf: stdlib only. `Asked` turns the `finetune_*` settings into the set that is expected, so that
the engine (before attaching) and the judge (afterwards) use one rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, Self

ComponentT = Literal["language", "vision", "audio", "projector", "other"]
KindT = Literal["attention", "mlp", "experts", "mixer", "other"]


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix of the base model that could carry a LoRA pair.

    `name` is the base model's own path, without PEFT's prefixes. `in_stack` says that it stands in
    a numbered layer, which is what "on every layer" speaks of. `fused` marks routed experts that
    are one three-dimensional parameter: no Linear, which Unsloth adapts on CUDA only.
    """

    name: str
    component: ComponentT
    kind: KindT
    in_stack: bool
    packed: bool = False
    fused: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """One LoRA pair as it is. `alpha` is scaling times `r`; `b_zero` None where B has no data.

    `features` are what the projection takes and gives; None where it is no Linear (fused experts).
    `shared` says that another pair holds one of its matrices too.
    """

    name: str
    component: ComponentT
    kind: KindT
    r: int
    alpha: float
    dropout: float
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    b_zero: bool | None
    features: tuple[int, int] | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapted model. `other_trainable` are the trainable parameters that no LoRA pair holds.

    `other_adapters` are names of adapters beside the one that was attached, `inactive` pairs whose
    layer is switched off, merged, or set to another adapter.
    `n_trainable` and `n_total` count scalar parameters, packed ones unpacked.
    """

    pairs: tuple[Pair, ...] = ()
    projections: tuple[Projection, ...] = ()
    other_trainable: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    frozen_lora: tuple[str, ...] = ()  # LoRA parameters that do not train
    other_adapters: tuple[str, ...] = ()
    inactive: tuple[str, ...] = ()
    n_trainable: int = 0
    n_total: int = 0


def inventory(items: Iterable[Pair | Projection]) -> str:
    """How many stand where: `language attention 28, language mlp 12`."""
    counts = Counter(f"{item.component} {item.kind}" for item in items)
    return ", ".join(f"{place} {count}" for place, count in sorted(counts.items())) or "none"


def needed(pairs: Iterable[Pair]) -> dict[str, str]:
    """What a batch must hold to reach each pair, by its name: text, image or audio.

    Layers that attend to an image belong to language and are passed over without one (Mllama).
    """
    media: dict[ComponentT, str] = {"audio": "audio", "vision": "image", "projector": "image"}
    found = {pair.name: media.get(pair.component, "text") for pair in pairs}
    crossing = tuple(name.partition("cross_attn.")[0] for name in found if ".cross_attn." in name)
    return {name: "image" if name.startswith(crossing) else each for name, each in found.items()}


def counted(n: int, thing: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def whereabouts(items: Iterable[Pair | Projection]) -> str:
    """The parts in words: `attention and mlp of language, the projector`."""
    kinds: dict[ComponentT, set[KindT]] = {}
    for item in items:
        kinds.setdefault(item.component, set()).add(item.kind)
    parts = [
        "the projector" if part == "projector" else f"{' and '.join(sorted(kinds[part]))} of {part}"
        for part in sorted(kinds)
    ]
    return ", ".join(parts) or "nothing"


class Flags(Protocol):
    """The settings that choose where LoRA goes (`app.config.ModelRequest`)."""

    @property
    def finetune_vision_layers(self) -> bool:
        """Vision towers and their projector."""

    @property
    def finetune_language_layers(self) -> bool:
        """The language model."""

    @property
    def finetune_attention_modules(self) -> bool:
        """Attention projections of the chosen parts."""

    @property
    def finetune_mlp_modules(self) -> bool:
        """MLP projections of the chosen parts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the settings want LoRA. A copy of the four `finetune_*` flags.

    Unsloth's meaning of them (unsloth_zoo 2026.10.9, `peft_utils.get_peft_regex`): language and
    vision choose the part of the model, attention and MLP the kind of layer in it. Audio is never
    among them (it has a flag of its own, off by default, that this project does not set).
    """

    vision: bool
    language: bool
    attention: bool
    mlp: bool

    @classmethod
    def of(cls, request: Flags) -> Self:
        """The request's four flags."""
        return cls(
            vision=request.finetune_vision_layers,
            language=request.finetune_language_layers,
            attention=request.finetune_attention_modules,
            mlp=request.finetune_mlp_modules,
        )

    def __str__(self) -> str:
        """In words: `attention and mlp of language`."""
        parts = [name for name in ("vision", "language") if getattr(self, name)]
        kinds = [name for name in ("attention", "mlp") if getattr(self, name)]
        return f"{' and '.join(kinds) or 'no kind'} of {' and '.join(parts) or 'no part'}"

    def allows(self, component: ComponentT, kind: KindT) -> bool:
        """Whether a pair may stand there.

        The projector from vision to language belongs to vision and counts as MLP, as Unsloth has
        it: for Gemma 3n `embed_vision.embedding_projection` is the only Linear that vision has.
        """
        if component == "projector":
            return self.vision and self.mlp
        if component == "vision":
            return self.vision and self._kind(kind)
        return component == "language" and self.language and self._kind(kind)

    def requires(self, projection: Projection) -> bool:
        """Whether a pair must stand there: attention and MLP of every numbered layer.

        Not required though allowed: projectors (Unsloth adapts Gemma's only), routed experts and
        state-space mixers (their fused kernels may read the weight past an adapter).
        """
        return (
            projection.in_stack
            and projection.component in ("language", "vision")
            and projection.kind in ("attention", "mlp")
            and self.allows(projection.component, projection.kind)
        )

    def _kind(self, kind: KindT) -> bool:
        if kind == "mixer":
            return self.attention or self.mlp
        return (kind == "attention" and self.attention) or (kind in ("mlp", "experts") and self.mlp)

    def unmet(self, places: Iterable[tuple[ComponentT, KindT]]) -> tuple[str, ...]:
        """Which parts of the request `places` cannot serve, in words; empty when all can be met."""
        if not (self.vision or self.language):
            return ("neither vision nor language layers are asked for",)
        if not (self.attention or self.mlp):
            return ("neither attention nor MLP modules are asked for",)
        served = {place for place in places if self.allows(*place)}
        components = {component for component, _ in served}
        kinds = {kind for _, kind in served}
        problems = []
        if self.language and "language" not in components:
            problems.append("language layers are asked for and the model has none of that kind")
        if self.vision and not components & {"vision", "projector"}:
            problems.append("vision layers are asked for and the model has none of that kind")
        if components == {"projector"}:
            return tuple(problems)  # vision that is one projector: it has no attention to adapt
        if self.attention and not kinds & {"attention", "mixer"}:
            problems.append("attention modules are asked for and the model has none there")
        if self.mlp and not kinds & {"mlp", "experts", "mixer"}:
            problems.append("MLP modules are asked for and the model has none there")
        return tuple(problems)
