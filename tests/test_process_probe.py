"""What is read of real processes: their use, their waits, their descendants."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.facts.process import Sample
from app.probes.process import descendants, raise_oom_score, sample, waits
from tests.boots import state

PATIENCE_S = 20.0
GONE = 2**22 + 1  # above the largest process number that Linux gives out


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes in groups of their own, which end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
        started.append(child)
        return child

    yield run
    for child in started:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with child:
            child.wait()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def until(true: Callable[[], bool]) -> None:
    """Wait for a fact of another process."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it did not become so"
        time.sleep(0.02)


def said(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def test_a_sample_grows_by_what_the_process_reads_and_computes(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    child = start(
        *python(
            "import sys; print('ready', flush=True); sys.stdin\n"
            "held = bytearray(64 << 20)\n"
            "file = open('/dev/zero', 'rb')\n"
            "while True: file.readinto(held)"
        )
    )
    assert said(child) == "ready"
    before = sample(child.pid)
    until(lambda: sample(child.pid).read_bytes > before.read_bytes + (256 << 20))
    until(lambda: sample(child.pid).cpu_s > before.cpu_s)
    assert sample(child.pid).rss_bytes > 64 << 20
    assert sample(child.pid).state in {"R", "S", "D"}


def test_a_sample_counts_descendants_and_children_that_have_ended(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    burn = "h = bytearray(32 << 20); open('/dev/zero', 'rb').readinto(h); sum(range(10**7))"
    child = start(
        *python(
            "import subprocess, sys\n"
            f"subprocess.run([sys.executable, '-c', {burn!r}], check=True)\n"
            f"p = subprocess.Popen([sys.executable, '-c', {burn + '; input()'!r}], "
            "stdin=subprocess.PIPE)\n"
            "print(p.pid, flush=True); p.wait()"
        )
    )
    grandchild = int(said(child))
    until(lambda: state(grandchild) == "S" and sample(grandchild).rss_bytes > 32 << 20)
    whole = sample(child.pid)
    assert whole.rss_bytes > sample(grandchild).rss_bytes
    assert whole.read_bytes > 64 << 20  # both: the one that was reaped, and the one that waits
    assert whole.cpu_s > 0
    assert descendants(child.pid) == [grandchild]


def test_descendants_are_told_parents_first(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    child = start("sh", "-c", "sh -c 'sleep 600 & echo ready; wait' & wait")
    assert said(child) == "ready"
    until(lambda: len(descendants(child.pid)) == 2)
    first, second = descendants(child.pid)
    assert descendants(first) == [second]
    assert child.pid in descendants(os.getpid())


def test_a_process_that_is_gone_gives_zeros(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    assert sample(GONE) == Sample()
    assert (waits(GONE), descendants(GONE)) == ([], [])
    child = start("true")
    until(lambda: state(child.pid) == "Z")
    assert sample(child.pid).rss_bytes == 0
    assert sample(child.pid).state == "Z"


def test_a_name_may_hold_what_the_file_is_written_with(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """The kernel writes the name in parentheses and escapes none in it."""
    evil = tmp_path / "a) D 1 (b\nc"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", evil)
    child = start(str(evil), "600")
    until(lambda: state(child.pid) == "S")
    (line,) = waits(child.pid)
    assert line.startswith(f"{child.pid} a) D 1 (b\\u000ac S: ")
    assert child.pid in descendants(os.getpid())


def test_an_uninterruptible_wait_is_told_with_its_place(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A parent waits so from vfork to the child's execve, here kept from coming by a FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = start(
        *python(
            "import os; os.posix_spawn('/bin/true', ['true'], {}, "
            f"file_actions=[(os.POSIX_SPAWN_OPEN, 7, {str(fifo)!r}, os.O_RDONLY, 0)])"
        )
    )
    until(lambda: state(child.pid) == "D")
    (line,) = waits(child.pid)
    assert line.startswith(f"{child.pid} ")
    assert " D: " in line
    if os.getuid() == 0:  # others may not read the kernel's stack
        assert "vfork" in line or "clone" in line
        assert "; stack " in line
    assert sample(child.pid).state == "D"
    assert sample(child.pid).rss_bytes > 0


def test_many_threads_are_bounded_and_the_main_one_comes_first(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    child = start(
        *python(
            "import threading, time\n"
            "for _ in range(80): threading.Thread(target=time.sleep, args=(600,)).start()\n"
            "print('ready', flush=True)"
        )
    )
    assert said(child) == "ready"
    lines = waits(child.pid)
    assert len(lines) == 65
    assert lines[0].startswith(f"{child.pid} python")
    assert lines[-1] == "and 17 more threads"


def test_only_what_cannot_block_is_read(tmp_path: Path) -> None:
    """The files that take the memory lock of the process are FIFOs here: who opens one hangs."""
    folder = tmp_path / "7"
    for place in (folder, folder / "task" / "7"):
        place.mkdir(parents=True)
        ticks = "0 0 0 0 0 0 0 0 0 250 50 0 0 20 0 1 0 100 4096 3"
        (place / "stat").write_text(f"7 (python3) D 1 {ticks}\n")
        (place / "io").write_text("rchar: 123\nwchar: 4\n")
        (place / "wchan").write_text("nfs_wait_bit_killable")
        (place / "syscall").write_text("0 0x3 0x7f2e 0x1000 0x0 0x0 0x0 0x7ffd 0x7f94\n")
        (place / "stack").write_text("[<0>] nfs_wait_bit_killable+0x1/0x2\n[<0>] read+0x3/0x4\n")
        for name in ("cmdline", "environ", "maps", "smaps", "smaps_rollup", "numa_maps"):
            os.mkfifo(place / name)
    found = sample(7, tmp_path)
    tick = os.sysconf("SC_CLK_TCK")
    assert found == Sample(3 * os.sysconf("SC_PAGE_SIZE"), 123, 300 / tick, "D")
    (line,) = waits(7, tmp_path)
    where = "syscall 0 0x3 0x7f2e 0x1000; stack nfs_wait_bit_killable < read"
    assert line == f"7 python3 D: nfs_wait_bit_killable; {where}"


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "task" / "7"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("7 (x) S 1 " + "0 " * 30)
    (folder / "wchan").write_text("0")
    assert waits(7, tmp_path) == ["7 x S: nowhere that can be read"]


def test_the_score_is_raised_for_this_process_and_stops_at_the_kernels_most() -> None:
    code = (
        "from app.probes.process import raise_oom_score as r; "
        "a = int(open('/proc/self/oom_score_adj').read()); r(); "
        "b = int(open('/proc/self/oom_score_adj').read()); r(5000); "
        "print(b - a, open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run(python(code), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["100", "1000"]


def test_a_score_that_cannot_be_raised_changes_nothing(tmp_path: Path) -> None:
    raise_oom_score(proc=tmp_path)
    assert not list(tmp_path.iterdir())
