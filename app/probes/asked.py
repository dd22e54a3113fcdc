"""What BOOT_BASE_MODEL_ID can be: a folder, a name of the hub, or neither."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path

from app import rehearsal
from app.facts.words import is_utf8, one_line
from app.outcome import Fault, Finding, failed

_LONGEST_NAME = 96  # characters, of a repository


def absolute(path: Path) -> Path:
    """The whole path; as it is where the working folder was removed, so that nothing is there."""
    try:
        return path.absolute()
    except FileNotFoundError:
        return path


def in_the_way(path: Path) -> str | None:
    """None for a folder; else what is there instead, empty when nothing is."""
    try:
        return None if stat.S_ISDIR(path.stat().st_mode) else "a file, and a model is a folder"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def not_utf8(path: str) -> Finding | None:
    """Why a folder must not hold the model; safetensors opens no such file, nor does a report."""
    if is_utf8(path):
        return None
    return failed(
        f"the path {one_line(path, 400)} is no UTF-8, and weights in it cannot be opened",
        expected="a path in UTF-8",
        actual=one_line(path, 400),
        next_step="name or mount the folder under a path in UTF-8 (BOOT_BASE_MODEL_ID, the working "
        "folder, HF_HOME, XDG_CACHE_HOME, HOME)",
        fault=Fault.CONFIG,
    )


def refuse(asked: str, path: Path, found: str) -> Finding | None:
    """What is neither an existing folder nor a possible name of the hub."""
    if found or asked.startswith(("/", ".", "~", "$")) or asked.count("/") > 1 or asked[-1:] == "/":
        return failed(
            f"there is no model folder {one_line(str(path))}" + (f": {found}" if found else ""),
            expected="a folder with config.json, tokenizer and *.safetensors",
            actual=found or "nothing at that path",
            next_step="mount the model into the container where this uid may read it, or correct "
            "BOOT_BASE_MODEL_ID",
            fault=Fault.MODEL_ABSENT,
        )
    # huggingface_hub's rule (utils/_validators.py), without its import.
    parts = asked.split("/")
    valid = (
        len(asked) <= _LONGEST_NAME
        and "--" not in asked
        and ".." not in asked
        and all(re.fullmatch(r"\w(?:[\w.-]*\w)?", part, re.ASCII) for part in parts)
    )
    if valid and not asked.endswith(".git"):
        return None
    return failed(
        f"{asked!r} is neither a folder nor a name of the hub",
        expected="a folder, organisation/name, or " + rehearsal.MODEL_NAME,
        actual=repr(asked),
        next_step="correct BOOT_BASE_MODEL_ID",
        fault=Fault.CONFIG,
    )


def doubted(failure: Finding, asked: str, path: Path) -> Finding:
    """A relative folder that is not there looks like a name of the hub, so both are said."""
    shown = one_line(str(path), 200)
    return replace(
        failure,
        reason=f"{failure.reason} ({asked} is taken for a name of the hub: there is no folder "
        f"{shown})",
        next_step=f"{failure.next_step}; for a folder, mount it there or give its whole path in "
        "BOOT_BASE_MODEL_ID",
    )
