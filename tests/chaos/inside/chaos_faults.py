"""The faults themselves, run inside the boot's own processes. Each is the real thing.

`strike` first leaves the file `struck` with the time (CLOCK_MONOTONIC, one for all processes) and
the process, so that whoever watches knows when and whom it hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_FOLDER = Path(os.environ["CHAOS_DIR"])
_HELD_S = 120.0  # nobody who watches takes longer to do his part
_FLOOD_BYTES = 200_000_000


def strike() -> None:
    """Run the fault that the environment names, unless it has struck in this boot."""
    try:
        os.close(os.open(_FOLDER / "claimed", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    with contextlib.suppress(OSError):  # a limit on file sizes is no reason not to strike
        (_FOLDER / "striking").write_text(json.dumps({"pid": os.getpid(), "at": time.monotonic()}))
        (_FOLDER / "striking").rename(_FOLDER / "struck")
    FAULTS[os.environ["CHAOS_FAULT"]]()


def hold() -> None:
    """Wait for the one outside to have done his part."""
    until = time.monotonic() + _HELD_S
    while not (_FOLDER / "go").exists() and time.monotonic() < until:
        time.sleep(0.02)


def pause() -> None:
    """An honest stage that takes 1.5 s."""
    time.sleep(1.5)


def sleep_forever() -> NoReturn:
    while True:
        time.sleep(3600)


def sleep_without_term() -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    sleep_forever()


def wedge() -> None:
    """Wait in C with the interpreter lock held, for a mutex that nobody will release.

    No signal handler can end it, unlike sleep or pause.
    """
    mutex = ctypes.create_string_buffer(64)  # all zeros: PTHREAD_MUTEX_INITIALIZER
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def wedge_without_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wedge()


def spin() -> None:
    """Burn a processor with the interpreter lock held: only C's own signal handlers run."""
    ctypes.PyDLL(None).qsort(
        ctypes.create_string_buffer(1 << 30),
        ctypes.c_size_t(1 << 30),
        ctypes.c_size_t(1),
        ctypes.cast(ctypes.PyDLL(None).memcmp, ctypes.c_void_p),
    )
    while True:
        re.match("(a+)+$", "a" * 30 + "b")


def stop() -> None:
    """Stopped: takes no TERM and runs no handler."""
    os.kill(os.getpid(), signal.SIGSTOP)


def leave_group() -> NoReturn:
    """Join the supervisor's own process group, where a KILL to the child's group does not come."""
    os.setpgid(0, os.getpgid(os.getppid()))
    sleep_without_term()


def close_pipes() -> NoReturn:
    """Hang up on the supervisor and go on."""
    os.closerange(0, 1024)
    sleep_without_term()


def wait_in_kernel() -> None:
    """State D that no KILL ends: a write to a frozen file system."""
    (Path(os.environ["CHAOS_FROZEN"]) / "file").write_text("x")


def wait_in_vfork() -> None:
    """State D that KILL ends: a child that shares our memory opens a FIFO before its exec."""
    fifo = _FOLDER / "fifo"
    os.mkfifo(fifo)
    action = (os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], dict(os.environ), file_actions=[action])


def segfault() -> None:
    ctypes.string_at(0)


def bus_error() -> None:
    """A mapped file that is cut off while it is read, as by a failing network disk."""
    path = _FOLDER / "mapped"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        view = mmap.mmap(file.fileno(), 8192)
        os.truncate(path, 0)
        view[4096]


def overflow() -> None:
    """The stack of C runs over by a recursion through C."""
    sys.setrecursionlimit(1 << 30)

    def deeper(_: int) -> list[object]:
        return list(map(deeper, [0]))

    deeper(0)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error() -> NoReturn:
    raise RuntimeError("chaos: an exception that nobody foresaw")


def raise_exit() -> NoReturn:
    raise SystemExit(0)


def raise_interrupt() -> NoReturn:
    raise KeyboardInterrupt


def fill_memory() -> NoReturn:
    """Allocate and touch, 16 MB at a time, until the kernel ends it."""
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))
        time.sleep(0.002)


