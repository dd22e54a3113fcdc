"""Facts about how the children are started: what they inherit, and what they do not."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from app.child import Child
from app.errors import BootError
from app.events import Ended
from app.spawn import fork_preflight, spawn_worker
from tests.boots import ROOT, until
from tests.fakes_core import Children, children, installed, lines

LOOK = """
import json
from pathlib import Path
status = dict(l.split(':\\t', 1) for l in Path('/proc/self/status').read_text().splitlines())
found = {
    'pid': os.getpid(), 'parent': os.getppid(), 'group': os.getpgid(0),
    'ignored': int(status['SigIgn'], 16), 'blocked': int(status['SigBlk'], 16),
    'fds': sorted(n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)),
    'given': [str(events), str(trace), str(raw)],
    'stdin': os.readlink('/proc/self/fd/0'),
}
os.write(1, json.dumps(found).encode() + b'\\n')
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Children]:
    with children(tmp_path) as found:
        yield found


def ended(start: Children, child: Child) -> None:
    until(child.ended, "the child's end")
    start.watch.drain(child)


def bit(number: int) -> int:
    return 1 << (number - 1)


def test_the_worker_leads_a_group_and_ignores_nothing(start: Children) -> None:
    """What the supervisor blocks or ignores would be a job's as well."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        child = start.start(f"{LOOK}\nos._exit(0)")
    finally:
        signal.signal(signal.SIGHUP, kept)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ended(start, child)
    found = json.loads(start.said[0])
    assert found["pid"] == found["group"] == child.pid
    assert found["parent"] == os.getpid()
    assert not found["blocked"] & bit(signal.SIGTERM)
    assert not found["ignored"] & bit(signal.SIGHUP)


def open_ones() -> set[str]:
    """Descriptors of this process, but for the listing's own."""
    names = {path.name for path in Path("/proc/self/fd").iterdir()}
    return {name for name in names if Path(f"/proc/self/fd/{name}").exists()}


def test_the_worker_gets_no_descriptor_but_its_own(start: Children) -> None:
    """None of ours: neither the other ends of its pipes nor those of another child."""
    start.start("time.sleep(60)")
    child = start.start(f"{LOOK}\nos._exit(0)")
    ended(start, child)
    found = json.loads(start.said[0])
    ours = {name for name in open_ones() if os.get_inheritable(int(name))}  # of the test run
    assert set(found["fds"]) - set(found["given"]) - ours <= {"0", "1", "2"}


def test_starting_children_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    with children(tmp_path) as start:
        before = open_ones()
        child = start.start("os._exit(0)")
        ended(start, child)
        assert len(open_ones()) == len(before) + 4
        child.close()
        start.forget(child)
        assert open_ones() == before


def test_a_worker_that_cannot_be_started_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = open_ones()
    with pytest.raises(BootError, match="no process"):
        spawn_worker({}, print)
    assert open_ones() == before


def test_the_product_comes_before_the_callers_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder `app` of a job's own, on its PYTHONPATH, is not ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "worker.py").write_text("print('shadow')")
    said: list[str] = []
    child = spawn_worker({**os.environ, "PYTHONPATH": str(tmp_path)}, said.append)
    try:
        child.close()  # no order will come: it leaves
        until(child.ended, "the worker's end")
    finally:
        child.signal_group(signal.SIGKILL)
    assert child.exit_code == 0
    assert not said


# The preflight.


def forked(main: object, said: list[str]) -> Child:
    return fork_preflight(main, said.append)  # type: ignore[arg-type]


def finished(child: Child) -> None:
    until(child.ended, "the fork's end")
    child.take_output()


def test_a_fork_speaks_on_its_pipe_and_leaves() -> None:
    def main(pipe: BinaryIO) -> None:
        pipe.write(lines(Ended(peak_bytes=3)))
        pipe.flush()
        os.write(1, b"hello\n")
        os.write(2, b"world\n")

    said: list[str] = []
    child = forked(main, said)
    finished(child)
    assert child.take_events() == lines(Ended(peak_bytes=3)).split(b"\n")[:1]
    assert (child.exit_code, said) == (0, ["hello", "world"])
    child.close()


FORK = """
import os, sys, time
from app.spawn import fork_preflight
def main(pipe):
    raise {error}
child = fork_preflight(main, lambda line: print('said', line, flush=True))
while not child.ended():
    time.sleep(0.01)
child.take_output()
os.write(1, b'once %d\\n' % child.exit_code)
"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RuntimeError('broken')", "said RuntimeError: broken"),
        ("SystemExit(0)", "said SystemExit: 0"),
        ("KeyboardInterrupt", "said KeyboardInterrupt"),
    ],
)
def test_a_fork_that_raises_says_so_and_leaves(error: str, words: str) -> None:
    printed = run(FORK.format(error=error))
    assert words in printed
    assert printed[-1] == "once 70"


def test_a_fork_never_returns_into_its_parents_code(tmp_path: Path) -> None:
    """Not even where it cannot say what went wrong: then there would be two supervisors."""
    program = f"""
import sys, os
sys.stderr = open(os.devnull, 'w')
try:
{textwrap.indent(FORK.format(error="RuntimeError"), "    ")}
finally:
    open('ends', 'a').write('x')
"""
    run(program, cwd=tmp_path)
    assert (tmp_path / "ends").read_text() == "x"


def run(program: str, cwd: Path = ROOT) -> list[str]:
    """What a process of its own prints; a fork that goes wrong must not run the tests again."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines()


def test_a_fork_leads_a_group_takes_no_input_and_acts_on_signals() -> None:
    def main(_pipe: BinaryIO) -> None:
        assert os.getpgid(0) == os.getpid()
        assert os.read(0, 1) == b""
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            assert signal.getsignal(each) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)

    said: list[str] = []
    with installed():
        child = forked(main, said)
        finished(child)
    assert (child.killed_by, said) == (signal.SIGTERM, [])
    child.close()


def test_a_limit_of_file_sizes_is_an_error_in_a_fork_and_not_its_death(tmp_path: Path) -> None:
    """Shells and schedulers set such limits, and the host stage is to say so."""

    def main(pipe: BinaryIO) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            (tmp_path / "file").write_bytes(bytes(2000))
        except OSError as error:
            pipe.write(b"%d\n" % (error.errno or 0))
            pipe.flush()

    child = forked(main, [])
    finished(child)
    assert child.take_events() == [b"%d" % errno.EFBIG]
    child.close()


def test_a_fork_holds_none_of_our_pipes() -> None:
    """Else whoever reads them would wait for its end, too."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # noqa: FBT003

    def main(pipe: BinaryIO) -> None:
        pipe.write(b"%d\n" % (str(writing) in open_ones()))
        pipe.flush()

    child = forked(main, [])
    finished(child)
    assert child.take_events() == [b"0"]
    child.close()
    os.close(reading)
    os.close(writing)


def test_a_crash_of_a_fork_leaves_a_trace() -> None:
    def main(_pipe: BinaryIO) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    child = forked(main, [])
    finished(child)
    assert child.killed_by == signal.SIGSEGV
    assert any("Segmentation fault" in line for line in child.trace())
    assert any("in main" in line for line in child.trace())
    child.close()


def test_no_fork_to_be_had_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError("no process")

    monkeypatch.setattr(os, "fork", no_fork)
    before = open_ones()
    with pytest.raises(BootError, match="no process"):
        forked(print, [])
    assert open_ones() == before
