"""How the text of a variable becomes a value: one rule per kind, and its demand in words.

pydantic's own conversions are too kind for an environment: they take `1.0`, ` 1 ` and `1_0` for
whole numbers and `t` or `y` for true. A rule says one sentence, used by `--help`, by the README and
by every error.

A leaf: imports nothing of the app.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_TRUE = frozenset(("true", "1", "yes", "on"))
_FALSE = frozenset(("false", "0", "no", "off"))
# 18 digits fit 64 bits; Python refuses to convert more than 4300, with an error of its own.
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOKEN = re.compile(r"[!-~]{1,4096}")
_REVISION = re.compile(r"[^\s~^:?*\[\\]{1,255}")  # what git forbids in the name of a reference
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
# A millisecond: less bounds nothing, and is a slip of units.
_SHORTEST_S = Decimal("0.001")
_LONGEST_PATH = 4095  # PATH_MAX of Linux, without the closing NUL


@dataclass(frozen=True, slots=True)
class Rule:
    """What a variable must be, in words (`must`) and as a function that raises ValueError.

    `choices` are the valid words where there are few, for suggestions; `hint` is what to do where
    there are none.
    """

    must: str
    parse: Callable[[object], object]
    choices: tuple[str, ...] = ()
    hint: str = ""

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Run the rule before pydantic's own validation of the type, which judges None."""

        def parse(value: object) -> object:
            return None if value is None else self.parse(value)

        return core_schema.no_info_before_validator_function(parse, handler(source))

    def suggestion(self, value: object) -> str:
        """What may have been meant, or nothing."""
        if value == "":
            return "unset it or give a value"
        word = str(value).strip().lower()[:64]
        held = [choice for choice in self.choices if choice in word]
        # Another first letter is another thing: a100 is neither v100 nor h100, gpu is not cpu.
        alike = [choice for choice in self.choices if choice[:1] == word[:1]]
        near = held or get_close_matches(word, alike, n=1)
        return f"did you mean {near[0]}?" if near else self.hint


def _text(value: object, longest: int = _LONGEST_PATH) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ValueError
    if value != value.strip() or not value.isprintable():
        raise ValueError
    return value


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError
    return word in _TRUE


def truth() -> Rule:
    """Yes or no, in the usual words."""
    return Rule("true or false (also 1, yes, on, 0, no, off)", _truth)


def whole(low: int, high: int) -> Rule:
    """Decimal digits within bounds."""

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return value

    return Rule(f"a whole number from {low} to {high}", parse)


def fraction() -> Rule:
    """A number from 0 to below 1; 1 itself would drop everything."""

    def parse(value: object) -> float:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        number = value if isinstance(value, int | float) else math.nan
        if isinstance(value, bool) or not 0 <= number < 1:  # not true of nan either
            raise ValueError
        return float(number)

    return Rule("a number from 0 to below 1", parse)


def seconds(low: int, high: int) -> Rule:
    """Seconds within bounds, fractions allowed; where 0 is in bounds it means "no deadline".

    Compared as decimals: 1e-400 is no float but 0, and would turn a deadline off.
    """

    def parse(value: object) -> float:
        text = str(value) if isinstance(value, int | float) else value
        if not isinstance(text, str) or not _NUMBER.fullmatch(text):  # nor nan, inf, True
            raise ValueError
        number = Decimal(text)
        if not low <= number <= high or 0 < number < _SHORTEST_S:
            raise ValueError
        return abs(float(number))  # of -0, too

    if low == 0:
        return Rule(f"seconds from {_SHORTEST_S} to {high}, or 0 for no deadline", parse)
    return Rule(f"seconds from {low} to {high}", parse)


def one_of(choices: Sequence[str]) -> Rule:
    """One of a few words, spelt exactly."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return Rule(f"one of {', '.join(choices)}", parse, tuple(choices))


def word_or_truth(word: str) -> Rule:
    """A word, or yes or no."""
    return Rule(
        f"{word}, true or false",
        lambda value: word if value == word else _truth(value),
        (word,),
    )


def model_name() -> Rule:
    """A hub name, a folder or a rehearsal model; a URL is none of them."""

    def parse(value: object) -> str:
        text = _text(value)
        if text.startswith("~") or "://" in text:
            raise ValueError
        return text

    return Rule("a hub name, a folder (no ~) or rehearsal:gemma3n; no URL, no outer spaces", parse)


def git_revision() -> Rule:
    """A reference of git as the hub takes it."""

    def parse(value: object) -> str:
        text = _text(value)
        if not _REVISION.fullmatch(text) or ".." in text:
            raise ValueError
        return text

    return Rule("a branch, a tag or a commit hash", parse)


def folder_path() -> Rule:
    """A path that can be one; nobody expands `~` here."""

    def parse(value: object) -> Path:
        text = _text(str(value) if isinstance(value, Path) else value)
        if text.startswith("~"):
            raise ValueError
        return Path(text)

    return Rule("a folder (no ~, no outer spaces)", parse)


def file_path() -> Rule:
    """A path that can be a file's."""

    def parse(value: object) -> Path:
        text = _text(str(value) if isinstance(value, Path) else value)
        if text.startswith("~") or text.rpartition("/")[2] in ("", ".", ".."):
            raise ValueError
        return Path(text)

    return Rule("a file (no ~, no outer spaces)", parse)


def job_target() -> Rule:
    """A function in a module, as Python imports it."""

    def parse(value: object) -> str:
        text = _text(value)
        words = text.replace(":", ".").split(".")
        if not _TARGET.fullmatch(text) or any(keyword.iskeyword(word) for word in words):
            raise ValueError
        return text

    return Rule(
        "package.module:function, in ASCII letters, digits and underscores",
        parse,
        hint="write it as in jobs.train:main, without a path and without .py",
    )


def file_name() -> Rule:
    """A name that is safe in the name of a file."""

    def parse(value: object) -> str:
        text = _text(value)
        if not _NAME.fullmatch(text):
            raise ValueError
        return text

    return Rule("letters, digits, dots, dashes and underscores, at most 128", parse)


def header_word() -> Rule:
    """One word of printable ASCII: anything else cannot stand in an HTTP header."""

    def parse(value: object) -> object:
        if isinstance(value, str) and not _TOKEN.fullmatch(value):
            raise ValueError
        return value

    return Rule("one line of printable ASCII without spaces", parse)
