"""Settings that come as files: Docker and Kubernetes mount each secret as a file of its name.

A leaf: imports only `app.settings_errors` and the reader of files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.probes.files import read_bytes
from app.settings_errors import Problem

TOKEN = "HF_TOKEN"
# The name that huggingface_hub still reads after HF_TOKEN.
OLD_TOKEN = "HUGGING_FACE_HUB_TOKEN"
# Compose files usually name the secret in lower case.
_FILES = {"hf_token": TOKEN}
_LARGEST = 16 * 1024  # four times the longest value that any variable takes


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """What a folder of secrets holds for us.

    Values and the files that they come from by variable, all names, what is unreadable.
    """

    values: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)


def read_secret_files(folder: Path | None, known: Collection[str]) -> SecretFiles:
    """The files named like a known variable; other names are only listed, their content unread."""
    if folder is None:
        return SecretFiles()
    try:
        names = frozenset(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return SecretFiles()
    except OSError as error:
        return SecretFiles(problems=[_unreadable(str(folder), error)])
    found = SecretFiles(names=names)
    for name in sorted(names):  # upper case first, and the first one stays
        variable = _FILES.get(name, name)
        if variable not in known:
            continue
        try:
            content, _ = read_bytes(folder / name, _LARGEST)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            found.problems.append(_unreadable(str(folder / name), error))
            continue
        found.values.setdefault(variable, text.rstrip("\r\n"))
        found.paths.setdefault(variable, folder / name)
    return found


def _unreadable(path: str, error: Exception) -> Problem:
    why = error.strerror or str(error) if isinstance(error, OSError) else "no UTF-8 text"
    step = (
        f"save {path} as UTF-8 text"
        if isinstance(error, UnicodeDecodeError)
        else f"let this user read {path}, or mount the secret anew"
    )
    return Problem(path, "readable by this user", f"{type(error).__name__} ({why})", step)


def token_of(environ: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """The hub token as huggingface_hub finds it, and then from a file.

    An empty variable means "no token" to the hub, so it does here; an empty file is an error later.
    Line ends and outer spaces are not part of a token.
    """
    token = environ.get(TOKEN) or environ.get(OLD_TOKEN) or files.get(TOKEN)
    return None if token is None else token.strip()


def without_hub_tokens(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that needs nothing of the hub."""
    return {name: value for name, value in environ.items() if name not in (TOKEN, OLD_TOKEN)}
