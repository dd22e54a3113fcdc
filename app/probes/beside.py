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
_ADAPTER = "adapter_config.json"
_SNAPSHOTS = "snapshots"  # of a repository's folder in the hub's cache, one a revision
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
        adapter_base=_adapter_base(folder, names),
        pickled=pickled,
    )
    return beside, tensors


def _nested(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Folders one level deeper that hold a configuration: the model may be there."""
    looked = names[:_MOST_FOLDERS]
    if _SNAPSHOTS in names:
        try:
            revisions = sorted(path.name for path in (folder / _SNAPSHOTS).iterdir())
        except OSError:  # then nothing is known of them
            revisions = []
        looked = (*looked, *(f"{_SNAPSHOTS}/{name}" for name in revisions[:_MOST_FOLDERS]))
    for name in looked:
        try:
            held = (folder / name / _CONFIG).is_file()
        except OSError:  # a folder that this uid may not enter, such as a disk's lost+found
            held = False
        if held:
            yield name


def _adapter_base(folder: Path, names: tuple[str, ...]) -> str:
    found = read_json(folder / _ADAPTER).data if _ADAPTER in names else {}
    base = found.get("base_model_name_or_path")
    return base if isinstance(base, str) else ""
