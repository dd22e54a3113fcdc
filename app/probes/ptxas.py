"""Whether Triton can run NVIDIA's assembler, by its own rule (`triton/knobs.py`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.facts.toolchain import PtxasFacts
from app.facts.words import error_text
from app.probes.wheel import package_folder

_VARIABLE = "TRITON_PTXAS_PATH"


def find_ptxas(environ: Mapping[str, str], path: Sequence[str] | None = None) -> PtxasFacts:
    """The variable's file where it is there, else the one that lies beside Triton's code."""
    folder = package_folder("triton", sys.path if path is None else path)
    if folder is None:
        return PtxasFacts()
    given = environ.get(_VARIABLE)
    if given is not None and Path(given).exists():
        return PtxasFacts(given, _problem(Path(given)), from_variable=True)
    own = folder / "backends" / "nvidia" / "bin" / "ptxas"
    return PtxasFacts(str(own), _problem(own))


def _problem(file: Path) -> str:
    """Why it cannot be run; empty where it can."""
    try:
        if not file.is_file():
            return "there is no such file"
    except (OSError, ValueError) as error:
        return error_text(error)
    with contextlib.suppress(OSError):  # what cannot be asked is told by its use
        if os.statvfs(file).f_flag & os.ST_NOEXEC:
            return "its file system is mounted noexec"
    return "" if os.access(file, os.X_OK) else "this user may not run it"
