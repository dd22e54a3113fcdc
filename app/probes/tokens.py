"""Reads the small files beside the weights: are they what they should be, which ids do they give.

Chat templates are parsed and never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.facts.checkpoint import TokenFacts
from app.probes.files import read_bytes
from app.probes.sniff import SNIFF, sniff
from app.probes.templates import read_templates, template_problem
from app.probes.tokenizer_file import read_tokenizer
from app.probes.weights import ADAPTER, CONFIG, GENERATION, JsonFile, read_json

# Looked at by their first bytes; other texts in a folder are nobody's.
_SNIFFED = (".model", ".jinja")
_VOCABULARIES = frozenset(
    (
        *("vocab.json", "merges.txt", "vocab.txt", "added_tokens.json", "tekken.json"),
        *("chat_template.json", "video_preprocessor_config.json"),
    )
)
_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Each is an object that the load reads, whichever class it ends in.
_OBJECTS = frozenset(
    (
        *(_TOKENIZER, _TOKENIZER_CONFIG, GENERATION, ADAPTER, "special_tokens_map.json"),
        *("processor_config.json", "preprocessor_config.json"),
    )
)
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_TOKENS = ("pad_token", "bos_token", "eos_token", "unk_token")


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """`objects`: what the files of JSON hold, by name.

    `broken`: name -> what it is instead; `broken_templates`: name -> why a chat template of it
    cannot be parsed; `errnos`: name -> the system's number.
    """

    objects: Mapping[str, Mapping[str, Any]]
    broken: Mapping[str, str]
    broken_templates: Mapping[str, str]
    errnos: Mapping[str, int]
    tokens: TokenFacts


def read_small_files(folder: Path, names: tuple[str, ...], config: Mapping[str, Any]) -> SmallFiles:
    """Every file of these that the load may read, besides config, index and weights."""
    broken: dict[str, str] = {}
    errnos: dict[str, int] = {}
    objects: dict[str, Mapping[str, Any]] = {}
    for name in names:
        read = _reader(name)
        if read is None:
            continue
        found = read(folder / name)
        problem = found.problem or _shape_problem(name, found.data)
        if problem:
            broken[name] = problem
            errnos[name] = found.errno or 0
        objects[name] = found.data
    templates = read_templates(folder, objects.get(_TOKENIZER_CONFIG, {}))
    broken_templates: dict[str, str] = {}
    for name, text in templates:
        problem = "" if name in broken else template_problem(text)
        if problem:
            broken_templates[name] = problem
    tokens = _tokens(objects, config, "".join(text for _, text in templates))
    return SmallFiles(objects, broken, broken_templates, errnos, tokens)


def _reader(name: str) -> Callable[[Path], JsonFile] | None:
    """How a file of this name is read, None for one that no load opens."""
    if name == _TOKENIZER:
        return read_tokenizer
    if name in _OBJECTS:
        return read_json
    return _sniffed if name in _VOCABULARIES or name.endswith(_SNIFFED) else None


def _sniffed(path: Path) -> JsonFile:
    """A file of which only the first bytes are looked at."""
    try:
        head, size = read_bytes(path, SNIFF)
    except OSError as error:
        return JsonFile(problem=error.strerror or str(error), errno=error.errno)
    return JsonFile(problem="empty" if size == 0 else sniff(head))


def _shape_problem(name: str, data: Mapping[str, Any]) -> str:
    """What is missing from a file that is an object."""
    if name == _TOKENIZER:
        model = data.get("model")
        if not isinstance(model, dict):
            return "it holds no tokenizer model"
        return "" if model.get("vocab") else "its vocabulary is empty"
    if name == GENERATION:
        for key in ("max_new_tokens", "max_length", "min_length", "num_beams", "top_k"):
            value = data.get(key)
            if value is not None and type(value) is not int:
                return f"{key} is no whole number"
    return ""


def _tokens(
    objects: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any], templates: str
) -> TokenFacts:
    tokenizer = objects.get(_TOKENIZER, {})
    settings = objects.get(_TOKENIZER_CONFIG, {})
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = tokenizer.get("added_tokens")
    entries = [one for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    used = _texts(settings, _TOKENS) | {templates}
    text = config.get("text_config")
    special = dict(_ids(CONFIG, config))
    special |= _ids(f"{CONFIG}: text_config", text if isinstance(text, dict) else {})
    special |= _ids(GENERATION, objects.get(GENERATION, {}))
    known = {one.get("content") for one in entries}
    return TokenFacts(
        _largest(vocab),
        tuple(_added(entries, used)),
        special,
        tuple(_absent(vocab, known, settings)),
    )


def _absent(
    vocab: object, added: set[Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Tokens of the settings that no table holds; of a list by id nothing is told."""
    told = settings.get("added_tokens_decoder")
    listed = told.values() if isinstance(told, dict) else ()
    added |= {one.get("content") for one in listed if isinstance(one, dict)}
    if not isinstance(vocab, dict) or not vocab:
        return
    for key in _TOKENS:
        for text in _texts(settings, (key,)):
            if text and text not in vocab and text not in added:
                yield key, text


def _largest(vocab: object) -> int:
    """A table of ids (BPE, WordPiece, WordLevel), or a list by id (Unigram)."""
    if isinstance(vocab, list):
        return len(vocab) - 1
    if not isinstance(vocab, dict):
        return -1
    if set(map(type, vocab.values())) == {int}:
        return int(max(vocab.values()))  # of 262,144 in a third of the time
    return max((number for number in vocab.values() if type(number) is int), default=-1)


def _added(entries: list[dict[str, Any]], used: set[str]) -> Iterator[tuple[int, str, bool]]:
    """A special token that no template and no setting uses stands in no training text."""
    for entry in entries:
        number, content = entry.get("id"), entry.get("content")
        if type(number) is int and isinstance(content, str):
            plain = entry.get("special") is not True
            yield number, content, plain or any(content in text for text in used)


def _texts(settings: Mapping[str, Any], keys: tuple[str, ...]) -> set[str]:
    """Tokens by key; older files hold an object with the token's content."""
    found = set()
    for key in keys:
        value = settings.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found.add(text)
    return found


def _ids(where: str, data: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    found = {}
    for key in _IDS:
        value = data.get(key)
        ids = tuple(
            one for one in (value if isinstance(value, list) else [value]) if type(one) is int
        )
        if ids:
            found[f"{where}: {key}"] = ids
    return found