def run_out_of_addresses() -> None:
    """MemoryError for real: 64 MB of address space are left, and asked for twice."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        bytearray(128 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def print_much() -> None:
    """Lines on both streams, faster than anybody reads them."""
    block = b"".join(b"chaos %07d %s\n" % (number, b"." * 180) for number in range(500))
    for number in range(_FLOOD_BYTES // len(block)):
        _write(1 + number % 2, block)


def print_endless_line() -> None:
    for _ in range(_FLOOD_BYTES // 65536):
        _write(1, b"x" * 65536)


def print_garbage() -> None:
    """Bytes that are no text, carriage returns, escapes, NULs, on both streams."""
    block = bytes(range(256)) * 256 + b"\r\x1b[2K\x00\xff\n"
    for number in range(32):
        _write(1 + number % 2, block)


def send_garbage() -> None:
    _send(b"\x00\xffno event at all\n")


def send_half_a_line() -> NoReturn:
    _send(b'{"v":1,"kind":"check_en')
    os._exit(0)


def send_endless_line() -> None:
    for _ in range(_FLOOD_BYTES // 65536):
        _send(b"x" * 65536)


def send_other_version() -> None:
    _send(b'{"v":2,"kind":"stage_started","name":"load"}\n')


def send_lie() -> None:
    """The word that all is done, in the middle of a stage."""
    _send(b'{"v":1,"kind":"ended","peak_bytes":1}\n')


def send_million() -> None:
    """Valid checks of this stage, without end."""
    block = _check("one of a million") * 1000
    for _ in range(1000):
        _send(block)


def send_big_checks() -> None:
    """Valid checks, no more than some hundred, each of a megabyte."""
    block = _check("x" * 1_000_000)
    for _ in range(300):
        _send(block)


def _check(reason: str) -> bytes:
    name = os.environ["CHAOS_STAGE"]
    record = {"stage": name, "id": f"{name}.chaos", "status": "pass", "severity": "critical"}
    event = {"v": 1, "kind": "check_ended", "record": {**record, "reason": reason}}
    return json.dumps(event).encode() + b"\n"


def leave_daemon() -> None:
    """A double-forked sleeper in a session of its own, its streams closed, its TERM ignored."""
    _orphan(_sleep_hidden)


def leave_holder() -> None:
    """The same, holding every pipe open."""
    _orphan(sleep_without_term)


def leave_holder_and_die() -> None:
    _orphan(sleep_without_term)
    kill_self()


def leave_stopped() -> None:
    _orphan(stop)


def leave_hydra() -> None:
    """An orphan that forks itself anew every 5 ms, so that its process id is always another."""
    _orphan(_fork_on)


def leave_and_hang() -> None:
    _orphan(sleep_without_term)
    sleep_forever()


def _sleep_hidden() -> None:
    os.closerange(0, 1024)
    sleep_without_term()


def _fork_on() -> NoReturn:
    os.closerange(0, 1024)
    while True:
        time.sleep(0.005)
        if os.fork():
            os._exit(0)


def _orphan(run: Callable[[], object]) -> None:
    """Run it in a grandchild of a session of its own, whose parent is gone at once."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if not os.fork():
        run()
    os._exit(0)


def _write(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


def _send(data: bytes) -> None:
    """Write to every pipe that this process can only write to: one of them carries its events."""
    for each in list(Path("/proc/self/fd").iterdir()):
        number = int(each.name)
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            if number > 2 and stat.S_ISFIFO(os.fstat(number).st_mode) and _write_only(number):
                _write(number, data)


def _write_only(number: int) -> bool:
    flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/self/fdinfo/{number}").read_text())
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE == os.O_WRONLY


FAULTS: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "bus_error": bus_error,
    "close_pipes": close_pipes,
    "exit_0": lambda: os._exit(0),
    "exit_3": lambda: os._exit(3),
    "fill_memory": fill_memory,
    "hold": hold,
    "kill_self": kill_self,
    "leave_and_hang": leave_and_hang,
    "leave_daemon": leave_daemon,
    "leave_group": leave_group,
    "leave_holder": leave_holder,
    "leave_holder_and_die": leave_holder_and_die,
    "leave_hydra": leave_hydra,
    "leave_stopped": leave_stopped,
    "none": lambda: None,
    "overflow": overflow,
    "pause": pause,
    "print_endless_line": print_endless_line,
    "print_garbage": print_garbage,
    "print_much": print_much,
    "raise_error": raise_error,
    "raise_exit": raise_exit,
    "raise_interrupt": raise_interrupt,
    "run_out_of_addresses": run_out_of_addresses,
    "segfault": segfault,
    "send_big_checks": send_big_checks,
    "send_endless_line": send_endless_line,
    "send_garbage": send_garbage,
    "send_half_a_line": send_half_a_line,
    "send_lie": send_lie,
    "send_million": send_million,
    "send_other_version": send_other_version,
    "sleep_forever": sleep_forever,
    "sleep_without_term": sleep_without_term,
    "spin": spin,
    "stop": stop,
    "wait_in_kernel": wait_in_kernel,
    "wait_in_vfork": wait_in_vfork,
    "wedge": wedge,
    "wedge_without_term": wedge_without_term,
}
