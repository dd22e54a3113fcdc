"""Which repository Unsloth would really load for a name, read from its own tables.

The rule is `loader_utils.get_model_name` of unsloth 2026.10.9. Its package is never imported here
(that takes nine seconds and dies without a GPU): `mapper.py` is pure data and code without imports,
and is run by itself; the short list of exceptions in `loader_utils.py` is parsed as a literal.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from app.errors import BootError
from app.outcome import Fault
from app.probes.wheel import installed_folder

_EXCEPTIONS = "BAD_MAPPINGS = {"


@dataclass(frozen=True, slots=True)
class NameTables:
    """Unsloth's tables, keyed by lower-cased name."""

    to_4bit: Mapping[str, str]
    to_float: Mapping[str, str]
    to_unsloth: Mapping[str, str]
    exceptions: Mapping[str, str]

    def resolve(self, name: str, *, load_in_4bit: bool) -> str:
        """The repository for a hub name; the name itself where no rule applies."""
        asked = name.lower()
        if load_in_4bit:
            # A name that is a 4-bit repository already is kept as it is written.
            kept = asked in self.to_4bit and asked.endswith("-bnb-4bit")
            mapped = name if kept else self.to_4bit.get(asked)
        else:
            mapped = self.to_float.get(asked) or self.to_unsloth.get(asked)
        return self.exceptions.get((mapped or name).lower(), mapped or name)


def unsloth_models_folder() -> Path:
    """Where the installed Unsloth keeps its tables; finding a package does not import it.

    Raises:
        BootError: Unsloth is not installed.
    """
    found = installed_folder("unsloth")
    if found is None:
        raise _unreadable("the package unsloth is not installed")
    return found / "models"


def read_tables(folder: Path) -> NameTables:
    """Read both files.

    Raises:
        BootError: they are not as this release expects; guessing a name would load another model.
    """
    try:
        mapper = _run(folder / "mapper.py")
        return NameTables(
            to_4bit=_lowered(mapper.FLOAT_TO_INT_MAPPER),
            to_float=_lowered(mapper.INT_TO_FLOAT_MAPPER),
            to_unsloth=_lowered(mapper.MAP_TO_UNSLOTH_16bit),
            exceptions=_exceptions((folder / "loader_utils.py").read_text(encoding="utf-8")),
        )
    except (OSError, ImportError, SyntaxError, AttributeError, TypeError, ValueError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from error


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_bootguard_unsloth_mapper", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lowered(table: Mapping[str, str]) -> dict[str, str]:
    """Unsloth looks names up in lower case only, so keys with capitals are never found."""
    return {key: value for key, value in table.items() if key == key.lower()}


def _exceptions(source: str) -> dict[str, str]:
    """`{"Name".lower(): "Other", ...}` without running the module, which imports torch."""
    start = source.index(_EXCEPTIONS)
    literal = source[start + len(_EXCEPTIONS) - 1 : source.index("\n}", start) + 2]
    table = ast.parse(literal, mode="eval").body
    if not isinstance(table, ast.Dict):
        raise TypeError("BAD_MAPPINGS is no dictionary")
    found: dict[str, str] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        inner = (
            key.func.value
            if isinstance(key, ast.Call) and isinstance(key.func, ast.Attribute)
            else key
        )
        if not (isinstance(inner, ast.Constant) and isinstance(value, ast.Constant)):
            raise TypeError("BAD_MAPPINGS holds more than names")
        found[str(inner.value).lower()] = str(value.value)
    return found


def _unreadable(why: str) -> BootError:
    return BootError(
        f"Unsloth's table of model names cannot be read: {why}",
        fault=Fault.INTERNAL,
        expected="unsloth's models/mapper.py and models/loader_utils.py as in release 2026.10.9",
        actual=why,
        next_step="rebuild the environment from its lock",
    )
