"""All chaos boots, cheap ones first, and the dozen that every test run makes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

from tests.chaos import families as of
from tests.chaos import families_outside as outside
from tests.chaos.cases import PREFLIGHT, WORKER, Case, Expect

_PREFLIGHT = PREFLIGHT[1:]  # the settings stage runs in the supervisor itself
_CHEAP_LIMIT = 600 << 20  # bytes: with less than 512 MiB the host stage would end them
_HEAVY_LIMIT = 2200 << 20  # twice what the stack takes
_TERM, _INT = signal.SIGTERM, signal.SIGINT


def cheap() -> Iterator[Case]:
    """Boots that end in the torch-free stages, one to three seconds each."""
    yield from outside.requests(("settings",), (_TERM, _INT, signal.SIGHUP))
    yield from outside.kills(PREFLIGHT)
    yield from outside.disks(("settings", "host", "checkpoint"))
    yield from of.deaths(("host", "checkpoint"))
    yield from of.deaths(("gpu", "cache"), ("segfault", "kill_self", "exit_0", "raise_error"))
    yield replace(next(of.deaths(("settings",), ("raise_error",))), expect=_RAISED_IN_SETTINGS)
    yield from of.hangs(("cache",))
    yield from of.hangs(("host", "gpu", "checkpoint"), ("sleep_forever", "wedge_without_term"))
    yield from of.kernel_waits(("checkpoint",))
    yield from of.floods(("host",))
    yield from of.floods(("checkpoint",), ("print_much", "send_lie", "send_million"))
    yield from of.leavers(("cache",))
    yield from outside.requests(_PREFLIGHT, (_TERM, _INT))
    yield from outside.requests(("cache",), (signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU))
    yield from outside.requests_otherwise("cache")
    yield from of.memories(("host", "checkpoint"), _CHEAP_LIMIT)
    yield from outside.streams("checkpoint")
    yield from outside.sweep("checkpoint", (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.7, 0.9), _TERM)
    yield from outside.sweep("checkpoint", (0.3, 0.4, 0.5, 0.6, 0.8, 1.0), signal.SIGKILL)
    yield from outside.shortages("checkpoint")
    yield from outside.inherited("host")
    yield from outside.building(4.0)
    yield from of.hangs(("cache",), ("leave_group",))
    yield from _odd_deadlines()
    yield of.whole_deadline("cache")
    for case in of.deaths(("host",), ("segfault", "raise_error")):
        settings = {**case.settings, "BOOT_LOG_FORMAT": "text"}
        yield replace(case, name=f"{case.name}+text", settings=settings)
    yield from _on_a_gpu_profile()
    yield from _of_every_kind(("gpu", "cache"), _CHEAP_LIMIT)


def beside_the_worker() -> Iterator[Case]:
    """Preflight struck while the worker imports, which must not outlive it."""
    for case in (
        *of.deaths(("host",), ("segfault", "raise_error")),
        *of.hangs(("cache",), ("wedge",)),
        *outside.kills(("checkpoint",)),
        *outside.requests(("gpu",), (_TERM,)),
    ):
        settings = {**case.settings, "BOOT_STOP_AFTER": "stack"}
        bound = case.within_s + (60 if 0 in case.expect.codes else 5)
        yield replace(case, name=f"{case.name}+worker", settings=settings, within_s=bound)


def heavy() -> Iterator[Case]:
    """Boots whose worker gets to its stages: ten to twenty seconds each."""
    yield from _while_importing()
    yield from of.deaths(WORKER, ("segfault",))
    yield from of.deaths(("load",), ("abort", "bus_error", "overflow", "exit_0", "raise_exit"))
    yield from of.deaths(("numerics",), ("kill_self", "raise_error", "run_out_of_addresses"))
    yield from of.hangs(("load", "numerics"), ("wedge_without_term",))
    yield from of.hangs(("precision",), ("sleep_forever",))
    yield from of.hangs(("adapter",), ("stop",))
    yield from of.hangs(("numerics",), ("spin",))
    yield from of.kernel_waits(("load",))
    yield from of.floods(("stack",), ("print_much", "send_endless_line"))
    yield from of.floods(("load",), ("send_garbage", "send_million"))
    yield from of.floods(("numerics",), ("print_endless_line", "send_lie"))
    yield from (case for case in of.leavers(("load",)) if case.fault != "leave_stopped")
    yield from outside.kills(("stack", "numerics"))
    yield from outside.requests(WORKER, (_TERM,))
    yield from outside.requests(("load",), (_INT, signal.SIGHUP))
    yield from outside.requests_otherwise("adapter")
    yield from of.memories(("stack", "load", "numerics"), _HEAVY_LIMIT)
    for case in outside.disks(("load", "numerics")):
        if case.outside in ("fill", "freeze", "unmount", "another boot"):
            yield case
    yield from _of_every_kind(("stack", "precision", "adapter"), _HEAVY_LIMIT)
    slow = {**of.only("stack"), "BOOT_STACK_TIMEOUT_S": "30"}  # the import counts too
    yield Case("sleep_forever@stack", "stack", "sleep_forever", of.HUNG, 45, slow)
    yield from (case for case in outside.kills(("load",)) if "victim" in case.name)
    yield from outside.sweep("numerics", (2.0, 4.0, 7.0, 10.0), _TERM)
    yield from outside.sweep("numerics", (3.0, 9.0), signal.SIGKILL)


def jobs() -> Iterator[Case]:
    """The user's own code, after all the rest."""
    late = {"BOOT_JOB_TIMEOUT_S": "4"}
    mine = Expect(frozenset({1}), "an uncaught exception in a job is 1", kind=None)
    own = replace(mine, codes=frozenset({7}), why="a job's own status is passed through")
    left = replace(mine, says="os._exit", why="its own status, and the report says how it left")
    saved = replace(
        mine, codes=frozenset({9}), states=_INTERRUPTED, why="time to save, then its own"
    )
    job = _job("none", of.GOES_ON)
    yield job
    yield _job("none", own, function="fails")
    yield _job("raise_error", mine)
    yield _job("exit_3", replace(left, codes=frozenset({3})))
    yield _job("exit_0", replace(left, codes=frozenset({0})))
    yield _job("segfault", of.DIED)
    yield _job("run_out_of_addresses", replace(mine, why="an exception of the job's"))
    yield replace(_job("fill_memory", of.STARVED_BY_KERNEL), memory_bytes=_HEAVY_LIMIT, within_s=40)
    yield _job("sleep_forever", of.HUNG, **late)
    yield _job("wedge_without_term", of.HUNG, **late)
    yield _job("leave_daemon", of.GOES_ON)
    yield _job("leave_hydra", of.GOES_ON)
    yield _told(_job("sleep_forever", of.ended_by(_TERM)), _TERM)
    yield _told(_job("none", saved, function="saves"), _TERM)
    unheard = replace(left, codes=frozenset({128 + signal.SIGHUP}), says="no handler")
    yield _told(_job("sleep_forever", unheard), signal.SIGHUP)
    told = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    yield _told(_job("none", of.GOES_ON, function="counts"), *told)
    yield from (replace(case, settings=job.settings) for case in outside.kills(("job",)))
    yield replace(_job("hold", of.LOST), name="fill@job", outside="fill", volume="tmpfs")


