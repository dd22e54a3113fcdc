"""Every id that a record in the report's `checks` can have, with its usual cause and the way out.

`docs/checks.md` and `python -m app.report explain` are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from app.checks import Check, adapter, cache, checkpoint, forecast, gpu, host, load, numerics
from app.checks import precision as precision_checks
from app.checks import stack as stack_checks
from app.exits import ExitCode, exit_code
from app.outcome import Fault, Severity
from app.stages import STAGES

_CHECKS: Mapping[str, tuple[Check[Any], ...]] = MappingProxyType(
    {
        "host": host.CHECKS,
        "gpu": gpu.CHECKS,
        "cache": cache.CHECKS,
        "checkpoint": checkpoint.CHECKS + forecast.CHECKS,
        "stack": stack_checks.CHECKS,
        "load": load.CHECKS,
        "precision": precision_checks.CHECKS,
        "adapter": adapter.CHECKS,
        "numerics": numerics.CHECKS,
    }
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
    found = [*_settings(), *(_of(check) for checks in _CHECKS.values() for check in checks)]
    return (*found, *_BESIDE)


def find(check_id: str) -> Entry | None:
    """The entry of an id as it stands in a report."""
    return next((entry for entry in entries() if entry.matches(check_id)), None)


def near(check_id: str) -> list[str]:
    """Ids that may have been meant."""
    ids = [entry.id for entry in entries()]
    ends = [each for each in ids if each.partition(".")[2] == check_id.rpartition(".")[2]]
    return ends or get_close_matches(check_id, ids, n=3)


def _of(check: Check[Any]) -> Entry:
    warns = check.severity is Severity.WARNING
    return Entry(
        id=check.id,
        asks=_first_sentence(check.judge.__doc__) or check.source,
        source=check.source,
        code=None if warns else exit_code(check.fault),
        cause=check.cause,
        fix=check.fix,
    )


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _settings() -> Iterator[Entry]:
    yield Entry(
        f"settings.{_VARIABLE}",
        "The variable of that name has a value that can be used, and is one that exists.",
        "python -m app.boot --help",
        exit_code(Fault.CONFIG),
        "a misspelt name, a value out of bounds or of another kind, or a variable of a library "
        "that breaks its import or changes what is trained",
        "correct or unset it as the finding says",
    )
    yield Entry(
        "settings.values",
        "All settings can be used, alone and together.",
        "python -m app.boot --help",
        None,
        "it only says which profile was chosen",
        "nothing is to be done",
    )
    yield Entry(
        "settings.image",
        "The image's own description can be read.",
        "/opt/bootguard/image.json, written when the image is built",
        exit_code(Fault.INTERNAL),
        "a broken or foreign image, or a file mounted over its description",
        "pull or build the image again",
    )
    yield Entry(
        "settings.command_line",
        "The command line is one that exists, and a command after -- can be started.",
        "python -m app.boot --help",
        exit_code(Fault.USAGE),
        "an unknown option, or a command that is not in PATH or is no program",
        "correct the command line",
    )


_BESIDE: tuple[Entry, ...] = (
    Entry(
        "host.report_written",
        "The report can be written, at every step of the boot.",
        "the write itself",
        exit_code(Fault.REPORT_UNWRITABLE),
        "a volume that is full, read-only, gone or does not answer",
        "make room, or mount a volume that this uid may write to at BOOT_REPORT_DIR",
    ),
    Entry(
        "host.report_shared",
        "No other boot writes its report into the same folder.",
        "the lock and the report's id",
        None,
        "two boots with one BOOT_REPORT_DIR at the same time",
        "give each boot a BOOT_REPORT_DIR of its own",
    ),
    Entry(
        f"{_ANY_STAGE}.asked",
        "Says why the stage had nothing to do in this boot.",
        "BOOT_JOB, the command line, the number of ranks",
        None,
        "one process has no ranks to compare; no job was asked for, or a command takes its place",
        "nothing is to be done",
    ),
    Entry(
        "job.ended",
        "How the job's function ended.",
        "BOOT_JOB",
        None,
        "the job's own code: it raised, or returned something else than 0 or None",
        "read the job's output; the exit status is the job's own",
    ),
    Entry(
        "job.command",
        "The command after -- can be started.",
        "the kernel",
        exit_code(Fault.USAGE),
        "a command that is not in PATH, is no program, or was removed meanwhile",
        "correct the command line",
    ),
    Entry(
        f"{_ANY_STAGE}.gather",
        "What the stage looks at could be looked at.",
        "the exception",
        exit_code(Fault.INTERNAL),
        "an exception that nobody foresaw; the finding has its type, text and place",
        "read the traceback in the log; report it if neither model nor node explains it",
    ),
    Entry(
        f"{_ANY_STAGE}.publish",
        "What the stage found could be written into the report.",
        "the exception",
        exit_code(Fault.INTERNAL),
        "an exception that nobody foresaw; the finding has its type, text and place",
        "report it with the file and the log",
    ),
    Entry(
        f"{_ANY_STAGE}.crash",
        "The process of the stage lived, and kept its deadline.",
        "its exit status, control-group counters and crash trace",
        exit_code(Fault.TEMPORARY),
        "a deadline (75, in the gpu stage 69), no memory (79), a native crash (69 with the device "
        "in use, else 70), a read error of a mapped file (74); `crash` has where",
        "follow the finding; `crash` has stacks, kernel waits and the last lines printed",
    ),
    Entry(
        f"{_ANY_STAGE}.ended",
        "The stage has a result.",
        "the report itself",
        exit_code(Fault.INTERNAL),
        "a bug of this project",
        "report it with the file and the log",
    ),
)
