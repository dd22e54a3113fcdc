"""Reads which model families the installed transformers knows, without importing it.

Its auto classes are tables of two texts a line in `models/auto` (5.17: `auto_mappings.py` and
`configuration_auto.py` for configurations, `modeling_auto.py` for models; 4.57 has the first
table in `configuration_auto.py`). The import would cost seconds, the files cost milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.facts.families import Families
from app.probes.files import read_bytes
from app.probes.wheel import installed_folder

_LARGEST = 4 * 1024 * 1024  # bytes of one source file; the tables have 110 kB
_PAIR = re.compile(r"""(?<=[\s({])["']([\w.-]{1,100})["'](?:,|:)\s+\(?["'](\w{1,100})["']""")
_VERSION = re.compile(r"""^__version__ = ["']([\w.+-]{1,40})["']""", re.MULTILINE)
_NEXT = re.compile(r"^[\w#@]", re.MULTILINE)
_CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_IMAGE_TEXT = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"
# What Unsloth's CUDA path asks besides (2026.10.9, models/loader.py), without its bare encoders.
_OTHER = tuple(
    f"MODEL_FOR_{name}_MAPPING_NAMES"
    for name in (
        *("MULTIMODAL_LM", "TEXT_TO_WAVEFORM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"),
        *("CTC", "TDT", "RNNT", "AUDIO_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION"),
        "AUDIO_XVECTOR",
    )
)
_CONFIGS = "CONFIG_MAPPING_NAMES"
# Where Unsloth gives transformers families that it lacks.
_PATCHES = (("unsloth", "models"), ("unsloth_zoo", "temporary_patches"), ("unsloth", "."))
_MOST_FILES = 400
_ENTRY = re.compile(r"""^ +["'](\w{1,60})["']:""", re.MULTILINE)
_SUBCONFIG = re.compile(r"""["'](\w+)["']:\s*AutoConfig\b""")


def read_families(config: Mapping[str, Any]) -> Families:
    """The installed families, and what else bears on this `config.json`."""
    folder = installed_folder("transformers")
    return families_in(folder, config) if folder is not None else Families()


def families_in(folder: Path, config: Mapping[str, Any]) -> Families:
    """The families of a transformers that lies in this folder."""
    auto = folder / "models" / "auto"
    configs: dict[str, str] = {}
    for name in ("auto_mappings.py", "configuration_auto.py"):
        configs |= _table(_text(auto / name), _CONFIGS)
    models = _text(auto / "modeling_auto.py")
    other: dict[str, str] = {}
    for name in _OTHER:
        other = _table(models, name) | other
    kinds = list(_types(config))
    return Families(
        version=_version(folder),
        configs=configs,
        causal=_table(models, _CAUSAL),
        image_text=_table(models, _IMAGE_TEXT),
        other=other,
        patched=_patched([kind for kind in kinds if configs and kind not in configs]),
        nested_by_type=_nested_by_type(folder, kinds[0]) if kinds[1:] else frozenset(),
        activations=_activations(folder),
    )


def _types(config: Mapping[str, Any]) -> Iterator[str]:
    """The model types that a configuration names: its own, then those one level deeper."""
    for table in (config, *(value for value in config.values() if isinstance(value, dict))):
        kind = table.get("model_type")
        if isinstance(kind, str) and re.fullmatch(r"[\w.-]{1,100}", kind):
            yield kind


def _activations(folder: Path) -> frozenset[str]:
    """Names in the table ACT2CLS (5.17: 24 of them), empty where it is not found as it was."""
    text = _text(folder / "activations.py")
    _, _, rest = text.partition("\nACT2CLS = {")
    return frozenset(_ENTRY.findall(rest.partition("\n}")[0]))


def _version(folder: Path) -> str:
    """By the package's own word; its metadata would take ten times as long to parse."""
    found = _VERSION.search(_text(folder / "__init__.py"))
    return found[1] if found else ""


def _table(text: str, name: str) -> dict[str, str]:
    """One table; what comes later under its name adds to it, as it does when the file runs.

    It begins with its name at the start of a line, and ends before the next line that has
    something there; its last line alone may hold pairs (`gpt-sw3` in 5.17).
    """
    found: dict[str, str] = {}
    at = text.find(f"\n{name}")
    while at >= 0:
        end = _NEXT.search(text, at + 1 + len(name))
        body = text[at : end.start() if end else len(text)]
        found.update(_PAIR.findall(body))
        at = text.find(f"\n{name}", at + 1)
    return found


def _text(path: Path) -> str:
    """A source file's text, empty where it cannot be read."""
    try:
        raw, _ = read_bytes(path, _LARGEST)
    except OSError:
        return ""
    return raw.decode(errors="replace")


def _patched(kinds: Iterable[str]) -> frozenset[str]:
    """Which of these stand in Unsloth's sources as a text of their own; looked up when needed."""
    left = set(kinds)
    found: set[str] = set()
    for package, part in _PATCHES if left else ():
        folder = installed_folder(package)
        files = sorted((folder / part).glob("*.py")) if folder is not None else []
        for path in files[:_MOST_FILES]:
            text = _text(path)
            found |= {kind for kind in left if f'"{kind}"' in text or f"'{kind}'" in text}
    return frozenset(found)


def _nested_by_type(folder: Path, kind: str) -> frozenset[str]:
    """Sub-configurations that the family's own file makes through AutoConfig."""
    path = folder / "models" / kind.replace("-", "_")
    files = sorted(path.glob("configuration_*.py"))[:3]
    return frozenset(name for file in files for name in _SUBCONFIG.findall(_text(file)))
