"""What Unsloth's CUDA branches make of a model on either card, one test for each cell.

A test that fails after an upgrade of Unsloth names the cell: card, family, asked dtype, and what.
"""

from __future__ import annotations

import pytest

from tests.shadow_cells import CARDS, Cells, expected
from tests.shadow_cuda import in_own_process

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> tuple[Cells, Cells]:
    """Measured in a process of its own, which takes 20 s, and expected."""
    return in_own_process("shadow_table", request.param), expected(request.param)


@pytest.mark.parametrize("cell", expected("v100"))
def test_unsloth_leaves(card: tuple[Cells, Cells], cell: str) -> None:
    found, wanted = card
    assert found.get(cell, "no such cell") == wanted[cell]


def test_no_cell_is_without_expectation(card: tuple[Cells, Cells]) -> None:
    found, wanted = card
    assert set(found) - set(wanted) == set()
