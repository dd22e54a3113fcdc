"""Where a job's module is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def search_path(environ: Mapping[str, str], cwd: Path) -> list[str]:
    """Stand-in."""
    return [*filter(None, environ.get("PYTHONPATH", "").split(":")), str(cwd)]
