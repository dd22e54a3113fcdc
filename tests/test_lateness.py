"""Facts about what a missed deadline amounts to."""

from __future__ import annotations

import pytest

from app.lateness import crash_of, judge
from app.outcome import Fault, Finding, Status
from app.report import Activity
from app.stages import STAGES

STACKS = [
    "Thread 0x00007f11 (most recent call first):",
    '  File "/usr/lib/python3.11/threading.py", line 320 in wait',
    '  File "/usr/lib/python3.11/threading.py", line 900 in run',
    "",
    "Current thread 0x00007f22 (most recent call first):",
    '  File "/venv/site-packages/torch/cuda/__init__.py", line 412 in _lazy_init',
    '  File "/app/work.py", line 10 in _load',
]
LIMIT = "BOOT_LOAD_TIMEOUT_S=30"


def activity(idle_s: float) -> Activity:
    return Activity(
        seen="", samples=3, rss_bytes=1, rss_peak_bytes=1, read_bytes=0, cpu_s=0, idle_s=idle_s
    )


def judged(
    where: str = "load",
    *,
    idle_s: float = 25,
    seconds: float = 30,
    gone: bool = True,
    stacks: list[str] = STACKS,
    limit: str = LIMIT,
) -> Finding:
    crash = crash_of(where, limit, stacks, ["1 python3 S: futex_wait"], ["last words"])
    return judge(where, limit, seconds, activity(idle_s), crash, gone=gone)


@pytest.mark.parametrize("stacks", [[], [""], ["garbage"], STACKS[:1]])
def test_without_stacks_no_place_is_made_up(stacks: list[str]) -> None:
    assert "stuck, nothing moved" in judged(stacks=stacks).reason


def test_a_stage_that_moved_nothing_is_stuck_and_told_where() -> None:
    """By the main thread's innermost call: that thread stands last, its calls innermost first."""
    found = judged(idle_s=25)
    assert found.status is Status.ERROR
    assert "load took longer than BOOT_LOAD_TIMEOUT_S=30 s" in found.reason
    assert "stuck in torch/cuda/__init__.py:412 _lazy_init, nothing moved for 25 s" in found.reason


def test_a_stage_that_works_is_slow_and_not_stuck() -> None:
    found = judged(idle_s=0.5)
    assert "stuck" not in found.reason
    assert "raise BOOT_LOAD_TIMEOUT_S" in found.next_step


def test_a_short_stage_can_be_stuck_too() -> None:
    assert "stuck" in judged(idle_s=1.9, seconds=2).reason


@pytest.mark.parametrize("stage", STAGES)
def test_only_the_drivers_stage_condemns_the_node(stage: str) -> None:
    found = judged(stage, limit=f"BOOT_{stage.upper()}_TIMEOUT_S=30")
    assert found.fault is (Fault.NODE_UNFIT if stage == "gpu" else Fault.TEMPORARY)


def test_a_guard_that_was_slow_before_does_not_condemn_the_node() -> None:
    assert judged("gpu", limit="BOOT_TOTAL_TIMEOUT_S=30").fault is Fault.TEMPORARY


def test_what_kill_does_not_end_hangs_in_the_kernel_of_an_unfit_node() -> None:
    found = judged(gone=False)
    assert found.fault is Fault.NODE_UNFIT
    assert "not even KILL ends it" in found.reason
    assert "kernel log" in found.next_step


def test_the_evidence_is_kept_as_it_was_found() -> None:
    crash = crash_of("load", LIMIT, STACKS, ["1 python3 D: nfs_wait"], ["last words"])
    assert (crash.kind, crash.where) == ("deadline", "load")
    assert (crash.kernel, crash.output) == (["1 python3 D: nfs_wait"], ["last words"])
    assert {line.strip() for line in STACKS if line} <= {line.strip() for line in crash.traceback}
