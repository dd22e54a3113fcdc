"""Whether a repository can be a model to train, by the names of its files alone.

Asked before a download: gigabytes of something else would only be refused afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.outcome import Fault
from app.probes.hub_answer import Cause
from app.probes.hub_cache import wanted
from app.probes.weights import ADAPTER, CONFIG

_PLAIN = "name a repository with config.json, a tokenizer and *.safetensors"
_GGUF = (
    "it is a model in GGUF, which cannot be trained",
    "name the safetensors form of the model (the repository that the GGUF was made from)",
)
_PICKLED = (
    "its weights are pickles alone (pytorch_model.bin)",
    "name a repository with *.safetensors, or set BOOT_ALLOW_PICKLE=true if you trust its author",
)
# A file that stands in the place of config.json in something else, what that is, and the way out.
_OTHERS = (
    (
        ADAPTER,
        "it is a LoRA adapter, not a base model",
        "set BOOT_BASE_MODEL_ID to the adapter's base model",
    ),
    (
        "model_index.json",
        "it is a diffusion pipeline, not a language model",
        "name a language model: this boot trains no diffusion models",
    ),
    (
        "params.json",
        "it is in its maker's own layout, not in that of transformers",
        "name the form of the model that was converted for transformers (it has a config.json)",
    ),
)


def misfit(names: Collection[str], *, pickles: bool) -> Cause | None:
    """Why these files are no model that a load could read, None where they may be one.

    An adapter beside a model, and all else that takes a look into files, is the checkpoint stage's.
    """
    if all(name.startswith(".git") or name.upper() == "README.MD" for name in names):
        step = f"{_PLAIN}, and check BOOT_REVISION"
        return _is("the hub lists no file of a model", step, fault=Fault.MODEL_ABSENT)
    gguf = any(name.lower().endswith(".gguf") for name in names)
    if CONFIG not in names:
        return _what_else(names, gguf=gguf)
    if _has_weights(wanted(names, pickles=pickles)):
        return None
    if _has_weights(wanted(names, pickles=True)):
        return _is(*_PICKLED)
    return _is(*_GGUF) if gguf else _is("it has no weights", _PLAIN)


def _is(said: str, step: str, fault: Fault = Fault.DATA_INVALID) -> Cause:
    return Cause(fault, about="contents", said=said, step=step)


def _has_weights(names: Iterable[str]) -> bool:
    """In the folder itself: a load reads no others."""
    return any("/" not in name and name.endswith((".safetensors", ".bin")) for name in names)


def _what_else(names: Collection[str], *, gguf: bool) -> Cause:
    for name, what, step in _OTHERS:
        if name in names:
            return _is(f"{what} (it has {name} and no {CONFIG})", step)
    if gguf:
        return _is(*_GGUF)
    deeper = sorted(name for name in names if name.endswith(f"/{CONFIG}"))
    if deeper:
        inside = deeper[0].removesuffix(f"/{CONFIG}")
        return _is(
            f"the model is a folder deeper, in {inside}",
            f"download it and give the folder {inside} of it in BOOT_BASE_MODEL_ID",
        )
    return _is(f"it has no {CONFIG}", _PLAIN)
