"""Every id that a record in the report's `checks` can have, with its usual cause and the way out.

`docs/checks.md` and `python -m app.report explain` are made of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from app.checks import (
    Check,
    adapter,
    cache,
    cast,
    checkpoint,
    fingerprint,
    forecast,
    golden,
    gpu,
    host,
    kernels,
    load,
    numerics,
    precision,
    speed,
    stack,
)
from app.exits import ExitCode, exit_code
from app.facts.packages import REQUIRED_PACKAGES
from app.outcome import Fault, Severity
from app.stages import STAGES

_CHECKS: tuple[tuple[Check[Any], ...], ...] = (
    *(host.CHECKS, gpu.CHECKS, cache.CHECKS, checkpoint.CHECKS, forecast.CHECKS),
    *(stack.CHECKS, kernels.CHECKS, load.CHECKS, precision.CHECKS, adapter.CHECKS),
    *(cast.CHECKS, golden.CHECKS, numerics.CHECKS, fingerprint.CHECKS, speed.CHECKS),
)
_ANY_STAGE = "<stage>"
_VARIABLE = "<VARIABLE>"


@dataclass(frozen=True, slots=True)
class Entry:
    """One id. `code` is the usual exit status of a failure, None where it cannot fail a boot.

    `<stage>` and `<VARIABLE>` in an id stand for any stage, or any variable of the settings.
    """

    id: str
    asks: str
    source: str
    code: ExitCode | None
    cause: str
    fix: str

    @property
    def stage(self) -> str:
        """The stage that the id belongs to."""
        return self.id.partition(".")[0]

    def matches(self, check_id: str) -> bool:
        """Whether this entry is about that id."""
        stages = "|".join(STAGES)
        pattern = re.escape(self.id).replace(re.escape(_ANY_STAGE), f"({stages})")
        return bool(
            re.fullmatch(pattern.replace(re.escape(_VARIABLE), "[A-Z][A-Z0-9_]*"), check_id)
        )


def entries() -> tuple[Entry, ...]:
    """All of them, by stage; what any stage can have comes last."""
    return (*_SETTINGS, *(_of(check) for checks in _CHECKS for check in checks), *_BESIDE)


def find(check_id: str) -> Entry | None:
    """The entry of an id as it stands in a report."""
    return next((entry for entry in entries() if entry.matches(check_id)), None)


def near(check_id: str) -> list[str]:
    """Ids that may have been meant."""
    ids = [entry.id for entry in entries()]
    ends = [each for each in ids if each.partition(".")[2] == check_id.rpartition(".")[2]]
    return ends or get_close_matches(check_id, ids, n=3)


def _sentence(text: str) -> str:
    """With a capital and a full stop; a name in code, or of a package, stays as it is."""
    first = text.partition(" ")[0]
    is_word = first.isalpha() and first.islower() and first not in REQUIRED_PACKAGES
    text = text[:1].upper() + text[1:] if is_word else text
    return text if text.endswith((".", "?")) or not text else f"{text}."


def _of(check: Check[Any]) -> Entry:
    warns = check.severity is Severity.WARNING
    return Entry(
        id=check.id,
        asks=_first_paragraph(check.judge.__doc__) or check.source,
        source=check.source,
        code=None if warns else exit_code(check.fault),
        cause=_sentence(check.cause),
        fix=_sentence(check.fix),
    )


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


_SETTINGS: tuple[Entry, ...] = (
    Entry(
        f"settings.{_VARIABLE}",
        "The variable of that name has a value that can be used, and is one that exists.",
        "python -m app.boot --help",
        exit_code(Fault.CONFIG),
        "A misspelt name, a value out of bounds or of another kind, or a variable of a library "
        "that breaks its import or changes what is trained.",
        "Correct or unset it as the finding says.",
    ),
    Entry(
        "settings.values",
        "All settings can be used, alone and together.",
        "python -m app.boot --help",
        None,
        "It only says which profile was chosen.",
        "Nothing is to be done.",
    ),
    Entry(
        "settings.image",
        "The image's own description can be read.",
        "/opt/bootguard/image.json, written when the image is built",
        exit_code(Fault.INTERNAL),
        "A broken or foreign image, or a file mounted over its description.",
        "Pull or build the image again.",
    ),
    Entry(
        "settings.command_line",
        "The command line is one that exists, and a command after -- can be started.",
        "python -m app.boot --help",
        exit_code(Fault.USAGE),
        "An unknown option, or a command that is not in PATH or is no program.",
        "Correct the command line.",
    ),
)
_BESIDE: tuple[Entry, ...] = (
    Entry(
        "host.report_written",
        "The report can be written, at every step of the boot.",
        "the write itself",
        exit_code(Fault.REPORT_UNWRITABLE),
        "A volume that is full, read-only, gone or does not answer.",
        "Make room, or mount a volume that this uid may write to at BOOT_REPORT_DIR.",
    ),
    Entry(
        "host.report_shared",
        "No other boot writes its report into the same folder.",
        "the lock and the report's id",
        None,
        "Two boots with one BOOT_REPORT_DIR at the same time.",
        "Give each boot a BOOT_REPORT_DIR of its own.",
    ),
    Entry(
        f"{_ANY_STAGE}.asked",
        "Says why the stage had nothing to do in this boot.",
        "BOOT_JOB, the command line, the number of ranks",
        None,
        "One process has no ranks to compare; no job was asked for, or a command takes its place.",
        "Nothing is to be done.",
    ),
    Entry(
        "job.ended",
        "How the job's function ended.",
        "BOOT_JOB",
        None,
        "The job's own code: it raised, or returned something else than 0 or None.",
        "Read the job's output; the exit status is the job's own.",
    ),
    Entry(
        "job.command",
        "The command after -- can be started.",
        "the kernel",
        exit_code(Fault.USAGE),
        "A command that is not in PATH, is no program, or was removed meanwhile.",
        "Correct the command line.",
    ),
    Entry(
        f"{_ANY_STAGE}.gather",
        "What the stage looks at could be looked at.",
        "the exception",
        exit_code(Fault.INTERNAL),
        "An exception that nobody foresaw; the finding has its type, text and place.",
        "Read the traceback in the log; report it if neither model nor node explains it.",
    ),
    Entry(
        f"{_ANY_STAGE}.publish",
        "What the stage found could be written into the report.",
        "the exception",
        exit_code(Fault.INTERNAL),
        "An exception that nobody foresaw; the finding has its type, text and place.",
        "Report it with the file and the log.",
    ),
    Entry(
        "gpu.crash",
        "The process that asks the driver lived, and kept its deadline.",
        "its exit status, control-group counters and crash trace",
        exit_code(Fault.NODE_UNFIT),
        "A driver that hangs past `BOOT_GPU_TIMEOUT_S` or takes its process down.",
        "Take another node, and have this one's driver looked at; `crash` has where it stood.",
    ),
    Entry(
        f"{_ANY_STAGE}.crash",
        "The process of the stage lived, and kept its deadline.",
        "its exit status, control-group counters and crash trace",
        exit_code(Fault.TEMPORARY),
        "A deadline (75, in the gpu stage 69), no memory (79), a native crash (69 with the device "
        "in use, else 70), a read error of a mapped file (74); `crash` has where.",
        "Follow the finding; `crash` has stacks, kernel waits and the last lines printed.",
    ),
    Entry(
        f"{_ANY_STAGE}.ended",
        "The stage has a result.",
        "the report itself",
        exit_code(Fault.INTERNAL),
        "A bug of this project.",
        "Report it with the file and the log.",
    ),
)
