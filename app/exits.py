"""Exit codes: one per action an orchestrator can take. The only place that knows a number.

64-78 keep the meaning of sysexits (`os.EX_*` in Python); 79 and 80 are ours, outside the ranges
that shells (126 and up), Docker (125) and NVRx (93) use. Warnings exit 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from app.outcome import Fault


class ExitCode(IntEnum):
    """What the process exits with."""

    OK = 0
    USAGE = 64
    DATAERR = 65
    NOINPUT = 66
    NODE_UNFIT = 69
    INTERNAL = 70
    CANTCREAT = 73
    IOERR = 74
    TEMPFAIL = 75
    PRECISION = 76
    NOPERM = 77
    CONFIG = 78
    HW_MISMATCH = 79
    NUMERICS = 80
    INTERRUPTED_INT = 130
    INTERRUPTED_TERM = 143


@dataclass(frozen=True, slots=True)
class Action:
    """What a code means and what each orchestrator should do with it."""

    meaning: str
    retry: str
    kubernetes: str
    slurm: str


ACTIONS: dict[ExitCode, Action] = {
    ExitCode.OK: Action("ready", "-", "done", "done"),
    ExitCode.USAGE: Action("bad command line", "never", "FailJob", "fail"),
    ExitCode.DATAERR: Action("model files invalid", "never", "FailJob", "fail"),
    ExitCode.NOINPUT: Action("model or revision absent", "never", "FailJob", "fail"),
    ExitCode.NODE_UNFIT: Action(
        "no usable GPU, driver or memory cells on this node", "other node", "Count", "RequeueExit"
    ),
    ExitCode.INTERNAL: Action("unexpected exception or broken image", "never", "FailJob", "fail"),
    ExitCode.CANTCREAT: Action("report folder not writable", "never", "FailJob", "fail"),
    ExitCode.IOERR: Action("read error on weights or cache", "yes", "Count", "RequeueExit"),
    ExitCode.TEMPFAIL: Action(
        "hub busy, GPU busy or full, deadline", "yes, with back-off", "Count", "RequeueExit"
    ),
    ExitCode.PRECISION: Action(
        "the loaded model breaks the precision contract", "never", "FailJob", "RequeueExitHold"
    ),
    ExitCode.NOPERM: Action("gated repository or bad token", "never", "FailJob", "fail"),
    ExitCode.CONFIG: Action("settings invalid on any node", "never", "FailJob", "fail"),
    ExitCode.HW_MISMATCH: Action(
        "healthy node of the wrong class, or too little memory",
        "other hardware",
        "FailJob",
        "RequeueExitHold",
    ),
    ExitCode.NUMERICS: Action(
        "wrong numbers on this device", "other node, quarantine", "Count", "RequeueExitHold"
    ),
    ExitCode.INTERRUPTED_INT: Action("INT received", "by policy", "Ignore", "--requeue"),
    ExitCode.INTERRUPTED_TERM: Action("TERM received", "by policy", "Ignore", "--requeue"),
}

_OF_FAULT: dict[Fault, ExitCode] = {
    Fault.USAGE: ExitCode.USAGE,
    Fault.DATA_INVALID: ExitCode.DATAERR,
    Fault.MODEL_ABSENT: ExitCode.NOINPUT,
    Fault.NODE_UNFIT: ExitCode.NODE_UNFIT,
    Fault.INTERNAL: ExitCode.INTERNAL,
    Fault.REPORT_UNWRITABLE: ExitCode.CANTCREAT,
    Fault.READ_ERROR: ExitCode.IOERR,
    Fault.TEMPORARY: ExitCode.TEMPFAIL,
    Fault.PRECISION: ExitCode.PRECISION,
    Fault.ACCESS_DENIED: ExitCode.NOPERM,
    Fault.CONFIG: ExitCode.CONFIG,
    Fault.HARDWARE_MISMATCH: ExitCode.HW_MISMATCH,
    Fault.NUMERICS: ExitCode.NUMERICS,
}

# Most decisive first: what no retry can mend comes before what another node or time can.
_DECISIVE: tuple[ExitCode, ...] = (
    ExitCode.CONFIG,
    ExitCode.USAGE,
    ExitCode.NOPERM,
    ExitCode.NOINPUT,
    ExitCode.DATAERR,
    ExitCode.CANTCREAT,
    ExitCode.INTERNAL,
    ExitCode.PRECISION,
    ExitCode.HW_MISMATCH,
    ExitCode.NUMERICS,
    ExitCode.NODE_UNFIT,
    ExitCode.IOERR,
    ExitCode.TEMPFAIL,
    ExitCode.INTERRUPTED_TERM,
    ExitCode.INTERRUPTED_INT,
    ExitCode.OK,
)


def exit_code(fault: Fault) -> ExitCode:
    """The code of one fault."""
    return _OF_FAULT[fault]


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The code that decides when several things went wrong; OK when nothing did."""
    return min(codes, key=_DECISIVE.index, default=ExitCode.OK)
