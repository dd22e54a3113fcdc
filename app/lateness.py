"""What a missed deadline amounts to: which stage, where it stood, slow or stuck. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.outcome import Fault, Finding, unread
from app.report import Activity, Crash
from app.traces import arranged, innermost

# The driver's own stage: what hangs there hangs in the driver, so the node is unfit.
_DRIVER_STAGE = "gpu"
_STUCK_S = 10.0  # a wait of the network or a disk; longer without a byte is no progress
_STUCK_SHARE = 0.5  # of a stage shorter than twice that


def judge(
    where: str,
    limit: str,
    seconds: float,
    activity: Activity,
    crash: Crash,
    *,
    gone: bool,
) -> Finding:
    """The finding for the stage that has run for `seconds`; `gone`: whether KILL ended it."""
    frame = innermost(crash.traceback)
    at = f" in {frame}" if frame else ""
    idle = activity.idle_s
    stuck = idle >= min(_STUCK_S, _STUCK_SHARE * seconds)
    manner = f"stuck{at}, nothing moved for {idle:.0f} s" if stuck else f"still busy{at}"
    parts = [f"{where} took longer than {limit} s: {manner}"]
    if not gone:
        parts.append("and not even KILL ends it: it waits inside the kernel")
    own = limit.startswith(f"BOOT_{_DRIVER_STAGE.upper()}_")  # not the whole guard's deadline
    hung = (where == _DRIVER_STAGE and own) or not gone
    return unread(
        " ".join(parts),
        expected=f"the end of {where} within {limit} s",
        actual=f"{manner} after {seconds:.1f} s",
        next_step="take another node, and look at this one's kernel log"
        if hung
        else f"read `crash` in the report; raise {limit.partition('=')[0]} if it was only slow, "
        "else try again",
        fault=Fault.NODE_UNFIT if hung else Fault.TEMPORARY,
    )


def crash_of(
    where: str, limit: str, stacks: Sequence[str], kernel: Sequence[str], output: Sequence[str]
) -> Crash:
    """The evidence: Python stacks, kernel waits, last words."""
    return Crash(
        where=where,
        kind="deadline",
        text=f"{limit} s are over",
        traceback=arranged(stacks),
        kernel=list(kernel),
        output=list(output),
    )
