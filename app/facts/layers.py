"""Which part of a model a module belongs to, told by its path. No torch, no vendor regex.

This is the independent half of the adapter guard: Unsloth decides by a regular expression where
LoRA goes, and this module says, without it, what each place is. The preflight asks it about the
names in a file, the engine about the modules of a model. Checked against some 40 families
of transformers 5.17 (`docs/decisions.md`): Llama, Qwen, Mistral, Phi, Gemma 2/3/3n/4, GPT-NeoX,
Falcon, Bloom, MoE families, Qwen-VL, Llava, Mllama, InternVL, GLM-4V, Llama 4, ...
"""

from __future__ import annotations

import re
from functools import lru_cache

from app.facts.adapter import ComponentT, KindT

_NUMBER = re.compile(r"\.\d+(?=\.)")
# A layer of a stack, by the names of stacks over the families; the first number of a path counts.
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,6})\.")
# Words are the parts of a path segment between underscores: `vision_tower` has vision and tower.
_AUDIO_WORDS = frozenset({"audio", "speech", "sound"})
VISION_WORDS = frozenset({"vision", "visual", "image", "img", "vit", "siglip", "clip"})
_LANGUAGE_WORDS = frozenset({"language", "text", "llm"})
# Joints between a tower and the language model. `embed_audio` is audio: audio is decided first.
_PROJECTOR_WORDS = frozenset(
    {"projector", "projection", "merger", "connector", "aligner", "resampler", "perceiver"}
)
_PROJECTOR_SEGMENTS = frozenset(
    {"embed_vision", "vision_embedder", "patch_embedder", "vision_language_adapter"}
)
# Heads and embeddings carry no layer of their own, whatever they sit under.
_HEADS = frozenset(
    {"lm_head", "embed_tokens", "embed_out", "score", "classifier", "qa_outputs", "wte", "wpe"}
)
_ROUTERS = frozenset({"router", "modality_router"})
# Part of a segment -> kind. `shared_experts` run for every token and are an MLP like any other;
# only what the router chooses among is `experts`.
_KINDS: tuple[tuple[KindT, tuple[str, ...]], ...] = (
    ("mlp", ("shared_expert",)),
    ("experts", ("experts",)),
    ("mixer", ("mixer", "mamba", "ssm")),
    ("attention", ("attn", "attention")),
    ("mlp", ("mlp", "ffn", "ffw", "feed_forward", "feedforward", "sparse_moe")),
)
# For families that put projections straight into the layer (OPT: `layers.0.fc1`).
_KIND_OF_LEAF: dict[str, KindT] = {
    **dict.fromkeys(("fc1", "fc2", "gate_proj", "up_proj", "down_proj", "gate_up_proj"), "mlp"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "qkv"), "attention"),
}


def unnumbered(name: str) -> str:
    """The path with 0 for every number: one for all layers of a kind."""
    return _NUMBER.sub(".0", name)


def in_stack(name: str) -> bool:
    """Whether the path goes through a numbered layer, like `layers.3.` or `blocks.0.`."""
    return _NUMBER.search(name) is not None


def component(name: str) -> ComponentT:
    """The part of the model. Audio first, then joints, towers, language; the rest is other."""
    return _component(unnumbered(name))


@lru_cache(maxsize=4096)
def _component(name: str) -> ComponentT:
    """Layers of one kind differ in their number alone, so that few names are ever judged."""
    *parents, leaf = name.split(".")
    words = _words(*parents, leaf)
    if leaf in _HEADS:
        found: ComponentT = "other"
    elif words & _AUDIO_WORDS:
        found = "audio"
    elif _is_projector(parents, leaf):
        found = "projector"
    elif words & VISION_WORDS:
        found = "vision"
    else:
        found = "language" if words & _LANGUAGE_WORDS or in_stack(name) else "other"
    return found


def _words(*segments: str) -> set[str]:
    return {word for segment in segments for word in segment.split("_")}


def _is_projector(parents: list[str], leaf: str) -> bool:
    """A joint by the module that holds the leaf.

    The leaf alone says so only as a whole (Mllama's `multi_modal_projector`, Phi-4's
    `img_projection_up`): Gemma's `layers.0.per_layer_projection` is no joint.
    """
    return bool(
        _words(*parents) & _PROJECTOR_WORDS
        or _PROJECTOR_SEGMENTS & {*parents, leaf}
        or leaf.endswith("projector")
        or leaf.startswith("img_projection")
    )


def kind(name: str, *, beside_experts: bool = False) -> KindT:
    """The kind of layer: the segment nearest to the leaf that names one decides.

    `beside_experts` says that the module's parent also holds routed experts; a leaf `gate` there
    is a router, which must not train (unsloth#3690: it overflows).
    """
    return _kind(unnumbered(name), beside_experts=beside_experts)


@lru_cache(maxsize=4096)
def _kind(name: str, *, beside_experts: bool) -> KindT:
    *parents, leaf = name.split(".")
    if leaf in _ROUTERS or leaf in _HEADS or (leaf == "gate" and beside_experts):
        return "other"
    for segment in reversed(parents):
        for found, marks in _KINDS:
            if any(mark in segment for mark in marks):
                return found
    return _KIND_OF_LEAF.get(leaf, "other")
