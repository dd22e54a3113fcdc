"""Families of chaos boots that are struck from outside: kills, requests, disks, streams."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.cases import Case, Expect, OutsideT, StreamsT, VolumeT
from tests.chaos.families import (
    DIED,
    DUE_S,
    GOES_ON,
    GONE,
    GRACE_S,
    HUNG,
    LOST,
    by,
    ended_by,
    expect,
    only,
)

_DEAD_STREAMS: dict[str, StreamsT] = {
    "out_unread": "nobody reads stdout",
    "out_closed": "stdout closed",
    "out_full": "stdout full",
    "err_closed": "stderr closed",
    "err_full": "stderr full",
}


def kills(stages: tuple[str, ...]) -> Iterator[Case]:
    """KILL from outside to each of the boot's processes."""
    for stage in stages:
        settings = only(stage)
        if stage != "settings":
            name = f"kill9_victim@{stage}"
            yield Case(
                name, stage, "hold", by("SIGKILL"), DUE_S, settings, "kill preflight or worker"
            )
        name = f"kill9_supervisor@{stage}"
        yield Case(name, stage, "hold", GONE, DUE_S, settings, "kill supervisor")
        name = f"kill9_writer@{stage}"
        yield Case(name, stage, "hold", GOES_ON, DUE_S + 10, settings, "kill writer")


def requests(stages: tuple[str, ...], numbers: tuple[signal.Signals, ...]) -> Iterator[Case]:
    """Signals to the supervisor while a stage is busy, or wedged and deaf."""
    for stage in stages:
        fault = "pause" if stage == "settings" else "sleep_without_term"
        for number in numbers:
            yield Case(
                f"{number.name}@{stage}",
                stage,
                fault,
                ended_by(number),
                GRACE_S + 5,
                only(stage),
                "signals",
                (number,),
            )


def requests_otherwise(stage: str) -> Iterator[Case]:
    """Twice, to all processes, to a stage wedged in C, with a daemon left behind."""
    term = signal.SIGTERM
    told = ended_by(term)
    twice = replace(told, states=frozenset({"interrupted", "in_progress"}), report="any")
    patient = {**only(stage), "BOOTGRACE_S": "30"}
    busy = "leave_and_hang"
    yield Case(f"TERM_twice@{stage}", stage, busy, twice, 4, patient, "signals", (term, term))
    others: tuple[tuple[str, str, OutsideT, Expect], ...] = (
        ("TERM_to_all", "sleep_forever", "signals to all", told),
        ("TERM_wedged", "wedge_without_term", "signals", told),
        ("INT_to_all", "wedge", "signals to all", ended_by(signal.SIGINT)),
        ("USR1", "hold", "signals", GOES_ON),
        ("USR2_to_suspended", "hold", "suspend", GOES_ON),
    )
    for name, fault, outside, expected in others:
        number = signal.Signals[f"SIG{name.partition('_')[0]}"]
        bound = 20 if expected is GOES_ON else GRACE_S + 5
        yield Case(
            f"{name}@{stage}",
            stage,
            fault,
            expected,
            bound,
            only(stage),
            outside,
            (number,),
        )


def disks(stages: tuple[str, ...]) -> Iterator[Case]:
    """The report's volume breaks when the stage begins, and the boot comes to its end."""
    ways: tuple[tuple[OutsideT, VolumeT, float], ...] = (
        ("fill", "tmpfs", 20),
        ("read-only", "tmpfs", 20),
        ("unmount", "tmpfs", 20),
        ("remove", "", 20),
        ("freeze", "loop", 45),
    )
    for stage in stages:
        settings = only(stage)
        for way, volume, bound in ways:
            name = f"{way}@{stage}"
            # The host stage writes a file of its own there, and hangs in that until its deadline.
            hung = way == "freeze" and stage == "host"
            expected = replace(LOST, kind="deadline") if hung else LOST
            given = {**settings, "BOOT_HOST_TIMEOUT_S": "5"} if hung else settings
            yield Case(name, stage, "hold", expected, bound, given, way, volume=volume)
        frozen: OutsideT = "freeze, then signals"
        yield Case(
            f"TERM_frozen@{stage}",
            stage,
            "hold",
            # Where the signal comes to the last write the boot is complete.
            replace(LOST, states=frozenset({"interrupted", "complete"})),
            GRACE_S + 6,
            settings,
            frozen,
            (signal.SIGTERM,),
            volume="loop",
        )
        impatient = expect(73, 143, why="whoever asks twice does not want to wait", report="any",
            states=frozenset({"in_progress", "interrupted", "complete"}))  # fmt: skip
        yield Case(
            f"TERM_twice_frozen@{stage}",
            stage,
            "hold",
            impatient,
            5,
            {**settings, "BOOT_GRACE_S": "30"},
            frozen,
            (signal.SIGTERM, signal.SIGTERM),
            volume="loop",
        )
        yield Case(f"stop_writer@{stage}", stage, "hold", LOST, 45, settings, "stop writer")
        yield Case(f"another@{stage}", stage, "hold", GOES_ON, 20, settings, "another boot")


