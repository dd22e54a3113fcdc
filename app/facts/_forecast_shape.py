"""The few numbers of a model that activations follow from: its configuration's, else its weights'.

A configuration may hold anything: what is no sane number counts as not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.facts.checkpoint import CheckpointFacts
from app.facts.shapes import embedding_rows, token_table

_LARGEST = 1 << 32  # no width, length or count of any model comes near
# Where families keep the language model's own configuration.
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "text_model_config")
# The families that Unsloth 2026.10.9 runs with plain attention, which holds every score
# (models/_utils.py: _EAGER_ONLY_PREFIXES, DISABLE_SDPA_MODEL_NAMES).
_EAGER = ("gemma3n", "deepseek_v4", "gpt_oss")


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths in elements. None where neither configuration nor weights say.

    `streams` is how many hidden states a layer hands on (AltUp's copies in Gemma 3n). `shared` is
    the first layer that takes its keys and values from another one, and so has no projections for
    them. `eager`: attention keeps one score for each pair of tokens.
    """

    family: str
    hidden: int | None
    vocabulary: int | None
    layers: int | None
    heads: int | None
    streams: int = 1
    experts_per_token: int | None = None
    shared: int | None = None
    tied: bool | None = None
    eager: bool = False


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration, which may be all of it."""
    for name in _TEXT:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            return _text_config(inner) if _TEXT[0] in inner else inner
    return config


def shape_of(checkpoint: CheckpointFacts) -> Shape:
    """Numbers of the language model."""
    outer = checkpoint.config
    text = _text_config(outer)
    families = [kind for table in (outer, text) if isinstance(kind := table.get("model_type"), str)]
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    shared = _number(text, "num_kv_shared_layers")
    table = token_table(checkpoint)
    tied = outer.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    return Shape(
        family=families[0] if families else "",
        hidden=_number(text, "hidden_size", "n_embd", "d_model", "dim")
        or (table.shape[1] if table else None),
        vocabulary=embedding_rows(checkpoint)[0],
        layers=layers,
        heads=_number(text, "num_attention_heads", "n_head", "num_heads"),
        streams=_number(text, "altup_num_inputs") or 1,
        experts_per_token=_number(text, "num_experts_per_tok", "num_experts_per_token", "top_k"),
        shared=layers - shared if layers and shared and shared < layers else None,
        tied=tied if isinstance(tied, bool) else None,
        eager=any(kind.startswith(_EAGER) for kind in families),
    )


def _number(table: Mapping[str, Any], *names: str) -> int | None:
    """The first that is there; a list (one number for each layer) counts by its largest."""
    for name in names:
        found = table.get(name)
        values = found if isinstance(found, list) else [found]
        sane = [value for value in values if type(value) is int and 0 < value < _LARGEST]
        if sane:
            return max(sane)
    return None
