"""A dozen of the chaos boots; `make chaos` runs all of them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.boots import Found, boot
from tests.chaos.cases import PREFLIGHT, WORKER, Case
from tests.chaos.judge import broken
from tests.chaos.matrix import CASES, DOZEN
from tests.chaos.places import can_mount

BY_NAME = {case.name: case for case in CASES}


def marked(name: str) -> object:
    case = BY_NAME[name]
    root = pytest.mark.skipif(
        case.needs_root and not can_mount(), reason="mounts and control groups are root's"
    )
    return pytest.param(case, id=name, marks=[root, pytest.mark.stack])


@pytest.mark.parametrize("case", [marked(name) for name in DOZEN])
def test_nothing_kills_the_report(tmp_path: Path, case: Case) -> None:
    """`stack` for the shared cache; the model is built by whoever comes first."""
    found = boot(case, tmp_path)
    assert not broken(case, found), found.err.decode(errors="replace")[-4000:]


KINDS = {
    "kill": {"kill_self", "kill preflight or worker"},
    "hang": {"sleep_forever", "wedge", "wedge_without_term", "stop"},
    "crash": {"segfault"},
    "flood": {"print_much", "print_endless_line", "send_garbage"},
    "disk": {"fill"},
    "memory": {"fill_memory"},
}


@pytest.mark.parametrize("stage", [*PREFLIGHT[1:], *WORKER, "job"])
def test_every_stage_is_struck_in_every_way(stage: str) -> None:
    """The settings stage runs in the supervisor itself: it can only be struck from outside."""
    struck = {way for case in CASES if case.stage == stage for way in (case.fault, case.outside)}
    lacking = [kind for kind, ways in KINDS.items() if not ways & struck]
    assert lacking == (["flood"] if stage == "job" else [])  # a job's output passes as it is


def test_the_matrix_has_over_a_hundred_boots() -> None:
    assert len(BY_NAME) == len(CASES) > 100


def test_the_judge_finds_fault() -> None:
    """A judge that believes everything would make every boot above pass."""
    case = BY_NAME["segfault@host"]
    silent = Found(code=0, struck=False, left=["1 sleep"], out=b"hello\n", err=b"no json\n")
    found = broken(case, silent)
    for word in ("exit 0", "strike", "left behind", "no JSON", "no report"):
        assert any(word in each for each in found), word
    assert "did not end" in broken(case, replace(silent, code=None))[0]


def test_a_boot_that_says_pass_after_a_crash_is_caught() -> None:
    case = BY_NAME["segfault@host"]
    line = json.dumps({"exit": 0, "report": "boot-report.json"}).encode() + b"\n"
    lying = Found(code=0, struck=True, out=line, err=b"{}\n", report="{}")
    assert [text for text in broken(case, lying) if "exit 0, not 70" in text]


def test_signals_are_those_that_orchestrators_send() -> None:
    sent = {number for case in CASES for number in case.signals}
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1} <= sent
