"""Families of chaos boots that are struck from outside: kills, requests, disks, streams."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.cases import Case, Expect, OutsideT, StreamsT, VolumeT
from tests.chaos.families import (
    DUE_S,
    GOES_ON,
    GONE,
    GRACE_S,
    LOST,
    by,
    ended_by,
    expect,
    only,
)


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
            yield Case(name, stage, "hold", LOST, bound, settings, way, volume=volume)
        yield Case(f"another@{stage}", stage, "hold", GOES_ON, 20, settings, "another boot")


def streams(stage: str) -> Iterator[Case]:
    """Nobody takes what the boot prints."""
    settings = only(stage)
    deaf: StreamsT = "nobody reads stderr"
    yield Case(f"deaf@{stage}", stage, "none", GOES_ON, 25, settings, streams=deaf)
    yield Case(f"deaf_flood@{stage}", stage, "print_much", GOES_ON, 60, settings, streams=deaf)
    yield Case(f"out_closed@{stage}", stage, "none", GOES_ON, 20, settings, streams="stdout closed")
    yield Case(f"out_full@{stage}", stage, "none", GOES_ON, 20, settings, streams="stdout full")


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
