"""Which weight files of a folder a loader takes, by the loader's own order.

transformers 5.17 (`modeling_utils._get_resolved_checkpoint_files`): the name in the config's
`transformers_weights`, else `model.safetensors`, else `model.safetensors.index.json`. Pickles
(`pytorch_model.bin`) come after that there and not at all here: reading one runs its code.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.facts.words import is_utf8, one_line
from app.probes.files import open_file, stays_inside
from app.probes.sniff import SNIFF, sniff

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
ADAPTER = "adapter_config.json"
_SAFETENSORS = ".safetensors"
_INDEX_SUFFIX = f"{_SAFETENSORS}.index.json"
# The largest real ones: a config of some hundred kB, an index of 20 MB for 300,000 tensors.
JSON_LIMIT = 64 * 1024 * 1024
# From this size on no real file is dense in brackets, and Python's lists take 20 times their bytes.
_DENSE_FROM = 16 * 1024 * 1024
_DENSE = 10  # bytes per bracket
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_SHOWN = 80  # characters of an error message
# What web services answer instead of a file: these keys alone, one of the first ones filled.
_TELLING = ("error", "message", "detail", "errors")
_ERROR_KEYS = frozenset(
    (
        *(*_TELLING, "status", "statusCode", "status_code", "code", "type", "title", "path"),
        *("timestamp", "success", "requestId", "request_id", "error_description", "cause"),
    )
)


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A JSON object in a file; `problem` is empty when it could be read."""

    data: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """An index: `table` maps tensor to file. `problem` is empty when it could be read and used."""

    files: tuple[str, ...] = ()
    table: Mapping[str, str] = field(default_factory=dict)
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


def read_json(path: Path) -> JsonFile:
    """Read an object; whatever is wrong ends as one line in `problem`."""
    try:
        with open_file(path) as file:
            if file.size > JSON_LIMIT:
                return JsonFile(problem=f"{file.size} bytes, more than {JSON_LIMIT}")
            text = file.read(file.size, 0)
    except OSError as error:
        return JsonFile(problem=error.strerror or str(error), errno=error.errno)
    except ValueError as error:  # a NUL byte in the path
        return JsonFile(problem=str(error))
    return parsed(text)


def parsed(text: bytes) -> JsonFile:
    """An object of JSON in UTF-8, as the loaders take it: a byte order mark ends them."""
    if not text.strip():
        return JsonFile(problem=sniff(text[:SNIFF]) or "empty")
    if len(text) > _DENSE_FROM and text.count(b"[") + text.count(b"{") > len(text) // _DENSE:
        return JsonFile(problem="not JSON that a model has: nothing but brackets")
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        return JsonFile(problem=sniff(text[:SNIFF]) or _no_json(text, error))
    if not isinstance(data, dict):
        return JsonFile(problem=f"a JSON {type(data).__name__}, not an object")
    told = [data[key] for key in _TELLING if data.get(key)]
    if told and data.keys() <= _ERROR_KEYS:
        said = one_line(str(told[0]), _SHOWN)
        return JsonFile(problem=f"an error message in JSON, not the file itself: {said}")
    return JsonFile(data)


def _no_json(text: bytes, error: Exception) -> str:
    if text.startswith(b"\xef\xbb\xbf"):
        return "not JSON: it begins with a byte order mark (save it as plain UTF-8)"
    return f"not JSON: {one_line(str(error), 200)}"


def choose_weights(folder: Path) -> WeightChoice:
    """Follow the loader's order; a broken index leaves `index_problem`."""
    config = read_json(folder / CONFIG)
    named = config.data.get("transformers_weights")
    if isinstance(named, str):
        problem = path_problem(named, _SAFETENSORS, _INDEX_SUFFIX)
        if problem:
            return WeightChoice(config, index_problem=f"{CONFIG} names weights {problem}")
        if named.endswith(_INDEX_SUFFIX):
            return _indexed(folder, named, config)
        return WeightChoice(config, (named,))
    there: dict[str, bool] = {}
    for name in (SINGLE, INDEX):
        # A dangling link or a pipe of that name is there too: the reader says what it is.
        there[name], number = _is_there(folder / name)
        if number:
            why = f"{name}: {os.strerror(number)}"
            return WeightChoice(config, index_problem=why, index_errno=number)
    if there[INDEX] and not (there[SINGLE] and _is_file(folder / SINGLE)):
        return _indexed(folder, INDEX, config)
    unused = INDEX if there[INDEX] else ""
    return WeightChoice(config, (SINGLE,) if there[SINGLE] else (), unused_index=unused)


def _is_file(path: Path) -> bool:
    """As the loader asks: what cannot be looked at is none."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _is_there(path: Path) -> tuple[bool, int | None]:
    """Whether there is anything of that name, and the system's number where it cannot tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False, None
    except OSError as error:
        return False, error.errno
    return True, None


def missing_weights(folder: Path) -> tuple[str, ...]:
    """Weight files that are named and are not there."""
    files = choose_weights(folder).files
    return tuple(name for name in files if not _leads_somewhere(folder / name))


def _leads_somewhere(path: Path) -> bool:
    """Whether a reader would find something, be it a disk that fails."""
    try:
        path.stat()
    except OSError as error:
        return error.errno not in _NOTHING
    except ValueError:  # a name that no file can have
        return False
    return True


def _indexed(folder: Path, name: str, config: JsonFile) -> WeightChoice:
    found = read_index(folder / name, _SAFETENSORS)
    problem = found.problem and f"{name}: {found.problem}"
    return WeightChoice(config, found.files, found.table, problem, found.errno)


def read_index(path: Path, suffix: str) -> WeightIndex:
    """An index of files with this suffix, none of them outside of the folder."""
    found = read_json(path)
    if found.problem:
        return WeightIndex(problem=found.problem, errno=found.errno)
    if not isinstance(found.data.get("metadata"), dict):
        # transformers 5.17 (`utils/hub.py`) writes into it while it loads.
        return WeightIndex(problem="its metadata is no object")
    table = found.data.get("weight_map")
    if not isinstance(table, dict) or not table:
        return WeightIndex(problem="no weight_map with tensors in it")
    files: set[str] = set()
    for tensor, file in table.items():
        if type(file) is str and file in files:
            continue
        problem = path_problem(file, suffix) if isinstance(file, str) else "that are no text"
        if problem:
            return WeightIndex(problem=f"{one_line(tensor)} is in files {problem}")
        files.add(file)
    return WeightIndex(tuple(sorted(files)), table)


def path_problem(name: str, *suffixes: str) -> str:
    """Why a file name from outside must not be opened; empty when it stays in the folder."""
    if not stays_inside(name) or "\\" in name or not is_utf8(name):
        return f"outside the folder or without a name: {one_line(name)}"
    return "" if name.endswith(suffixes) else f"that are no {suffixes[0]}: {one_line(name)}"