_INTERRUPTED = frozenset({"interrupted"})
_RAISED_IN_SETTINGS = replace(of.RAISED, kind="RuntimeError")


def _job(fault: str, expected: Expect, function: str = "main", **settings: str) -> Case:
    name = f"{fault}@job" if function == "main" else f"{function}@job"
    given = {"BOOT_GRACE_S": "2", "BOOT_JOB": f"chaos_job:{function}", **settings}
    return Case(name, "job", fault, expected, 20, given)


def _told(case: Case, *numbers: signal.Signals) -> Case:
    name = f"{case.name}+{numbers[0].name}"
    return replace(case, name=name, outside="signals", signals=numbers)


def _of_every_kind(stages: tuple[str, ...], limit: int) -> Iterator[Case]:
    """A kill, a flood, a full disk and no memory for the stages that get little else."""
    yield from (case for case in outside.kills(stages) if "victim" in case.name)
    yield from of.floods(stages, ("print_much", "send_garbage"))
    yield from (case for case in outside.disks(stages) if case.outside == "fill")
    yield from of.memories(stages, limit)


def _while_importing() -> Iterator[Case]:
    """The worker before its go: what happens there is told as the first stage's."""
    for case in (
        *of.deaths(("import",), ("segfault", "exit_0", "raise_error", "raise_exit")),
        *outside.kills(("import",)),
        *outside.requests(("import",), (_TERM,)),
        *of.hangs(("import",), ("wedge_without_term",)),
    ):
        bound = case.within_s + (60 if 0 in case.expect.codes else 5)
        settings = {**of.only("stack"), "BOOT_STACK_TIMEOUT_S": "40"}
        if case.fault == "wedge_without_term" and not case.outside:
            settings["BOOT_STACK_TIMEOUT_S"] = "4"
        yield replace(case, settings=settings, within_s=bound)


def _odd_deadlines() -> Iterator[Case]:
    """Shorter than a fork takes; and the settings' own, which no variable changes."""
    hung = replace(of.HUNG, kind="deadline")
    settings = {**of.only("host"), "BOOT_HOST_TIMEOUT_S": "0.001"}
    yield Case("tiny_deadline@host", "host", "sleep_forever", hung, 10, settings, at_s=0)
    yield Case("sleep_forever@settings", "settings", "sleep_forever", hung, 75, of.only("host"))
    gone = replace(_RAISED_IN_SETTINGS, kind=None)
    yield Case("raise_exit@settings", "settings", "raise_exit", gone, 10, of.only("host"))


def _on_a_gpu_profile() -> Iterator[Case]:
    """What hangs or dies in the driver's stage makes the node unfit."""
    unfit = replace(of.DIED, codes=frozenset({69}), why="a crashed probe of the driver")
    for case in (
        *of.hangs(("gpu",), ("sleep_forever", "wedge_without_term")),
        *(replace(case, expect=unfit) for case in of.deaths(("gpu",), ("segfault",))),
    ):
        settings = {**case.settings, "BOOT_HARDWARE": "h100"}
        yield replace(case, name=f"{case.name}+h100", settings=settings)


_ALL = (*cheap(), *beside_the_worker(), *heavy(), *jobs())
CASES: tuple[Case, ...] = tuple({case.name: case for case in _ALL}.values())

# One of each kind, so that a test run of some minutes sees each rule once.
DOZEN: tuple[str, ...] = (
    "SIGTERM@settings",
    "segfault@host",
    "wedge_without_term@gpu",
    "kill9_supervisor@cache",
    "kill9_writer@checkpoint",
    "wait_in_kernel@checkpoint",
    "fill@host",
    "fill_memory@host",
    "leave_holder_and_die@cache",
    "send_garbage@host",
    "deaf@checkpoint",
    "wedge_without_term@load",
    "SIGTERM@numerics",
    "segfault@job",
)
