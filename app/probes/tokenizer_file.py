"""Reads a tokenizer.json without building what nobody asks for: its merges are most of it.

Gemma's has 33 MB, of which json's own parser makes 300 MB in half a second. msgspec checks what it
skips as it does what it keeps, but for the encoding of skipped texts, which is checked apart.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

from app.facts.words import one_line
from app.probes.files import open_file
from app.probes.weights import JsonFile, parsed

_LIMIT = 128 * 1024 * 1024  # bytes; the largest known have 35 MB
_SMALL = 2 * 1024 * 1024  # bytes: up to here the import of msgspec takes longer than json does
_EXACT = 16 * 1024 * 1024  # bytes: up to here json may say the last word
_CHUNK = 1024 * 1024  # bytes


def read_tokenizer(path: Path) -> JsonFile:
    """An object with `model` (its `type` and `vocab`) and `added_tokens`, as far as they are there.

    Whatever is wrong ends as one line in `problem`.
    """
    try:
        with open_file(path) as file:
            if file.size > _LIMIT:
                return JsonFile(problem=f"{file.size} bytes, more than {_LIMIT}")
            text = file.read(file.size, 0)
    except OSError as error:
        return JsonFile(problem=error.strerror or str(error), errno=error.errno)
    if len(text) <= _SMALL:
        return _by_json(text)
    return read_large(text)


def read_large(text: bytes) -> JsonFile:
    """The same facts as json's parser gives, without what is skipped."""
    import msgspec

    vocabulary = dict[str, int] | list[msgspec.Raw] | None
    model_type = msgspec.defstruct("Model", [("vocab", vocabulary, None), ("type", Any, None)])
    whole = msgspec.defstruct("Tokenizer", [("model", model_type), ("added_tokens", Any, None)])
    try:
        _check_encoding(text)
        found: Any = msgspec.json.decode(text, type=whole)
    except (ValueError, RecursionError) as error:
        if len(text) <= _EXACT:
            return _by_json(text)
        # The library that reads it in the load (tokenizers, by serde) refuses all of this too.
        return JsonFile(problem=f"not JSON of a tokenizer: {one_line(str(error))}")
    plain = msgspec.structs.asdict(found)
    return JsonFile({**plain, "model": msgspec.structs.asdict(found.model)})


def _by_json(text: bytes) -> JsonFile:
    found = parsed(text)
    if found.problem:
        return found
    model, added = found.data.get("model"), found.data.get("added_tokens")
    if isinstance(model, dict):
        model = {"type": model.get("type"), "vocab": model.get("vocab")}
    return JsonFile({"model": model, "added_tokens": added})


def _check_encoding(text: bytes) -> None:
    """In pieces: a text of 33 MB in Python's memory takes twice as much."""
    if text.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(text)
    for begin in range(0, len(text), _CHUNK):
        decoder.decode(view[begin : begin + _CHUNK])
    decoder.decode(b"", final=True)
