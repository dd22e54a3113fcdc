"""The table of boots broken on purpose: what it holds, and docs/broken.md. Nothing is booted."""

from __future__ import annotations

from pathlib import Path

from app.catalogue import entries
from app.exits import ExitCode
from tests.broken_boots import table
from tests.broken_cases import CASES

DOCS = Path(__file__).resolve().parent.parent / "docs" / "broken.md"


def test_the_document_is_made_from_the_table() -> None:
    assert DOCS.read_text(encoding="utf-8") == table()


def test_there_are_enough_cases_of_both_codes() -> None:
    codes = [case.code for case in CASES.values()]
    assert codes.count(ExitCode.PRECISION) >= 20
    assert codes.count(ExitCode.NUMERICS) >= 20


def test_every_check_of_the_table_exists() -> None:
    known = {entry.id for entry in entries()}
    named = {each.partition(" in ")[0] for case in CASES.values() for each in case.checks}
    assert named <= known | {"numerics.gather"}


def test_what_fails_is_named_and_what_is_not_seen_shows_elsewhere() -> None:
    for name, case in CASES.items():
        assert bool(case.checks) == bool(case.named), name
        assert case.code is ExitCode.OK or case.checks, name
