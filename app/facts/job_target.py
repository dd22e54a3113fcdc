"""What can be known of a job's function without importing it, and where Python looks for it.

Standard library only. `search_path` is the one place that decides the order: the host stage looks
along it and the worker imports along it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Found(StrEnum):
    """How far a look at the target came."""

    FUNCTION = "function"  # the name is bound at the top of the module
    MODULE = "module"  # the module is there; whether it has the name shows only on import
    UNKNOWN = "unknown"  # something else than files may provide the module
    NO_MODULE = "no module"
    NO_FUNCTION = "no function"
    NOT_CALLED_SO = "not called so"  # it takes other arguments than a job is given
    BROKEN = "broken"  # the file cannot be compiled
    UNREADABLE = "unreadable"  # the file is there and cannot be read


# What a job is called with, by place.
JOB_ARGUMENTS = ("model", "tokenizer", "report")


@dataclass(frozen=True, slots=True)
class JobTargetFacts:
    """A target `package.module:function` as its files show it.

    `file` is the module's, empty where there is none; `why` is one line about what is missing,
    wrong or unknown; `names` are the functions and classes of the module; `searched` are the
    folders of the path, in order; `errno` is the system's number behind an unreadable file.
    """

    target: str
    found: Found
    file: str = ""
    why: str = ""
    line: int | None = None
    names: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    errno: int | None = None


def search_path(
    environ: Mapping[str, str], cwd: Path | str | None, known: Iterable[object] | None = None
) -> list[str]:
    """Where a job's module is looked for: as Python itself does, and the working folder last.

    `known` is `sys.path` by default, which holds PYTHONPATH already unless Python was told to
    ignore it. The working folder comes last, so that a `json.py` in it shadows nothing; `cwd` is
    None where it is gone.
    """
    entries = [entry for entry in (sys.path if known is None else known) if isinstance(entry, str)]
    entries += environ.get("PYTHONPATH", "").split(os.pathsep)
    if cwd is not None:
        # Made absolute as Python does with its own at the start.
        entries = [os.path.join(cwd, entry) if entry else "" for entry in entries]  # noqa: PTH118
        entries.append(str(cwd))
    return list(dict.fromkeys(entry.rstrip("/") or "/" for entry in entries if entry))
