"""Facts about the process that writes files, whatever the disk, or somebody, does to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.file_writer import FileWriter
from app.report import REPORT_NAME

ROOT = Path(__file__).resolve().parent.parent
LONG_S = 30.0  # a deadline that no sane disk misses


def a_report(report_id: str = "a" * 32, **fields: object) -> str:
    return json.dumps({"report_id": report_id, **fields}, indent=2)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[FileWriter]:
    made = FileWriter(tmp_path / "reports")
    yield made
    made.close(LONG_S)


def state_of(pid: int) -> str:
    """The kernel's letter; empty once the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def wait_for_state(pid: int, wanted: str) -> None:
    end = time.monotonic() + LONG_S
    while state_of(pid) != wanted:
        assert time.monotonic() < end, f"{state_of(pid)!r} is not {wanted!r}"
        time.sleep(0.01)


def test_a_report_is_written_by_another_process(writer: FileWriter, tmp_path: Path) -> None:
    assert not writer.report(a_report(), "a" * 32, LONG_S)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["report_id"] == "a" * 32
    assert writer.alive
    assert os.getpgid(writer.pid) == writer.pid != os.getpid()


def test_a_huge_report_and_odd_characters_arrive_whole(writer: FileWriter, tmp_path: Path) -> None:
    text = '"\u2028 \U0001f600 \\ \x7f' + "\u00e4" * 2_500_000
    writer.report(a_report(text=text), "a" * 32, LONG_S)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["text"] == text
    writer.report('{\n  "report_id": "x",\n  "text": "\udcff"\n}', "x", LONG_S)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["text"] == "\udcff"


def test_another_boot_in_the_same_folder_is_told_of(writer: FileWriter, tmp_path: Path) -> None:
    assert not writer.report(a_report(), "a" * 32, LONG_S)
    other = FileWriter(tmp_path / "reports")
    assert not other.report(a_report("b" * 32), "b" * 32, LONG_S)
    assert writer.report(a_report(), "a" * 32, LONG_S)
    assert not writer.report(a_report(), "a" * 32, LONG_S)
    assert other.close(LONG_S)


