"""Texts that findings share: names from outside on one line, the first of many, signals.

A leaf: standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

NAMED = 10  # offenders that a finding names
_LONGEST = 400  # characters of one of them: a name, and what is wrong with it


def one_line(text: str, limit: int = 160) -> str:
    """A name from outside as it can stand in a finding: one line, no control characters, bounded.

    The bytes of a path that are not UTF-8 come as lone surrogates, and are shown by number too.
    """
    shown = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown)


def listed(names: Iterable[str], limit: int = NAMED, *, between: str = ", ") -> str:
    """The first of them, each on one line, and how many more there are."""
    found = [one_line(name, _LONGEST) for name in names]
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return between.join(found[:limit]) + more


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can carry the text; a path need not be such, and few libraries open others."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def error_text(error: Exception) -> str:
    """The system's words for an error of its own, else the error's."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def signal_name(number: int) -> str:
    """`SIGSEGV`, or the number where it has no name of its own, as real-time signals have not."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
