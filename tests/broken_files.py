"""Checkpoints broken on purpose: copies of tiny models with one thing changed in the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WEIGHT = "model.layers.1.mlp.up_proj.weight"
PACKED_WEIGHT = "model.language_model.layers.1.mlp.up_proj.weight"
_FILE = "model.safetensors"


def copy(source: Path, folder: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(source, folder)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Load the one weight file, change its tensors in place, and write it back."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / _FILE)
    change(tensors)
    save_file(tensors, folder / _FILE, metadata={"format": "pt"})


def _missing(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop(WEIGHT))


def _shape(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({WEIGHT: tensors[WEIGHT][:-1].clone()}))


def _transposed(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({WEIGHT: tensors[WEIGHT].T.contiguous()}))


def _fewer_layers(folder: Path) -> None:
    _configure(folder, num_hidden_layers=1)


def _huge(folder: Path) -> None:
    _configure(folder, hidden_size=10_000_000)


def _configure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(config), encoding="utf-8")


def _left_over(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"extra.weight": tensors[WEIGHT].clone()}))


def _truncated(folder: Path) -> None:
    data = (folder / _FILE).read_bytes()
    (folder / _FILE).write_bytes(data[: len(data) // 2])


def _no_quant_state(folder: Path) -> None:
    key = f"{PACKED_WEIGHT}.quant_state.bitsandbytes__nf4"
    rewrite(folder, lambda tensors: tensors.pop(key))


def _base_names(folder: Path) -> None:
    """As the base model saves itself: without the prefix that transformers adds on load."""

    def rename(tensors: dict[str, Any]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("model.")] = tensors.pop(key)

    rewrite(folder, rename)


def _also_as(target: str) -> Callable[[Path], None]:
    """Adds a packed weight once more, under another module's name."""
    source = "model.language_model.layers.0.self_attn.k_proj."

    def add(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.startswith(source)]:
            tensors[target + key.removeprefix(source)] = tensors[key].clone()

    return lambda folder: rewrite(folder, add)


def skip(folder: Path, module: str) -> None:
    """Let the configuration say that a module is not packed, though the file packs it."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"]["llm_int8_skip_modules"].append(module)
    path.write_text(json.dumps(config), encoding="utf-8")


SKIPPED = "per_layer_model_projection"
SHARED_LAYER = "model.language_model.layers.3.self_attn.k_proj."
NO_MODULE = "model.language_model.layers.0.self_attn.extra_proj."

BREAKINGS: Mapping[str, Callable[[Path], None]] = {
    "missing weight": _missing,
    "another shape": _shape,
    "transposed": _transposed,
    "huge": _huge,
    "fewer layers": _fewer_layers,
    "unknown activation": lambda folder: _configure(folder, hidden_act="nonesuch"),
    "encoder and decoder": lambda folder: _configure(folder, model_type="t5"),
    "left over": _left_over,
    "truncated": _truncated,
    "base names": _base_names,
    "stripped quant state": _no_quant_state,
    # The real Gemma 3n checkpoint has these; transformers 5.17 builds no such modules.
    "keys of KV-shared layers": _also_as(SHARED_LAYER),
    "no module": _also_as(NO_MODULE),
    "packed but skipped": lambda folder: skip(folder, SKIPPED),
}
OF_PACKED = (
    *("stripped quant state", "keys of KV-shared layers", "no module", "packed but skipped"),
)
# A quantiser, on the fly too, keeps transformers from recording what does not fit.
IN_4_BITS = (*OF_PACKED, "transposed", "huge")
