"""Families of chaos boots: a fault at stages, and what the design says must come."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.cases import Case, Expect

GRACE_S = 2
_LATE_S = 4  # a deadline that no honest stage here comes near to
DUE_S = 10.0  # from a death to the end of the boot: two noisy cores, another boot beside it
_QUICK = {"BOOTGRACE_S": str(GRACE_S)}


def expect(*codes: int, why: str, **more: object) -> Expect:
    """One or several codes and the reason."""
    return Expect(frozenset(codes), why, **more)  # type: ignore[arg-type]


GOES_ON = expect(0, why="the boot has not been harmed")
HUNG = expect(75, kind="deadline", why="a deadline: try again")
HUNG_DRIVER = expect(69, kind="deadline", why="the driver's stage hangs: another node")
STUCK = expect(69, kind="deadline", why="not even KILL ends it: the node's kernel is stuck")
DIED = expect(70, kind="signal", signal="SIGSEGV", why="a native crash without a device: ours")
LEFT = expect(70, kind="exit", why="a process that leaves without a verdict is a bug")
RAISED = expect(70, why="an exception that nobody foresaw")
STARVED = expect(79, why="too little memory: other hardware, a larger limit")
STARVED_BY_KERNEL = replace(STARVED, kind="signal", signal="SIGKILL", says="memory")
LIED = expect(70, kind="protocol", why="what is said is no event: a bug of ours")
LOST = expect(73, report="log", why="the report folder is lost, the report goes to the log")
GONE = expect(
    -signal.SIGKILL, report="left", states=frozenset({"in_progress"}), why="nobody is left to tell"
)


def ended_by(number: signal.Signals) -> Expect:
    """A request to end."""
    code = 130 if number is signal.SIGINT else 143
    return expect(code, states=frozenset({"interrupted"}), why=f"{number.name} asks to end")


def by(name: str, crashed: Expect = DIED) -> Expect:
    """A death by that signal."""
    return replace(crashed, signal=name)


_DRIVER_DIED = replace(DIED, codes=frozenset({69}), why="a crashed probe of the driver")

# Faults of a process that ends by itself, and what they amount to.
_DEATHS: dict[str, Expect] = {
    "segfault": DIED,
    "abort": by("SIGABRT"),
    "bus_error": replace(by("SIGBUS"), codes=frozenset({70, 74}), why="a mapped file cut off"),
    "overflow": DIED,
    "kill_self": by("SIGKILL"),
    "exit_0": LEFT,
    "exit_3": LEFT,
    "raise_error": RAISED,
    "raise_exit": replace(RAISED, kind=None),
    "raise_interrupt": replace(RAISED, kind=None),
    "run_out_of_addresses": STARVED,
}
_HANGS = ("sleep_forever", "sleep_without_term", "wedge", "wedge_without_term", "spin", "stop")
_FLOODS: dict[str, Expect] = {
    "print_much": GOES_ON,
    "print_endless_line": GOES_ON,
    "print_garbage": GOES_ON,
    "send_garbage": LIED,
    "close_pipes": LIED,
    "send_half_a_line": replace(LIED, kind=None),
    "send_endless_line": LIED,
    "send_other_version": LIED,
    "send_lie": LIED,
    "send_big_checks": LIED,
    "send_million": replace(LIED, codes=frozenset({0, 70}), kind=None),
}
_LEAVERS = {
    "leave_daemon": GOES_ON,
    "leave_holder": GOES_ON,
    "leave_stopped": GOES_ON,
    "leave_hydra": GOES_ON,
    "leave_holder_and_die": by("SIGKILL"),
}


def only(stage: str) -> dict[str, str]:
    """Settings of a boot that ends after the stage."""
    return {**_QUICK, "BOOT_STOP_AFTER": stage}


def late(stage: str, seconds: int = _LATE_S) -> dict[str, str]:
    """The same with a short deadline of that stage."""
    return {**only(stage), f"BOOT_{stage.upper()}_TIMEOUT_S": str(seconds)}


def at(stage: str, expected: Expect) -> Expect:
    """What the gpu stage makes of a death or a hang: there it is the driver."""
    if stage != "gpu":
        return expected
    if expected is HUNG:
        return HUNG_DRIVER
    return expected


def deaths(stages: tuple[str, ...], faults: tuple[str, ...] = tuple(_DEATHS)) -> Iterator[Case]:
    """Crashes and exceptions."""
    for stage in stages:
        for fault in faults:
            yield Case(f"{fault}@{stage}", stage, fault, _DEATHS[fault], DUE_S, only(stage))


def hangs(stages: tuple[str, ...], faults: tuple[str, ...] = _HANGS) -> Iterator[Case]:
    """Hangs that a deadline of the stage ends."""
    bound = _LATE_S + GRACE_S + DUE_S
    for stage in stages:
        for fault in faults:
            yield Case(f"{fault}@{stage}", stage, fault, at(stage, HUNG), bound, late(stage))


def floods(stages: tuple[str, ...], faults: tuple[str, ...] = tuple(_FLOODS)) -> Iterator[Case]:
    """More output than anybody reads, and nonsense where events are read."""
    for stage in stages:
        for fault in faults:
            yield Case(f"{fault}@{stage}", stage, fault, _FLOODS[fault], 60, only(stage))


def leavers(stages: tuple[str, ...]) -> Iterator[Case]:
    """Grandchildren that would outlive the boot, and hold its pipes."""
    for stage in stages:
        for fault, expected in _LEAVERS.items():
            yield Case(f"{fault}@{stage}", stage, fault, expected, DUE_S + 10, only(stage))
        settings = late(stage)
        yield Case(
            f"leave_and_hang@{stage}", stage, "leave_and_hang", at(stage, HUNG), 16, settings
        )


def kernel_waits(stages: tuple[str, ...]) -> Iterator[Case]:
    """State D, by a vfork that does not come back and by a frozen file system."""
    for stage in stages:
        yield Case(
            f"wait_in_vfork@{stage}", stage, "wait_in_vfork", at(stage, HUNG), 16, late(stage)
        )
        yield Case(
            f"wait_in_kernel@{stage}", stage, "wait_in_kernel", STUCK, 18, late(stage), frozen=True
        )


def memories(stages: tuple[str, ...], limit: int) -> Iterator[Case]:
    """Allocates in a control group with a real limit until the kernel kills."""
    for stage in stages:
        yield Case(
            f"fill_memory@{stage}",
            stage,
            "fill_memory",
            STARVED_BY_KERNEL,
            40,
            only(stage),
            memory_bytes=limit,
        )


def whole_deadline(stage: str) -> Case:
    """The deadline of the whole guard, none of the stage."""
    settings = {**only(stage), "BOOT_TOTAL_TIMEOUT_S": "6"}
    return Case(f"total@{stage}", stage, "sleep_forever", at(stage, HUNG), 20, settings)
