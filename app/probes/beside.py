"""Gathers what lies beside configuration and headers: families, generation, pickles, neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.facts.beside import Beside
from app.facts.checkpoint import TensorHeader
from app.probes.model_types import read_families
from app.probes.pickles import read_pickles
from app.probes.weights import WeightChoice, read_json

_GENERATION = "generation_config.json"
_CONFIG = "config.json"
_MOST_FOLDERS = 100  # looked into, where the folder itself is no model


def read_beside(
    folder: Path, names: tuple[str, ...], choice: WeightChoice
) -> tuple[Beside, tuple[TensorHeader, ...]]:
    """The facts, and the tensors of pickles where a loader would come to open them."""
    lonely = not choice.files and not choice.index_problem
    pickled, tensors = read_pickles(folder, names if lonely else ())
    found = read_json(folder / _GENERATION) if _GENERATION in names else None
    beside = Beside(
        families=None if choice.config.problem else read_families(choice.config.data),
        generation=found.data if found is not None else {},
        nested=tuple(_nested(folder, names)) if choice.config.problem else (),
        pickled=pickled,
    )
    return beside, tensors


def _nested(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Folders one level deeper that hold a configuration: the model may be there."""
    for name in names[:_MOST_FOLDERS]:
        if (folder / name / _CONFIG).is_file():
            yield name
