"""Facts of the installed transformers: which model families it knows, by its own tables.

A leaf: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

# transformers 5 keeps the routed experts of a layer in one tensor, and builds no k and v
# projections on layers that share another layer's; 4.57 does neither.
_FUSING = 5


@dataclass(frozen=True, slots=True)
class Families:
    """What the tables of transformers' auto classes say.

    `configs`: model type -> class of its configuration. `causal` and `image_text`: model type ->
    class of the model, for AutoModelForCausalLM and AutoModelForImageTextToText; `other`: for the
    other auto classes that build a whole generative or audio model. `patched`: types among those of
    this checkpoint that Unsloth's own sources name. `nested_by_type`: names of sub-configurations
    whose class is looked up by their own `model_type`, for this checkpoint's type. `activations`
    are the names of functions between matrices. `version` is transformers' own, "" where it is not
    installed or says nothing.
    """

    version: str = ""
    configs: Mapping[str, str] = field(default_factory=dict)
    causal: Mapping[str, str] = field(default_factory=dict)
    image_text: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)
    patched: frozenset[str] = frozenset()
    nested_by_type: frozenset[str] = frozenset()
    activations: frozenset[str] = frozenset()

    @property
    def fuses(self) -> bool:
        """Whether this is a transformers that fuses experts; the unknown one is a new one."""
        major = self.version.partition(".")[0]
        return not major.isdecimal() or int(major) >= _FUSING

    def knows(self, model_type: str) -> bool:
        """Whether a configuration of this type can be made."""
        return model_type in self.configs or model_type in self.patched

    def near(self, model_type: str) -> list[str]:
        """Known types that are spelt almost so."""
        return get_close_matches(model_type[:100], list(self.configs), n=3, cutoff=0.7)
