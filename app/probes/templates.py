"""Reads chat templates, and says which of them Jinja cannot parse. None of them is run.

A template is a program that a job runs at its first conversation, long after the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.facts.words import one_line
from app.probes.files import read_bytes

if TYPE_CHECKING:
    from jinja2.nodes import Node
    from jinja2.parser import Parser

TEMPLATE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_LIMIT = 4 * 1024 * 1024  # bytes; real ones have some kB
_PARSED = 256 * 1024  # characters: beyond that a text could take seconds


def read_templates(folder: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Every chat template with the file that it stands in; `settings` are tokenizer_config.json's.

    A file of its own comes before those, as it does in the load.
    """
    found = []
    try:
        raw, _ = read_bytes(folder / TEMPLATE, _LIMIT)
        found.append((TEMPLATE, raw.decode(errors="replace")))
    except OSError:  # none, or the first bytes have told what is wrong with it
        pass
    return (*found, *((_CONFIG, text) for text in _texts(settings.get("chat_template"))))


def _texts(held: object) -> Iterator[str]:
    """One text, or several by name: a list of tables until 4.43, a table since."""
    if isinstance(held, str):
        yield held
    elif isinstance(held, Mapping):
        yield from (text for text in held.values() if isinstance(text, str))
    elif isinstance(held, list):
        for one in held:
            yield from _texts(one.get("template") if isinstance(one, Mapping) else None)


def template_problem(text: str) -> str:
    """Why Jinja cannot parse this text, in one line; empty where it can or was not asked."""
    if len(text) > _PARSED:
        return ""
    try:
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:  # then transformers, which uses it too, says so in the load
        return ""

    class Generation(Extension):
        """The block with which transformers marks what the assistant says."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        why = one_line((error.message or "no reason").rstrip("."), 120)
        return f"its chat template is broken at line {error.lineno}: {why}"
    except RecursionError:
        return "its chat template is nested beyond reason"
    return ""
