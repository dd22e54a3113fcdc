"""What Unsloth's CUDA branches make of a model on either card, one test for each cell.

A test that fails after an upgrade of Unsloth names the cell: card, family, asked dtype, and what.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shadow_cells import CARDS, Cells, expected

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> tuple[Cells, Cells]:
    """Measured in a process of its own, which takes 20 s, and expected."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.shadow_table", request.param],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), expected(request.param)


@pytest.mark.parametrize("cell", expected("v100"))
def test_unsloth_leaves(card: tuple[Cells, Cells], cell: str) -> None:
    found, wanted = card
    assert found.get(cell, "no such cell") == wanted[cell]


def test_no_cell_is_without_expectation(card: tuple[Cells, Cells]) -> None:
    found, wanted = card
    assert set(found) - set(wanted) == set()
