"""The judge of numbered weight files that the index leaves out, a part of checkpoint.index."""

from __future__ import annotations

from app.checks._layers import is_whole
from app.facts.checkpoint import CheckpointFacts
from app.facts.parts import left_out
from app.facts.words import listed
from app.outcome import Finding, failed, warned


def index_parts(facts: CheckpointFacts) -> Finding | None:
    """Numbered files that the index leaves out: a loader opens none of them."""
    found = left_out(facts)
    expected = "every numbered weight file in the index, as the numbers count"
    if found.here or (found.gone and not is_whole(facts)):
        names = found.parts
        return failed(
            f"the index names no tensor of {listed(names, 2)}, and its files are numbered with "
            f"{'it' if len(names) == 1 else 'them'}: what belongs there would be random numbers",
            expected=expected,
            actual=f"not in the index: {listed(names)}",
            next_step=_step(found.gone),
        )
    if found.gone:
        return warned(
            f"the numbers of the files count {listed(found.gone, 2)} too, which neither the index "
            "nor the folder has; no layer and no embedding is missing",
            expected=expected,
            actual=f"not in the index: {listed(found.gone)}",
            next_step=f"{_step(found.gone)}, unless a part was taken out on purpose",
        )
    if found.others:
        return warned(
            f"{listed(found.others, 2)}: named like the weights, and not read, being in no index",
            expected="weight files of one save of the model only",
            actual=listed(found.others),
            next_step="remove what is of another revision; if it belongs to the model, fetch "
            "index and weights of one revision again",
        )
    return None


def _step(gone: tuple[str, ...]) -> str:
    """The index is what to fetch; a part as well where it is not in the folder."""
    more = f" and {listed(gone, 3)}" if gone else ""
    return f"fetch the index{more} of the weights' own revision again from the model's source"
