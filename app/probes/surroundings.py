"""Gathers what variables of others say, and looks at the files that they name."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from app.facts.surroundings import WATCHED, Surroundings, offline_variable
from app.probes.certificates import append_problem, trust_facts
from app.probes.proxies import proxy_facts

_LARGEST = 2**20  # torch/_logging/_registrations.py takes 10 KB
_REGISTERED = re.compile(r"register_(?:log|artifact)\(\s*['\"]([^'\"]+)['\"]")


def probe_surroundings(environ: Mapping[str, str]) -> Surroundings:
    """Only what is set is looked at: mostly nothing, and then this costs nothing."""
    return Surroundings(
        variables={name: environ[name] for name in sorted(WATCHED & environ.keys())},
        proxies=proxy_facts(environ),
        trust=trust_facts(environ),
        missing_preloads=missing_preloads(environ.get("LD_PRELOAD", "")),
        unknown_logs=unknown_logs(environ.get("TORCH_LOGS", "")),
        log_file_problem=append_problem(environ.get("TORCH_LOGS_OUT")),
        offline=offline_variable(environ),
    )


def missing_preloads(value: str) -> tuple[str, ...]:
    """Libraries of LD_PRELOAD that are named by a path where nothing is.

    The loader separates by blanks and colons, looks a bare name up, and says no more than a line
    on standard error about one that it does not find.
    """
    return tuple(
        name for name in re.split(r"[ :]+", value) if "/" in name and not Path(name).exists()
    )


def unknown_logs(value: str, package: Path | None = None) -> tuple[str, ...]:
    """Names in TORCH_LOGS that the installed torch refuses, which it does while it is imported.

    It takes its own names, `all`, and names of modules; `help` it answers by an exception.
    `package` is torch's folder, None for the one that an import would find.
    """
    known = torch_log_names(package) if value.strip() else None
    if known is None:
        return ()
    names = [name.strip() for name in value.split(",")]
    return tuple(name for name in names if not _is_log(name.lstrip("+-"), known))


def _is_log(name: str, known: frozenset[str]) -> bool:
    if name == "all" or name in known:
        return True
    first = name.partition(".")[0]
    if not first.isidentifier():
        return False
    return first in sys.builtin_module_names or PathFinder.find_spec(first) is not None


def torch_log_names(package: Path | None = None) -> frozenset[str] | None:
    """The names that TORCH_LOGS may hold, read from torch's source without importing it."""
    if package is None:
        spec = PathFinder.find_spec("torch")
        if spec is None or not spec.origin:
            return None
        package = Path(spec.origin).parent
    try:
        with (package / "_logging" / "_registrations.py").open("rb") as file:
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return None
    return frozenset(_REGISTERED.findall(text)) or None
