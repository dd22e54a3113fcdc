"""What Unsloth's CUDA branches make of a model, with the packages of the image's own lock.

The same cells as in `tests.test_shadow_stack`: the two locks differ in torch, and what is left
behind must not.
"""

from __future__ import annotations

import json

import pytest

from tests.containers.engine import docker
from tests.image.engine import LABEL, Image
from tests.shadow_cells import CARDS, Cells, expected

# What Unsloth says comes before the line with the cells. The models are built once for both cards.
_MEASURE = f"""
for card in {" ".join(CARDS)}; do
    python -m tests.shadow_table $card >/tmp/cells
    tail -n 1 /tmp/cells
done
"""
# Two processes of 20 s each, and the models' builders, on two cores that others may use.
_TIMEOUT_S = 900.0
HOST = "h100"  # what scripts/env.sh installs


@pytest.fixture(scope="module")
def measured(image: Image) -> dict[str, Cells]:
    """The cells of each card, by root, who may read the private checkout and write beside it."""
    if image.profile == HOST:
        pytest.skip("tests/test_shadow_stack.py has this lock without an image")
    where = ["--rm", "--network=none", f"--label={LABEL}", "--user=0:0", "--entrypoint=sh"]
    tests = [f"--volume={image.clone / 'tests'}:/checkout/tests:ro", "--env=PYTHONPATH=/checkout"]
    done = docker("run", *where, *tests, image.tag, "-euc", _MEASURE, timeout_s=_TIMEOUT_S)
    return dict(zip(CARDS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("card", CARDS)
def test_every_cell_is_as_with_the_other_lock(measured: dict[str, Cells], card: str) -> None:
    found, wanted = measured[card], expected(card)
    cells = sorted({*found, *wanted})
    other = {cell: (found.get(cell), wanted.get(cell)) for cell in cells}
    assert {cell: pair for cell, pair in other.items() if pair[0] != pair[1]} == {}
