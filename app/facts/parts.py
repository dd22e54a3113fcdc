"""Numbered weight files that an index leaves out, by the names of those that it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.facts.checkpoint import CheckpointFacts

_PART = re.compile(r"^(.*-)(\d{1,9})-of-(\d{1,9})(\.[a-z]+)\Z", re.DOTALL)
_MOST = 10_000  # files of one model; the largest have some hundred


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Parts that the index names no tensor of, though its numbering has a place for them.

    `here` lie in the folder, `gone` do not. `others` lie in the folder, are named alike and count
    another total: of another save of the model, most often.
    """

    here: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """All that the numbering has a place for."""
        return tuple(sorted((*self.here, *self.gone)))


@dataclass(slots=True)
class _Numbered:
    """The numbers of one naming and total, and one of the names for the width of its digits."""

    sample: re.Match[str]
    held: set[int] = field(default_factory=set)


def left_out(facts: CheckpointFacts) -> LeftOut:
    """What the index leaves out; nothing where there is no index, or where it numbers no files.

    Most count from 1 to the total. Some count from 0, to the total (gpt-oss) or to one below, so
    that the last number is then no certain one, and counts only where its file is there.
    """
    series: dict[tuple[str, int, str], _Numbered] = {}
    for name in sorted(set(facts.index.values())):
        if found := _PART.match(name):
            series.setdefault(_naming(found), _Numbered(found)).held.add(int(found[2]))
    here: list[str] = []
    others: list[str] = []
    namings = {(prefix, suffix) for prefix, _, suffix in series}
    for name in facts.spare_weights if series else ():
        if not (found := _PART.match(name)):
            continue
        key = prefix, _, suffix = _naming(found)
        number = int(found[2])
        if key in series and number <= key[1] and number not in series[key].held:
            here.append(name)
            series[key].held.add(number)
        elif (prefix, suffix) in namings:
            others.append(name)
    return LeftOut(tuple(here), _gone(series), tuple(others))


def _naming(part: re.Match[str]) -> tuple[str, int, str]:
    return part[1], int(part[3]), part[4]


def _gone(series: Mapping[tuple[str, int, str], _Numbered]) -> tuple[str, ...]:
    """Numbers that no file has. Names that share a total may share the numbers between them."""
    gone: list[str] = []
    for total in sorted({total for _, total, _ in series if total <= _MOST}):
        alike = [numbered for (_, n, _), numbered in series.items() if n == total]
        held = set[int]().union(*(numbered.held for numbered in alike))
        sample = alike[0].sample
        width = len(sample[2])
        gone += (
            f"{sample[1]}{number:0{width}}-of-{sample[3]}{sample[4]}"
            for number in range(1, total if 0 in held else total + 1)
            if number not in held
        )
    return tuple(gone)
