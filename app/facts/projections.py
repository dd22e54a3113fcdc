"""Which matrices are the language model's projections, told by a name. Standard library only.

Over all families that transformers 5.17 builds. The engine packs by it and the forecast counts by
it, so that both agree.
"""

from __future__ import annotations

import re

# A leaf below an attention or MLP module of a numbered layer (OPT's fc1 and fc2 lie in the layer
# itself), outside every tower and projector of another modality, and no router of a mixture of
# experts (its order decides, which 4 bits upset; unsloth_zoo's SKIP_QUANTIZATION_MODULES leaves
# routers out too).
_TOWER = (
    "vision|visual|image|video|audio|speech|acoustic|codec|projector|merger|connector|resampler"
)
_BLOCK = r"attn|attention|mlp|feed_forward|ffn|expert|moe"
PATTERN = (
    rf"(?!(?:[^.]+\.)*[^.]*(?:{_TOWER})[^.]*\.)"
    r"(?!(?:.*\.)?[^.]*router[^.]*(?:\.|\Z))(?!.*\.(?:gate|shared_expert_gate)\Z)"
    rf"(?:.*\.)?\d+\.(?:(?:[^.]+\.)*[^.]*(?:{_BLOCK})[^.]*\.(?:[^.]+\.)*[^.]+|fc[12])\Z"
)
_PROJECTION = re.compile(PATTERN)


def is_projection(module: str) -> bool:
    """Whether a module is one of the language model's attention and MLP projections."""
    return _PROJECTION.match(module) is not None
