"""Facts about what a boot's children leave behind. Real processes, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.boots import ROOT, marked, runs, until

BEGIN = """
import os, subprocess, sys, time
from app.lifeline import adopt_orphans
from app.orphans import Orphans
def daemon():
    "A process that has left its parent, its group and its session; its number."
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            time.sleep(300)
        os.write(writing, b'%d' % pid)
        os._exit(0)
    os.wait()
    return int(os.read(reading, 32))
"""


@contextmanager
def program(folder: Path, code: str) -> Iterator[list[str]]:
    """What a process prints that runs this; all that it has started ends with the context."""
    marker = f"TEST_FOLDER={folder}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TEST_FOLDER": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        yield done.stdout.split()
    finally:
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)


def test_a_daemon_that_got_away_is_found_and_reaped(tmp_path: Path) -> None:
    code = "orphans = Orphans(); adopt_orphans(); pid = daemon()\n"
    code += "print(orphans.end(but=[], seconds=1), pid, os.path.exists(f'/proc/{pid}'))"
    with program(tmp_path, code) as (done, pid, there):
        assert (done, there) == ("True", "False")
        assert not runs(int(pid))


def test_a_tree_that_grows_while_it_is_felled_is_ended(tmp_path: Path) -> None:
    code = """
orphans = Orphans(); adopt_orphans()
if os.fork() == 0:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(300)
        time.sleep(0.002)
    time.sleep(300)
time.sleep(0.1)
print(orphans.end(but=[], seconds=1))
"""
    with program(tmp_path, code) as (done,):
        assert done == "True"
        until(lambda: not marked(f"TEST_FOLDER={tmp_path}"), "the end of the tree")


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    """A script may have started it, and then become the boot by `exec`."""
    code = """
def sleep():
    return subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL)
before = sleep(); orphans = Orphans(); adopt_orphans()
own, kept = sleep(), sleep()
print(orphans.end(but=[kept.pid], seconds=1), before.pid, kept.pid, own.pid)
"""
    with program(tmp_path, code) as (done, before, kept, own):
        assert done == "True"
        assert runs(int(before))
        assert runs(int(kept))
        assert not runs(int(own))


def test_what_they_start_meanwhile_is_theirs(tmp_path: Path) -> None:
    """A script's background loop starts a process a second, and none of them is the boot's."""
    code = """
loop = 'sleep 0.3; sleep 300 & echo $! > $TEST_FOLDER/late; wait'
before = subprocess.Popen(['sh', '-c', loop], stdout=subprocess.DEVNULL)
orphans = Orphans(); adopt_orphans()
late = os.environ['TEST_FOLDER'] + '/late'
while not os.path.exists(late) or not open(late).read().strip():
    time.sleep(0.02)
print(orphans.end(but=[], seconds=1), open(late).read())
"""
    with program(tmp_path, code) as (done, late):
        assert done == "True"
        assert runs(int(late))


def test_nothing_to_end_is_soon_done(tmp_path: Path) -> None:
    with program(tmp_path, "print(Orphans().end(but=[], seconds=1))") as (done,):
        assert done == "True"
