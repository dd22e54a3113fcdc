"""Facts of what lies beside a checkpoint's configuration and headers.

A leaf: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.facts.families import Families
from app.facts.pickles import PickledWeights


@dataclass(frozen=True, slots=True)
class Beside:
    """What the judges of the checkpoint stage ask besides.

    `families` is what the installed transformers knows, None where it was not read. `generation` is
    the parsed `generation_config.json`, empty without one. `nested` are folders in this one, or in
    the snapshots of a hub's cache, that hold a `config.json`, looked for where this one has none.
    `adapter_base` is the model that an `adapter_config.json` here names, "" without one.
    """

    families: Families | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    adapter_base: str = ""
    pickled: PickledWeights = field(default_factory=PickledWeights)
