"""Words that several judges share."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 10  # offenders that a finding names


def listed(names: Iterable[str]) -> str:
    """The first ten names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more