def shortages(stage: str) -> Iterator[Case]:
    """So few processes or open files that one of the boot's own cannot be made."""
    lacking = expect(
        70, 73, 74, 75, 79, kind=None, report="any", where="", why="no process to be had"
    )
    for settings, counts in ((only(stage), (1, 2)), (only("stack"), (2, 3))):
        for count in counts:
            name = f"processes_{count}@{settings['BOOT_STOP_AFTER']}"
            yield Case(name, stage, "", lacking, 20, settings, processes=count, at_s=0)
    for count in (6, 8, 10):
        yield Case(
            f"files_{count}@{stage}", stage, "", lacking, 20, only(stage), files=count, at_s=0
        )


def streams(stage: str) -> Iterator[Case]:
    """Nobody takes what the boot prints."""
    settings = only(stage)
    deaf: StreamsT = "nobody reads stderr"
    term, told = (signal.SIGTERM,), ended_by(signal.SIGTERM)
    lost = replace(LOST, report="any", states=frozenset({"in_progress"}))
    hung = {**settings, f"BOOT_{stage.upper()}_TIMEOUT_S": "4"}
    yield Case(f"deaf@{stage}", stage, "none", GOES_ON, 25, settings, streams=deaf)
    yield Case(f"deaf_flood@{stage}", stage, "print_much", GOES_ON, 60, settings, streams=deaf)
    yield Case(f"deaf_hang@{stage}", stage, "sleep_forever", HUNG, 16, hung, streams=deaf)
    yield Case(
        f"deaf_TERM@{stage}", stage, "wedge", told, 7, settings, "signals", term, streams=deaf
    )
    yield Case(
        f"deaf_fill@{stage}",
        stage,
        "hold",
        lost,
        20,
        settings,
        "fill",
        volume="tmpfs",
        streams=deaf,
    )
    for name, way in _DEAD_STREAMS.items():
        yield Case(f"{name}@{stage}", stage, "none", GOES_ON, 20, settings, streams=way)


def inherited(stage: str) -> Iterator[Case]:
    """Signal dispositions and masks that a parent has left to the boot."""
    hup, term = (signal.SIGHUP,), (signal.SIGTERM,)
    kept = ("--ignore-signal=CHLD",)
    due = DUE_S
    yield Case(
        f"segfault@{stage}+CHLD_ignored", stage, "segfault", DIED, due, only(stage), inherited=kept
    )
    for name, fault, expected, numbers, options in (
        ("HUP_by_nohup", "hold", GOES_ON, hup, ("--ignore-signal=HUP",)),
        ("TERM_blocked", "sleep_forever", ended_by(signal.SIGTERM), term, ("--block-signal=TERM",)),
        (
            "TERM_ignored",
            "sleep_forever",
            ended_by(signal.SIGTERM),
            term,
            ("--ignore-signal=TERM",),
        ),
    ):
        yield Case(
            f"{name}@{stage}", stage, fault, expected, due, only(stage), "signals", numbers,
            inherited=options,
        )  # fmt: skip


def building(moment: float) -> Iterator[Case]:
    """While a grandchild builds the rehearsal model, in a session of its own."""
    told = {
        **only("cache"),
        "BOOT_BASE_MODEL_ID": "rehearsal:gemma3n",
        "XDG_CACHE_HOME": "{folder}/cache",
    }
    yield Case(
        "kill9_supervisor@cache+builder", "cache", "", GONE, DUE_S, told, "kill supervisor",
        at_s=moment,
    )  # fmt: skip
    yield Case(
        "TERM@cache+builder", "cache", "", ended_by(signal.SIGTERM), DUE_S, told, "signals",
        (signal.SIGTERM,), at_s=moment,
    )  # fmt: skip


def sweep(stage: str, times: tuple[float, ...], number: signal.Signals) -> Iterator[Case]:
    """One signal at any moment: before Python is up the kernel's own end is all there can be."""
    code = 130 if number is signal.SIGINT else 143
    anything = expect(
        0, code, -number, kind=None, report="any", why="it comes before, within or after the boot",
        states=frozenset({"complete", "interrupted", "in_progress"}),
    )  # fmt: skip
    for moment in times:
        yield Case(
            f"{number.name}_at_{moment:g}s@{stage}",
            stage,
            "",
            anything,
            GRACE_S + 6 if number is not signal.SIGKILL else 5,
            only(stage),
            "kill all" if number is signal.SIGKILL else "signals",
            (number,),
            at_s=moment,
        )
