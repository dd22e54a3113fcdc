"""Keeps secrets out of every output, whichever way they got into a text.

The settings refuse a pasted token by name; this is the net below them, at the report, the log and
the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.settings_errors import redacted
from app.settings_secrets import SECRETS_DIR, TOKEN, read_secret_files

# What people call variables that hold secrets.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(?:_|$)",
    re.IGNORECASE,
)


class Redactor:
    """Knows the secrets of this process: of its environment and of the hub token's file."""

    def __init__(self, environ: Mapping[str, str], folder: Path | None = SECRETS_DIR) -> None:
        files = read_secret_files(folder, (TOKEN,)).values
        named = (value for name, value in environ.items() if _SECRET_NAME.search(name))
        self._secrets = tuple({value.strip() for value in (*named, *files.values())})

    def text(self, text: str) -> str:
        """The text without secrets and without what looks like one."""
        return redacted(text, self._secrets)

    def data(self, value: Any) -> Any:  # noqa: ANN401 - any JSON-like value in, the same shape out
        """The same for every string inside a JSON-like value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value
