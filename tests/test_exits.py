"""Facts about exit codes."""

from __future__ import annotations

import itertools
import os
import random

from hypothesis import given
from hypothesis import strategies as st

from app.exits import ACTIONS, ExitCode, exit_code, worst
from app.outcome import Fault


def test_every_code_says_what_to_do() -> None:
    assert set(ACTIONS) == set(ExitCode)


def test_every_fault_has_a_code_of_its_own() -> None:
    codes = [exit_code(fault) for fault in Fault]
    assert len(set(codes)) == len(codes)
    assert ExitCode.OK not in codes


def test_codes_of_sysexits_keep_their_meaning() -> None:
    named = {
        ExitCode.USAGE: os.EX_USAGE,
        ExitCode.DATAERR: os.EX_DATAERR,
        ExitCode.NOINPUT: os.EX_NOINPUT,
        ExitCode.NODE_UNFIT: os.EX_UNAVAILABLE,
        ExitCode.INTERNAL: os.EX_SOFTWARE,
        ExitCode.CANTCREAT: os.EX_CANTCREAT,
        ExitCode.IOERR: os.EX_IOERR,
        ExitCode.TEMPFAIL: os.EX_TEMPFAIL,
        ExitCode.PRECISION: os.EX_PROTOCOL,
        ExitCode.NOPERM: os.EX_NOPERM,
        ExitCode.CONFIG: os.EX_CONFIG,
    }
    assert all(ours == theirs for ours, theirs in named.items())


def test_codes_that_mean_something_to_others_are_never_ours() -> None:
    """1 and 2 are Python's, 93 NVRx's, 124-127 `timeout`'s, Docker's and the shell's."""
    taken = {1, 2, 93, *range(124, 128), *range(203, 256)}
    assert not taken & {int(code) for code in ExitCode}


def test_the_most_decisive_code_wins() -> None:
    """The design's order, written out."""
    order = [78, 64, 77, 66, 65, 73, 70, 76, 79, 80, 69, 74, 75, 143, 130, 0]
    for first, second in itertools.combinations(order, 2):
        assert worst([ExitCode(second), ExitCode(first)]) == first


@given(st.lists(st.sampled_from(ExitCode)))
def test_the_order_of_failures_does_not_matter(codes: list[ExitCode]) -> None:
    shuffled = random.Random(0).sample(codes, len(codes))  # noqa: S311 - no secret
    assert worst(codes) == worst(shuffled)
    assert worst([*codes, ExitCode.OK]) == worst(codes)