def test_an_error_is_the_one_that_the_disk_gave(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(FileExistsError) as raised:
        writer.report(a_report(), "a" * 32, LONG_S)
    assert raised.value.errno == errno.EEXIST
    assert raised.value.filename == str(tmp_path / "reports")
    (tmp_path / "reports").unlink()
    assert not writer.report(a_report(), "a" * 32, LONG_S)


@pytest.mark.parametrize("replace", [True, False])
def test_a_text_file_is_made_and_written_again(
    writer: FileWriter, tmp_path: Path, replace: bool
) -> None:
    path = tmp_path / "text\udcff"  # a name that is no text
    writer.text(path, "long\n" * 10, deadline_s=LONG_S, replace=replace)
    before = path.stat().st_ino
    writer.text(path, "short\n", deadline_s=LONG_S, replace=replace)
    assert path.read_text() == "short\n"
    assert (path.stat().st_ino == before) is not replace
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("path", ["no/such/folder/x", "x\0y", "."])
def test_a_path_that_cannot_be_written_is_an_error(
    writer: FileWriter, tmp_path: Path, path: str
) -> None:
    with pytest.raises(OSError, match=r"such|null|regular"):
        writer.text(tmp_path / path, "text", deadline_s=LONG_S, replace=True)
    assert writer.alive


def test_what_is_there_is_removed_and_the_rest_is_no_error(
    writer: FileWriter, tmp_path: Path
) -> None:
    file, folder, kept = tmp_path / "file\udcff", tmp_path / "folder", tmp_path / "kept"
    (folder / "below").mkdir(parents=True)
    (folder / "link").symlink_to(kept)
    for each in (file, kept, folder / "below" / "file"):
        each.touch()
    missing = [tmp_path / "missing", tmp_path / "no" / "folder", kept / "below"]
    writer.remove([*missing, folder, file], LONG_S)
    assert list(tmp_path.iterdir()) == [kept]


def test_a_folder_that_hangs_holds_up_no_removal_for_longer_than_asked(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    os.kill(writer.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        writer.remove([tmp_path / "file"], 0.2)
    assert not writer.close(LONG_S)


def test_the_signals_that_end_a_boot_do_not_end_its_writer(
    writer: FileWriter, tmp_path: Path
) -> None:
    for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"):
        os.kill(writer.pid, signal.Signals[f"SIG{name}"])
    writer.report(a_report(), "a" * 32, LONG_S)
    assert not writer.restarted
    assert (tmp_path / "reports" / REPORT_NAME).is_file()


def test_the_writer_holds_nothing_of_ours_open(writer: FileWriter, tmp_path: Path) -> None:
    """A pipe would not end for its reader as long as the writer hangs."""
    writer.report(a_report(), "a" * 32, LONG_S)
    links = {
        int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{writer.pid}/fd").iterdir()
    }
    assert [links.pop(number) for number in range(3)] == [os.devnull] * 3
    assert sorted(link.partition(":")[0] for link in links.values()) == sorted(
        [str(tmp_path / "reports"), "socket"]
    )


def test_a_writer_that_is_killed_is_replaced_once(writer: FileWriter, tmp_path: Path) -> None:
    writer.report(a_report(), "a" * 32, LONG_S)
    first = writer.pid
    os.kill(first, signal.SIGKILL)
    wait_for_state(first, "Z")
    assert not writer.alive
    writer.report(a_report(n=2), "a" * 32, LONG_S)
    assert writer.restarted
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["n"] == 2
    assert state_of(first) == ""  # and reaped
    os.kill(writer.pid, signal.SIGKILL)
    wait_for_state(writer.pid, "Z")
    with pytest.raises(BrokenPipeError):
        writer.report(a_report(n=3), "a" * 32, LONG_S)


def test_the_replacement_knows_the_folder_of_the_first(writer: FileWriter, tmp_path: Path) -> None:
    writer.report(a_report(), "a" * 32, LONG_S)
    (tmp_path / "reports").rename(tmp_path / "away")
    (tmp_path / "reports").mkdir()
    os.kill(writer.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="another one stands there"):
        writer.report(a_report(n=2), "a" * 32, LONG_S)


def test_a_writer_that_somebody_else_has_reaped_is_dead(tmp_path: Path) -> None:
    """The supervisor waits for any child that ends."""
    writer = FileWriter(tmp_path)
    os.kill(writer.pid, signal.SIGKILL)
    os.waitpid(writer.pid, 0)
    assert not writer.alive
    writer.report(a_report(), "a" * 32, LONG_S)
    os.kill(writer.pid, signal.SIGKILL)
    os.waitpid(writer.pid, 0)
    assert writer.close(LONG_S)


def test_a_writer_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    os.kill(writer.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        writer.report(a_report(text="x" * 5_000_000), "a" * 32, 0.2)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        writer.report(a_report(), "a" * 32, LONG_S)
    assert not writer.close(LONG_S)
    assert time.monotonic() - began < 5
    assert state_of(writer.pid) == ""


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_writer_that_answers_late_is_taken_back(
    writer: FileWriter, tmp_path: Path, size: int
) -> None:
    """A network volume may stall for seconds in the middle of a good boot."""
    os.kill(writer.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        writer.report(a_report(n=1, text="x" * size), "a" * 32, 0.1)
    threading.Timer(0.3, os.kill, (writer.pid, signal.SIGCONT)).start()
    with pytest.raises(TimeoutError):
        writer.report(a_report(n=2), "a" * 32, LONG_S)
    writer.report(a_report(n=3), "a" * 32, LONG_S, insist=True)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["n"] == 3
    writer.report(a_report(n=4), "a" * 32, LONG_S)
    assert not writer.restarted


def test_a_writer_is_started_again_after_its_end(writer: FileWriter, tmp_path: Path) -> None:
    """Where the command that was to take over cannot be executed, the report is written again."""
    writer.report(a_report(), "a" * 32, LONG_S)
    assert writer.close(LONG_S)
    (tmp_path / "reports").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        writer.report(a_report(n=2), "a" * 32, LONG_S)
    (tmp_path / "away").rename(tmp_path / "reports")
    writer.report(a_report(n=2), "a" * 32, LONG_S)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["n"] == 2


def test_a_writer_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control group may be out of processes."""

    def no_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", no_fork)
        writer = FileWriter(tmp_path)
        with pytest.raises(BlockingIOError):
            writer.report(a_report(), "a" * 32, LONG_S)
        assert not writer.alive
    writer.report(a_report(), "a" * 32, LONG_S)
    assert writer.close(LONG_S)
    assert writer.close(LONG_S)


def test_a_link_to_a_file_stays_one(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    writer.text(tmp_path / "link", "text", deadline_s=LONG_S, replace=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_writer_ends_when_asked_to(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    writer.report(a_report(), "a" * 32, LONG_S)
    assert writer.close(LONG_S)
    assert state_of(writer.pid) == ""


def test_an_answer_that_comes_after_its_call_was_left_is_not_taken_for_the_next(
    writer: FileWriter, tmp_path: Path
) -> None:
    """A signal handler of the supervisor may raise in the middle of a call."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, leave)
    try:
        os.kill(writer.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            writer.report(a_report(n=1, text="x" * 2_000_000), "a" * 32, LONG_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    os.kill(writer.pid, signal.SIGCONT)
    with pytest.raises(FileNotFoundError):
        writer.text(tmp_path / "no" / "x", "text", deadline_s=LONG_S, replace=True)
    writer.report(a_report(n=2), "a" * 32, LONG_S)
    assert json.loads((tmp_path / "reports" / REPORT_NAME).read_text())["n"] == 2


SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from app.file_writer import FileWriter
writer = FileWriter(Path(sys.argv[1]))
fork = os.fork() if "keep" in sys.argv else -1
if fork == 0:  # holds our end of the socket open
    time.sleep(60)
    os._exit(0)
print(f"{writer.pid} {fork}", flush=True)
if "stop" in sys.argv:
    os.kill(writer.pid, signal.SIGSTOP)
try:
    writer.report('{\\n  "report_id": "x"\\n}', "x", 0.5)
except TimeoutError:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_report_that_was_handed_over_is_written_though_the_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    boot = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, tmp_path, "stop"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    pid = int(boot.stdout.split()[0])
    assert not (tmp_path / REPORT_NAME).exists()
    os.kill(pid, signal.SIGCONT)
    psutil.wait_procs([psutil.Process(pid)] if state_of(pid) else [], timeout=LONG_S)
    assert (tmp_path / REPORT_NAME).is_file()
    assert state_of(pid) in {"", "Z"}


def test_a_writer_ends_with_its_supervisor_though_a_fork_keeps_the_socket(tmp_path: Path) -> None:
    boot = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, tmp_path, "keep"], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert boot.stdout is not None
    with boot.stdout as lines:
        writer, fork = map(int, lines.readline().split())
    boot.wait(timeout=60)
    try:
        end = time.monotonic() + LONG_S
        while state_of(writer) not in {"", "Z"}:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        os.kill(fork, signal.SIGKILL)


def command(*arguments: str | Path) -> bool:
    return subprocess.run(arguments, capture_output=True, check=False).returncode == 0


@pytest.fixture
def freezable(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, whose writers wait in the kernel as those of a dead server do."""
    image, folder = tmp_path / "image", tmp_path / "volume"
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    folder.mkdir()
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "fsfreeze", "mount"))
    made = tools and os.geteuid() == 0 and command("mkfs.ext4", "-q", image)
    if not (made and command("mount", "-o", "loop", image, folder)):
        pytest.skip("only root can mount and freeze a file system of its own")
    yield folder
    command("fsfreeze", "--unfreeze", folder)
    for _ in range(100):
        if command("umount", folder):
            return
        time.sleep(0.1)
    command("umount", "-l", folder)


def test_an_uninterruptible_wait_stops_the_writer_and_not_us(
    freezable: Path, tmp_path: Path
) -> None:
    """KILL does nothing to it. It ends when the disk answers, long after we have gone on."""
    writer = FileWriter(freezable)
    writer.report(a_report(n=1), "a" * 32, LONG_S)
    assert command("fsfreeze", "--freeze", freezable)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="hangs"):
        writer.report(a_report(n=2), "a" * 32, 0.5)
    assert state_of(writer.pid) == "D"
    assert writer.alive
    with pytest.raises(TimeoutError):
        writer.report(a_report(n=3), "a" * 32, LONG_S)
    # What lies elsewhere gets out all the same, and a second volume may hang too.
    with pytest.raises(TimeoutError):
        writer.text(freezable / "metrics", "text", deadline_s=0.5, replace=True)
    writer.text(tmp_path / "message", "text", deadline_s=LONG_S, replace=False)
    assert (tmp_path / "message").read_text() == "text"
    assert not writer.close(LONG_S)
    assert time.monotonic() - began < 10
    assert state_of(writer.pid) == "D"  # killed, and still there
    assert command("fsfreeze", "--unfreeze", freezable)
    assert os.waitpid(writer.pid, 0)[1] == signal.SIGKILL
    beside = writer._beside
    assert beside is not None
    assert os.waitpid(beside.pid, 0)[1] == signal.SIGKILL
    assert json.loads((freezable / REPORT_NAME).read_text())["n"] == 1
