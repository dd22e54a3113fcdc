"""Facts about the command that a boot becomes: real processes, read from /proc by the command."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from app.config import ModelRequest
from app.handover import environment, exec_failure
from app.outcome import Fault
from app.plan import Plan, Resolved
from app.profiles import CPU, H100, V100, Profile
from app.report import Identity, Report, Verdict
from app.settings_names import HANDED_OVER, unknown_names

ROOT = Path(__file__).resolve().parent.parent
# What the command is: it says what it finds of itself.
LOOK = textwrap.dedent("""
    import json, os
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    held = [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}")]
    print(json.dumps({"pid": os.getpid(), "held": held, "env": dict(os.environ)}))
""")
# Python itself ignores PIPE and XFSZ; a program without handlers tells what came over exec.
MASKS = ("cat", "/proc/self/status")


def become(
    code: str, *command: str, given: tuple[int, ...] = (), **variables: str
) -> subprocess.Popen[bytes]:
    """A process that prepares itself by `code` and hands over."""
    program = f"import os, signal, sys\n{textwrap.dedent(code)}\n"
    if "hand_over(" not in code:
        program += "from app.handover import hand_over\nhand_over(sys.argv[1:], os.environ)\n"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONUNBUFFERED", None)  # or nothing shows who flushes the buffers
    return subprocess.Popen(
        [sys.executable, "-c", program, *command],
        env=environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=given,
    )


def told(process: subprocess.Popen[bytes]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    return out.decode()


def masks_of(text: str) -> dict[str, int]:
    """Without glibc's own signals, 32 and 33: what posix_spawn starts (make does) ignores them."""
    lines = dict(line.split(":", 1) for line in text.splitlines())
    own = bit(32) | bit(33)
    return {name: int(lines[name], 16) & ~own for name in ("SigIgn", "SigBlk", "SigCgt")}


def bit(number: int) -> int:
    return 1 << (number - 1)


# All that a boot may have done to its signals.
CHANGED = """
    for each in (1, 2, 3, 10, 12, 15, 24):
        signal.signal(each, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1, 40))
"""


def test_the_command_gets_default_dispositions_and_an_empty_mask() -> None:
    found = masks_of(told(become(CHANGED, *MASKS)))
    assert found["SigIgn"] == found["SigBlk"] == found["SigCgt"] == 0


def test_what_the_caller_had_ignored_stays_ignored() -> None:
    """As under nohup, although the boot has put a handler of its own there meanwhile."""
    code = """
        from app.handover import hand_over
        from app.signals import ignored_signals
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        before = ignored_signals()
        signal.signal(signal.SIGHUP, lambda *_: None)
        hand_over(sys.argv[1:], os.environ, ignored=before)
    """
    assert masks_of(told(become(code, *MASKS)))["SigIgn"] == bit(signal.SIGHUP)


def test_pid_and_environment_are_the_boots() -> None:
    process = become("", sys.executable, "-c", LOOK, OF_THE_CALLER="kept")
    found = json.loads(told(process))
    assert found["pid"] == process.pid
    assert found["env"]["OF_THE_CALLER"] == "kept"


def test_no_descriptor_leaks_but_what_the_caller_gave() -> None:
    given, other = os.pipe()
    code = """
        import select, socket, tempfile, subprocess
        held = [os.pipe(), open("/dev/null"), socket.socketpair(), select.epoll(),
                os.memfd_create("trace"), tempfile.TemporaryFile(), os.dup(1), os.pidfd_open(1)]
        child = subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.wait()
    """
    found = json.loads(told(become(code, sys.executable, "-c", LOOK, given=(given,))))
    os.close(given)
    os.close(other)
    assert found["held"] == [0, 1, 2, given]


def test_its_output_is_raw_and_comes_after_what_the_boot_has_buffered() -> None:
    process = become("print('verdict')", "printf", r"\377\n")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"verdict\n\xff\n"), err.decode()


def test_its_status_is_the_processs() -> None:
    process = become("", "sh", "-c", "exit 93")
    process.communicate(timeout=60)
    assert process.returncode == 93


def test_orphans_of_the_command_go_to_init_again() -> None:
    """A subreaper's attribute lives through exec, and the command would have to reap them."""
    code = """
        import ctypes
        ctypes.CDLL(None).prctl(36, 1)
    """
    look = (
        "import ctypes; value = ctypes.c_int(9); "
        "ctypes.CDLL(None).prctl(37, ctypes.byref(value)); print(value.value)"
    )
    assert told(become(code, sys.executable, "-c", look)).strip() == "0"


