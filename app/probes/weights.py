"""Which weight files of a folder a loader takes, by the loader's own order.

transformers 5.17 (`modeling_utils._get_resolved_checkpoint_files`): the name in the config's
`transformers_weights`, else `model.safetensors`, else `model.safetensors.index.json`. Pickles
(`pytorch_model.bin`) come after that there and not at all here: reading one runs its code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from app.facts.words import one_line
from app.probes.files import read_bytes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_INDEX_SUFFIX = ".safetensors.index.json"
# The largest real ones: a config of some hundred kB, an index of 20 MB for 300,000 tensors.
JSON_LIMIT = 64 * 1024 * 1024
SNIFF = 512  # bytes


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A JSON object in a file; `problem` is empty when it could be read."""

    data: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """The weight files that a loader opens, in order; `index` where one names them."""

    config: JsonFile
    files: tuple[str, ...] = ()
    index: Mapping[str, str] = field(default_factory=dict)
    index_problem: str = ""
    index_errno: int | None = None
    unused_index: str = ""


def sniff(head: bytes) -> str:
    """What a file is instead, by its first bytes; empty when nothing is recognised."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file itself (run `git lfs pull`)"
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "an HTML or XML page, not the file itself (a log-in or error page was saved)"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive (a pickled PyTorch file?)"
    if head.startswith(b"\x1f\x8b"):
        return "a gzip archive"
    if head and not head.strip(b"\0"):
        return "only zero bytes (a download that never finished?)"
    return ""


def read_json(path: Path) -> JsonFile:
    """Read an object; whatever is wrong ends as one line in `problem`."""
    try:
        text, size = read_bytes(path, JSON_LIMIT)
    except OSError as error:
        return JsonFile(problem=error.strerror or str(error), errno=error.errno)
    except ValueError as error:  # a NUL byte in the path
        return JsonFile(problem=str(error))
    if size > JSON_LIMIT:
        return JsonFile(problem=f"{size} bytes, more than {JSON_LIMIT}")
    return _parsed(text)


def _parsed(text: bytes) -> JsonFile:
    if not text.strip():
        return JsonFile(problem="empty")
    try:
        data = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return JsonFile(problem=sniff(text[:SNIFF]) or f"not JSON: {str(error)[:200]}")
    if not isinstance(data, dict):
        return JsonFile(problem=f"a JSON {type(data).__name__}, not an object")
    return JsonFile(data)


def choose_weights(folder: Path) -> WeightChoice:
    """Follow the loader's order; a broken index leaves `index_problem`."""
    config = read_json(folder / CONFIG)
    named = config.data.get("transformers_weights")
    if isinstance(named, str):
        problem = path_problem(named)
        if problem:
            return WeightChoice(config, index_problem=f"{CONFIG} names weights {problem}")
    elif (folder / SINGLE).is_file() or not os.path.lexists(folder / INDEX):
        # A dangling link or a pipe of that name is taken too: the reader says what it is.
        named = SINGLE if os.path.lexists(folder / SINGLE) else None
        if named is None:
            return WeightChoice(config)
    else:
        named = INDEX
    if named.endswith(_INDEX_SUFFIX):
        return _indexed(folder, named, config)
    spare = named == SINGLE and os.path.lexists(folder / INDEX)
    return WeightChoice(config, (named,), unused_index=INDEX if spare else "")


def missing_weights(folder: Path) -> tuple[str, ...]:
    """Weight files that are named and are not there."""
    return tuple(name for name in choose_weights(folder).files if not (folder / name).exists())


def _indexed(folder: Path, name: str, config: JsonFile) -> WeightChoice:
    found = read_json(folder / name)
    if found.problem:
        return WeightChoice(
            config, index_problem=f"{name}: {found.problem}", index_errno=found.errno
        )
    if not isinstance(found.data.get("metadata"), dict):
        # transformers 5.17 (`utils/hub.py`) writes into it while it loads.
        return WeightChoice(config, index_problem=f"{name}: its metadata is no object")
    table = found.data.get("weight_map")
    if not isinstance(table, dict) or not table:
        return WeightChoice(config, index_problem=f"{name}: no weight_map with tensors in it")
    for tensor, file in table.items():
        problem = path_problem(file) if isinstance(file, str) else "that are no text"
        if problem:
            return WeightChoice(
                config, index_problem=f"{name}: {one_line(tensor)} is in files {problem}"
            )
    return WeightChoice(config, tuple(sorted(set(table.values()))), table)


def path_problem(name: str) -> str:
    """Why a file name from outside must not be opened; empty when it stays in the folder."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or "\\" in name:
        return f"outside the folder or without a name: {one_line(name)}"
    return (
        ""
        if name.endswith((".safetensors", _INDEX_SUFFIX))
        else (f"that are no safetensors: {one_line(name)}")
    )
