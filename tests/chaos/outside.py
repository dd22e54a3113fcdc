"""What is done to a boot from outside, once its fault has struck."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cases import Case
from tests.chaos.places import Place, run

_BETWEEN_S = 0.7  # two signals are two requests only some time apart
_SUSPENDED_S = 2.0
_WRITTEN_S = 0.5  # by now the stage that has begun stands in the report, also on a busy machine


@dataclass(frozen=True, slots=True)
class Struck:
    """A boot at the moment of its fault: supervisor, and the process that runs the stage."""

    case: Case
    place: Place
    supervisor: int
    victim: int
    command: tuple[str, ...]  # of another boot
    environ: Mapping[str, str]


def act(struck: Struck) -> None:
    """Do the case's part, then let a held stage go on."""
    if struck.case.outside:
        if struck.case.at_s is None:
            time.sleep(_WRITTEN_S)
        _ACTIONS[struck.case.outside](struck)
    (struck.place.folder / "go").touch()


def _signals(struck: Struck) -> None:
    for number, each in enumerate(struck.case.signals):
        if number:
            time.sleep(_BETWEEN_S)
        _send(struck.supervisor, each)


def _signals_to_all(struck: Struck) -> None:
    for each in struck.case.signals:
        for pid in struck.place.pids():
            _send(pid, each)


def _kill_victim(struck: Struck) -> None:
    _send(struck.victim, signal.SIGKILL)


def _kill_supervisor(struck: Struck) -> None:
    _send(struck.supervisor, signal.SIGKILL)


def _kill_writer(struck: Struck) -> None:
    _send(_writer(struck), signal.SIGKILL)


def _stop_writer(struck: Struck) -> None:
    _send(_writer(struck), signal.SIGSTOP)


def _suspend(struck: Struck) -> None:
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in struck.place.pids():
            _send(pid, number)
        time.sleep(_SUSPENDED_S)


def _writer(struck: Struck) -> int:
    """The one child of the supervisor that is neither the stage's process nor a new program."""
    line = Path(f"/proc/{struck.supervisor}/cmdline").read_bytes()
    for pid in _children(struck.supervisor):
        if pid != struck.victim and Path(f"/proc/{pid}/cmdline").read_bytes() == line:
            return pid
    raise ProcessLookupError("the supervisor has no writer")


def _kill_all(struck: Struck) -> None:
    for pid in struck.place.pids():
        _send(pid, signal.SIGKILL)


def _fill(struck: Struck) -> None:
    """Leave no byte free, in pieces down to one."""
    with (struck.place.reports / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


def _read_only(struck: Struck) -> None:
    run("mount", "-o", "remount,ro", str(struck.place.reports))


def _unmount(struck: Struck) -> None:
    run("umount", "--lazy", str(struck.place.reports))


def _remove(struck: Struck) -> None:
    shutil.rmtree(struck.place.reports)


def _freeze(struck: Struck) -> None:
    run("fsfreeze", "--freeze", str(struck.place.reports))


def _freeze_and_signal(struck: Struck) -> None:
    """The stage goes on, so that its end is being written when the signals come."""
    _freeze(struck)
    (struck.place.folder / "go").touch()
    time.sleep(_BETWEEN_S)
    _signals(struck)


def _remove_cwd(struck: Struck) -> None:
    struck.place.work.rmdir()


def _another_boot(struck: Struck) -> None:
    """One that ends at once and well, unstruck."""
    environ = {k: v for k, v in struck.environ.items() if not k.startswith("CHAOS_")}
    subprocess.run(
        struck.command,
        cwd=struck.place.folder,
        env={**environ, "BOOT_STOP_AFTER": "settings", "BOOT_RUN_ID": "another"},
        capture_output=True,
        timeout=60,
        check=True,
    )


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(each) for each in text.split()]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


_ACTIONS: dict[str, Callable[[Struck], None]] = {
    "another boot": _another_boot,
    "fill": _fill,
    "freeze": _freeze,
    "freeze, then signals": _freeze_and_signal,
    "kill all": _kill_all,
    "kill preflight or worker": _kill_victim,
    "kill supervisor": _kill_supervisor,
    "kill writer": _kill_writer,
    "read-only": _read_only,
    "remove": _remove,
    "remove cwd": _remove_cwd,
    "signals": _signals,
    "signals to all": _signals_to_all,
    "stop writer": _stop_writer,
    "suspend": _suspend,
    "unmount": _unmount,
}
