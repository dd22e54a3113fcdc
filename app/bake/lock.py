"""Reads a lock of exact versions, and compares what is installed with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from app.errors import BootError
from app.facts.words import error_text, one_line
from app.outcome import Fault

_COMMENT = re.compile(r"(?:^|\s)#.*")
_HASH = re.compile(r"\s+--hash=\S+")


@dataclass(frozen=True, slots=True)
class Lock:
    """What this Python should hold: canonical name -> version; `digest` is the file's sha256."""

    digest: str
    pins: Mapping[str, str]


def read_lock(path: Path) -> Lock:
    """The lock's part for this Python.

    Raises:
        BootError: it cannot be read, or leaves open what would be installed.
    """
    try:
        content = path.read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error_text(error)) from error
    pins: dict[str, str] = {}
    for line in _lines(text):
        try:
            wanted = Requirement(_HASH.sub("", line))
        except InvalidRequirement as error:
            raise _unusable(path, f"`{one_line(line)}` is no requirement") from error
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        name, version = canonicalize_name(wanted.name), _exact(wanted)
        if version is None:
            raise _unusable(path, f"`{one_line(line)}` pins no exact version")
        if pins.setdefault(name, version) != version:
            raise _unusable(path, f"{name} is pinned to {pins[name]} and to {version}")
    if not pins:
        raise _unusable(path, "it names no package")
    return Lock(f"sha256:{hashlib.sha256(content).hexdigest()}", pins)


def _lines(text: str) -> Iterator[str]:
    """Requirements with their options, each on one line."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = _COMMENT.sub("", line).strip()
        if bare:
            yield bare


def _exact(wanted: Requirement) -> str | None:
    """The one version that it allows."""
    clauses = list(wanted.specifier)
    if len(clauses) != 1 or clauses[0].operator not in ("==", "===") or wanted.url:
        return None
    version = clauses[0].version
    return None if version.endswith(".*") else version


def differences(
    wanted: Mapping[str, str], installed: Mapping[str, str]
) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """What is not as wanted, as (wanted, installed or empty), and what nobody wanted."""
    wrong = {
        name: (version, installed.get(name, ""))
        for name, version in sorted(wanted.items())
        if not same(version, installed.get(name, ""))
    }
    return wrong, {name: installed[name] for name in sorted(installed) if name not in wanted}


def same(wanted: str, installed: str) -> bool:
    """Equal as versions are; an index of one's own may add a local part, as `2.14.1+cu130`."""
    try:
        one, other = Version(wanted), Version(installed)
    except InvalidVersion:
        return wanted == installed
    return one == other or (one.local is None and one == Version(other.public))


def _unusable(path: Path, actual: str) -> BootError:
    return BootError(
        f"the lock cannot be used: {actual}",
        fault=Fault.INTERNAL,
        expected=f"{path}: one exact version a line, as `make lock` writes them",
        actual=actual,
        source=str(path),
        next_step="give the lock that the environment was installed from (--lock)",
    )
