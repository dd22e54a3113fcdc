"""Facts about standard streams whose other end is slow, stuck or gone."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pty
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from app.streams import PATIENCE_S, put

ROOT = Path(__file__).resolve().parent.parent
LINE = "x" * 99 + "\n"


class Pipe:
    """A pipe with a text stream on its writing end."""

    def __init__(self, room: int = 4096) -> None:
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, room)
        self.stream: TextIO = os.fdopen(writer, "w", encoding="utf-8")

    def drain(self) -> str:
        os.set_blocking(self.reader, False)
        found = b""
        try:
            while data := os.read(self.reader, 65536):
                found += data
        except BlockingIOError:
            pass
        return found.decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reader)
    made.stream.close()


def filled(pipe: Pipe) -> None:
    """Put lines until one is lost: the patience is spent."""
    while put(pipe.stream, LINE):
        pass


def test_a_reader_who_stalls_is_waited_for_once(pipe: Pipe) -> None:
    began = time.monotonic()
    filled(pipe)
    first = time.monotonic() - began
    for _ in range(1000):
        put(pipe.stream, LINE)
    rest = time.monotonic() - began - first
    assert first > PATIENCE_S * 0.9
    assert rest < PATIENCE_S  # a thousand lines, where each would cost a patience


def test_what_was_lost_is_counted_and_told_and_no_line_is_mixed_up(pipe: Pipe) -> None:
    filled(pipe)
    for _ in range(6):
        put(pipe.stream, LINE)
    put(pipe.stream, LINE + LINE)
    first = pipe.drain()
    assert put(pipe.stream, "again\n")
    lines = (first + pipe.drain()).splitlines()
    assert lines[-2:] == ["... 9 lines left out: nobody read them in time", "again"]
    assert set(lines[:-2]) == {LINE.strip()}


def test_nothing_is_told_before_the_text_goes_with_it(pipe: Pipe) -> None:
    """A pipe that is nearly full has room for the notice alone, again and again."""
    filled(pipe)
    filled(pipe)
    assert "left out" not in pipe.drain()


def test_a_line_that_was_cut_is_ended_before_the_next(pipe: Pipe) -> None:
    """A report as one line is longer than any pipe."""
    assert not put(pipe.stream, "y" * 20_000 + "\n", patience_s=0.1)
    cut = pipe.drain()
    assert put(pipe.stream, "next\n")
    assert (cut + pipe.drain()).splitlines() == [
        "y" * len(cut),
        "... 1 lines left out: nobody read them in time",
        "next",
    ]


def test_the_notice_can_be_in_the_form_of_the_log(pipe: Pipe) -> None:
    filled(pipe)
    pipe.drain()
    put(pipe.stream, "{}\n", told=lambda n: f'{{"lost": {n}}}\n')
    assert pipe.drain() == '{"lost": 1}\n{}\n'


def test_a_text_can_have_a_patience_of_its_own(pipe: Pipe) -> None:
    filled(pipe)
    began = time.monotonic()
    assert not put(pipe.stream, LINE, patience_s=0.5)
    assert 0.4 < time.monotonic() - began < 3
    reader = threading.Timer(0.2, pipe.drain)
    reader.start()
    assert put(pipe.stream, LINE, patience_s=20)
    reader.join()


def test_a_reader_who_is_slow_but_steady_loses_nothing(pipe: Pipe) -> None:
    """150 kB through a 4 kB pipe whose reader sleeps before each page."""
    found = bytearray()

    def read() -> None:
        while data := os.read(pipe.reader, 4096):
            found.extend(data)
            time.sleep(0.002)

    thread = threading.Thread(target=read)
    thread.start()
    lines = [f"{number:<98}|\n" for number in range(1500)]
    taken = [put(pipe.stream, line) for line in lines]
    pipe.stream.close()
    thread.join()
    assert all(taken)
    assert found.decode() == "".join(lines)


def test_a_long_text_reaches_a_reader_whole(pipe: Pipe) -> None:
    text = "\u00e4" * 1_000_000 + "\n"
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(pipe.reader, 65536):
            found.append(data)

    thread = threading.Thread(target=read)
    thread.start()
    assert put(pipe.stream, text)
    pipe.stream.close()
    thread.join()
    assert b"".join(found).decode() == text


def test_a_stream_without_a_reader_is_turned_to_nowhere() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    assert not put(pipe.stream, "lost\n")
    assert Path(f"/proc/self/fd/{pipe.stream.fileno()}").readlink() == Path(os.devnull)
    assert put(pipe.stream, "to nowhere\n")
    pipe.stream.close()


def test_a_full_device_is_no_error() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        assert not put(stream, "lost\n")
        assert put(stream, "to nowhere\n")


def test_a_descriptor_that_somebody_closed_is_no_error() -> None:
    stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - closed under its feet
    os.close(stream.fileno())
    put(stream, "lost\n")
    assert put(stream, "to nowhere\n")
    stream.close()


def test_a_file_gets_everything(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        assert put(stream, "a" * 100_000 + "\n")
        assert put(stream, "b\n")
    assert (tmp_path / "log").read_text() == "a" * 100_000 + "\nb\n"


def test_a_stream_without_a_descriptor_is_written_as_it_comes() -> None:
    stream = io.StringIO()
    assert put(stream, "text\n")
    assert stream.getvalue() == "text\n"
    stream.close()
    assert not put(stream, "text\n")


def test_characters_that_a_stream_has_not_are_escaped(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as stream:
        assert put(stream, "na\u00efve \udcff\n")
    assert (tmp_path / "log").read_text() == "na\\xefve \\udcff\n"


def test_a_socket_whose_reader_stalls_costs_a_bounded_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, os.fdopen(os.dup(ours.fileno()), "w", encoding="utf-8") as stream:
        began = time.monotonic()
        assert not put(stream, LINE * 20_000, patience_s=0.3)
        assert time.monotonic() - began < 5


def test_a_terminal_that_is_stopped_costs_a_bounded_time() -> None:
    """As with Ctrl-S; it then polls as writable for less than a line."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        termios.tcflow(slave, termios.TCOOFF)
        began = time.monotonic()
        assert not put(stream, "seen\n", patience_s=0.2)
        termios.tcflow(slave, termios.TCOON)
        assert not put(stream, LINE * 5000, patience_s=0.2)  # nobody reads the other end
        assert time.monotonic() - began < 5
        assert b"1 lines left out" in os.read(master, 200)
    os.close(master)