def test_the_command_is_found_on_the_path_that_it_gets(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.write_text("#!/bin/sh\necho trained\n")
    program.chmod(0o755)
    code = f"""
        from app.handover import hand_over
        hand_over(sys.argv[1:], {{"PATH": {str(tmp_path)!r}}})
    """
    assert told(become(code, "train")).strip() == "trained"


def scripts(folder: Path) -> dict[str, list[str]]:
    """Commands that cannot be run, each with the number that the kernel gives."""
    for name, text, mode in (
        ("no-first-line", "echo x\n", 0o755),
        ("lost-interpreter", "#!/does/not/exist\n", 0o755),
        ("not-executable", "#!/bin/sh\n", 0o644),
        ("fine", "#!/bin/sh\n", 0o755),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    return {
        "ENOEXEC": [str(folder / "no-first-line")],
        "ENOENT": [str(folder / "lost-interpreter")],
        "EACCES": [str(folder / "not-executable")],
        "E2BIG": [str(folder / "fine"), "x" * (1 << 18)],
        "ENOTDIR": [str(folder / "fine" / "below")],
    }


FAILING = """
    import ctypes, json
    from app.handover import hand_over
    libc = ctypes.CDLL(None)
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("TERM"))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    libc.prctl(36, 1)
    command = json.load(open(sys.argv[1]))
    try:
        hand_over(command, os.environ)
    except OSError as error:
        code = error.errno
    os.kill(os.getpid(), signal.SIGTERM)
    reaper = ctypes.c_int()
    libc.prctl(37, ctypes.byref(reaper))
    pipe = signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    print(json.dumps([code, seen, blocked, reaper.value, pipe]))
"""


@pytest.mark.parametrize("name", ["ENOEXEC", "ENOENT", "EACCES", "E2BIG", "ENOTDIR"])
def test_a_command_that_cannot_be_run_leaves_the_boot_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / "command").write_text(json.dumps(scripts(tmp_path)[name]))
    found = json.loads(told(become(FAILING, str(tmp_path / "command"))))
    assert found == [getattr(errno, name), ["TERM"], [signal.SIGUSR1], 1, True]


def test_a_signal_before_the_last_look_is_not_lost() -> None:
    """Noted by the boot's handler before, an end of the process after: never swallowed."""
    code = """
        from app.handover import hand_over
        def last_look():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            raise SystemExit(143)
        signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            hand_over(sys.argv[1:], os.environ, last_look=last_look)
        finally:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    """
    process = become(code, "true")
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("ENOEXEC", Fault.USAGE, "first line that names its interpreter"),
        ("ENOENT", Fault.USAGE, "mend the first line of"),
        ("EACCES", Fault.USAGE, "make it executable"),
        ("E2BIG", Fault.USAGE, "fewer or shorter arguments"),
        ("ENOTDIR", Fault.USAGE, "a program of this machine"),
    ],
)
def test_why_it_cannot_be_run_is_told_with_the_way_out(
    tmp_path: Path, name: str, fault: Fault, words: str
) -> None:
    number = getattr(errno, name)
    found = exec_failure(scripts(tmp_path)[name], OSError(number, "as the kernel says"), {})
    assert (found.fault, name in found.actual) == (fault, True)
    assert words in found.next_step


def test_a_machine_short_of_memory_is_no_fault_of_the_command() -> None:
    found = exec_failure(["/bin/sh"], OSError(errno.ENOMEM, ""), {})
    assert found.fault is Fault.TEMPORARY


def report(**fields: Any) -> Report:
    who = Identity(bootguard="0", hostname="h", pid=1, uid=0, python="3", platform="linux")
    return Report(report_id="r", started="now", identity=who, **fields)


def plan(profile: Profile, folder: Path) -> Plan:
    resolved = Resolved("the/model", None, folder, "a test's")
    return Plan(profile, ModelRequest(), Path("reports"), resolved=resolved)


@pytest.mark.parametrize(
    ("profile", "dtype"), [(V100, "float16"), (H100, "bfloat16"), (CPU, "float32")]
)
def test_the_command_is_told_what_the_boot_has_found(
    tmp_path: Path, profile: Profile, dtype: str
) -> None:
    found = environment(
        {"HOME": "/home/you", "BOOT_VERDICT": "old"},
        report(verdict=Verdict.WARN),
        Path("reports/boot-report.json"),
        plan(profile, tmp_path),
    )
    assert found == {
        "HOME": "/home/you",
        "BOOT_REPORT_PATH": str(Path.cwd() / "reports" / "boot-report.json"),
        "BOOT_VERDICT": "warn",
        "BOOT_COMPUTE_DTYPE": dtype,
        "BOOT_MODEL_PATH": str(tmp_path),
    }


def test_a_command_that_is_a_boot_takes_these_variables_for_no_misspelling(tmp_path: Path) -> None:
    found = environment({}, report(verdict=Verdict.PASS), Path("r.json"), plan(CPU, tmp_path))
    assert set(found) == set(HANDED_OVER)
    assert unknown_names(found, ()) == []
