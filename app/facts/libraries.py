"""Facts of native libraries that were really loaded, or tried to be. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """One file below a folder of packages, and what the loader said of it.

    `path` is relative to that folder. `error` is empty where it was loaded (a program is never
    loaded; its needs are looked up); `lacks` are the libraries that it needs and that the loader
    does not find.
    """

    path: str
    error: str = ""
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LibrariesFacts:
    """All that were tried; `problem` says why that ended before the last one."""

    tried: tuple[LoadFacts, ...] = ()
    problem: str = ""