def test_the_flags_of_the_stream_stay_as_they_were(pipe: Pipe) -> None:
    """It is shared with whoever gave it to us: a shell's next program would meet EAGAIN."""
    before = fcntl.fcntl(pipe.stream.fileno(), fcntl.F_GETFL)
    filled(pipe)
    assert fcntl.fcntl(pipe.stream.fileno(), fcntl.F_GETFL) == before


def test_a_pipe_that_others_fill_meanwhile_does_not_hold_us(pipe: Pipe) -> None:
    """Two writers poll the same free page; the one that comes second would wait in its write."""
    stop = threading.Event()
    other = os.dup(pipe.stream.fileno())

    def fill() -> None:
        while not stop.is_set():
            try:
                os.pwritev(other, [b"z" * 4096], -1, os.RWF_NOWAIT)
            except BlockingIOError:
                os.read(pipe.reader, 4096)

    thread = threading.Thread(target=fill)
    thread.start()
    began = time.monotonic()
    for _ in range(300):
        put(pipe.stream, LINE, patience_s=0.05)
    taken = time.monotonic() - began
    stop.set()
    thread.join()
    os.close(other)
    assert taken < 300 * 0.05 * 5 + 5


def test_a_kernel_without_the_flag_does_not_hold_us_either(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 6.5 knows it for some files only."""

    def refused(*_arguments: object) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "pwritev", refused)
    began = time.monotonic()
    filled(pipe)
    assert not put(pipe.stream, LINE * 1000)
    assert time.monotonic() - began < 5 * PATIENCE_S
    assert set(pipe.drain().splitlines()) == {LINE.strip()}
    assert put(pipe.stream, "again\n")


@pytest.mark.parametrize("target", ["stdout", "stderr"])
def test_a_process_that_nobody_reads_ends_with_its_own_status(target: str) -> None:
    code = (
        "import sys; from app.streams import ensure_open, put; ensure_open()\n"
        f"for _ in range(3000): put(sys.{target}, 'x' * 99 + '\\n')\n"
        f"put(sys.{target}, 'verdict', patience_s=0.2)\n"
        "sys.exit(69)"
    )
    reader, writer = os.pipe()
    out, error = (writer, None) if target == "stdout" else (None, writer)
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=out, stderr=error)
    os.close(writer)
    assert child.wait(timeout=60) == 69
    os.close(reader)


def test_a_process_without_standard_streams_ends_with_its_own_status() -> None:
    code = (
        "import sys; from app.streams import ensure_open, put; ensure_open()\n"
        "put(sys.stderr, 'x\\n'); put(sys.stdout, 'x\\n'); sys.exit(69)"
    )
    script = f"exec {sys.executable} -c '{code}' <&- >&- 2>&-".replace("'x\\n'", '"x\\n"')
    assert subprocess.run(["bash", "-c", script], cwd=ROOT, check=False).returncode == 69
