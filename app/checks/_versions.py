"""Compares versions with what metadata asks for, as far as both are plain numbers.

The `packaging` library knows all of it, and its import takes as long as everything else that the
host stage reads of packages (40 ms). What is no plain number is taken to be met.
"""

from __future__ import annotations

import re

from app.facts.packages import compares

_CLAUSE = re.compile(r"(==|!=|<=|>=|<|>|~=)\s*([\w.+!*-]+)")
_PLAIN = re.compile(r"\d+(?:\.\d+)*")


def numbers(version: str) -> tuple[int, ...]:
    """`2.14.1+cu130` as (2, 14, 1); empty for a pre-release, a post-release and what is none."""
    public = version.partition("+")[0]
    return tuple(map(int, public.split("."))) if _PLAIN.fullmatch(public) else ()


def unmet(version: str, clauses: str) -> str:
    """The first of these clauses (`>=1.5,<2`) that a version breaks; empty where it breaks none."""
    found = numbers(version)
    if found:
        for match in _CLAUSE.finditer(clauses):
            if not _holds(found, match[1], match[2]):
                return match[0]
    return ""


def _holds(version: tuple[int, ...], sign: str, text: str) -> bool:
    wanted = numbers(text.removesuffix(".*"))
    if not wanted:
        return True
    if text.endswith(".*"):
        padded = (*version, *(0,) * len(wanted))
        return (padded[: len(wanted)] == wanted) is (sign == "==")
    if sign == "~=":
        return compares(version, ">=", wanted) and version[: len(wanted) - 1] == wanted[:-1]
    return compares(version, sign, wanted)
