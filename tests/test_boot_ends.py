"""Facts about how whole boots end: deadlines, deaths, signals, jobs, lost volumes.

Whole processes with a worker that needs no torch (`tests.played`): each takes a second or two. What
needs the real stack is in test_boot.py, and what strikes at every stage is in tests/chaos.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boots import HANG, Boot, command_of, ended, state, until

ROOT = Path(__file__).resolve().parent.parent

SPIN = "while True: pass"
# In C with the interpreter's lock held: no Python runs, and TERM's default still ends it.
WEDGE = (
    "import ctypes\n"
    "mutex = ctypes.create_string_buffer(64)\n"
    "libc = ctypes.PyDLL(None)\n"
    "libc.pthread_mutex_lock(mutex); libc.pthread_mutex_lock(mutex)"
)
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
GENEROUS_S = 20.0


def crash(boot: Boot) -> dict[str, Any]:
    return dict(boot.report["crash"])


def the_worker(boot: Boot) -> int:
    return next(pid for pid in boot.left() if "app.worker" in command_of(pid))


def the_writer(boot: Boot) -> int:
    """The first child: a fork, so it has the boot's own command line."""
    return min(pid for pid in boot.left() if "app.boot" in command_of(pid))


def the_preflight(boot: Boot) -> int:
    (found,) = (
        pid for pid in boot.left() if "app.boot" in command_of(pid) and pid != the_writer(boot)
    )
    return found


def has(stage: str) -> str:
    """What the log says when a stage has begun."""
    return f"{stage:<10} started"


def test_the_played_boot_is_a_boot(tmp_path: Path) -> None:
    with Boot(tmp_path) as boot:
        ended(boot, 0)
        assert set(boot.statuses.values()) == {"pass", "skip"}
        assert boot.report["verdict"] == "pass"


# Deadlines.


@pytest.mark.parametrize(
    ("stage", "code", "where"),
    [
        ("host", HANG, "host"),
        ("checkpoint", DEAF + WEDGE, "checkpoint"),
        ("import", DEAF + HANG, "stack"),
        ("load", SPIN, "load"),
        ("numerics", DEAF + WEDGE, "numerics"),
    ],
)
def test_a_stage_that_hangs_is_ended_and_told_where(
    tmp_path: Path, stage: str, code: str, where: str
) -> None:
    limit = f"BOOT_{where.upper()}_TIMEOUT_S"
    with Boot(tmp_path, {limit: "1"}, stage=stage, code=code) as boot:
        ended(boot, 75)
        assert boot.statuses[where] == "error"
        found = crash(boot)
        assert (found["kind"], found["where"]) == ("deadline", where)
        assert any("<string>" in line for line in found["traceback"]), found
        assert found["kernel"]
        reason = boot.report["exit"]["reason"]
        assert f"{where} took longer than {limit}=1 s" in reason
        if stage not in ("import", "host"):  # which begin with honest work
            assert ("busy" if code is SPIN else "stuck") in reason
        (activity,) = (s["activity"] for s in boot.report["stages"] if s["name"] == where)
        assert activity["rss_bytes"] > 0


def test_the_drivers_stage_that_hangs_condemns_the_node(tmp_path: Path) -> None:
    with Boot(tmp_path, {"BOOT_GPU_TIMEOUT_S": "1"}, stage="gpu", code=WEDGE) as boot:
        ended(boot, 69)
        assert crash(boot)["where"] == "gpu"


def test_the_guard_as_a_whole_has_a_deadline(tmp_path: Path) -> None:
    with Boot(tmp_path, {"BOOT_TOTAL_TIMEOUT_S": "3"}, stage="load", code=HANG) as boot:
        ended(boot, 75)
        assert "BOOT_TOTAL_TIMEOUT_S=3" in boot.report["exit"]["reason"]


def test_no_deadline_ends_what_is_only_slow(tmp_path: Path) -> None:
    settings = {"BOOT_LOAD_TIMEOUT_S": "0", "BOOT_TOTAL_TIMEOUT_S": "0"}
    with Boot(tmp_path, settings, stage="load", code="import time; time.sleep(2)") as boot:
        ended(boot, 0)
        (activity,) = (s["activity"] for s in boot.report["stages"] if s["name"] == "load")
        assert activity["samples"] >= 1


def test_a_stage_that_is_stopped_is_ended_too(tmp_path: Path) -> None:
    code = "os.kill(os.getpid(), 19)"
    with Boot(tmp_path, {"BOOT_ADAPTER_TIMEOUT_S": "1"}, stage="adapter", code=code) as boot:
        ended(boot, 75)
        assert any(" T: " in line for line in crash(boot)["kernel"])


def test_stacks_are_whole_although_the_process_floods_its_output(tmp_path: Path) -> None:
    code = (
        "import threading, time\n"
        "def flood():\n    while True: os.write(1, b'flood' * 999)\n"
        "def deep(n):\n    deep(n - 1) if n else time.sleep(3600)\n"
        "for _ in range(40): threading.Thread(target=deep, args=(40,), daemon=True).start()\n"
        "threading.Thread(target=flood, daemon=True).start()\n"
        "def the_main_thread(): time.sleep(3600)\n"
        "the_main_thread()"
    )
    with Boot(tmp_path, {"BOOT_LOAD_TIMEOUT_S": "1"}, stage="load", code=code) as boot:
        ended(boot, 75)
        assert "the_main_thread" in "".join(crash(boot)["traceback"])


# An uninterruptible wait.


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system whose writers wait in the kernel until it is thawed."""
    image, folder = tmp_path / "image", tmp_path / "volume"
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    folder.mkdir()

    def ran(*command: str | Path) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    tools = all(shutil.which(name) for name in ("mkfs.ext4", "fsfreeze", "mount"))
    if not (tools and os.geteuid() == 0 and ran("mkfs.ext4", "-q", image)) or not ran(
        "mount", "-o", "loop", image, folder
    ):
        pytest.skip("only root can mount and freeze a file system of its own")
    assert ran("fsfreeze", "--freeze", folder)
    yield folder
    ran("fsfreeze", "--unfreeze", folder)
    until(lambda: ran("umount", folder), "the volume's end")


def test_what_not_even_kill_ends_is_left_behind_and_told(tmp_path: Path, frozen: Path) -> None:
    code = f"open({str(frozen / 'file')!r}, 'w').write('x')"
    settings = {"BOOT_LOAD_TIMEOUT_S": "1"}
    with Boot(tmp_path, settings, stage="load", code=code) as boot:
        try:
            # Not for the end of its output: what hangs holds the job's standard output open.
            assert boot.process.wait(60) == 69, boot.err
            assert [state(pid) for pid in boot.left()] == ["D"]
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(frozen)], check=True)
        assert "not even KILL ends it" in boot.report["exit"]["reason"]
        assert any(" D: " in line for line in crash(boot)["kernel"])
        until(lambda: not boot.left(), "the end of what hung")


def test_where_a_preflight_hangs_in_a_folder_no_second_process_is_sent(
    tmp_path: Path, frozen: Path
) -> None:
    """To remove what it was trying would hang as it does."""
    settings = {"BOOT_HOST_TIMEOUT_S": "1", "HF_HUB_CACHE": str(frozen)}
    with Boot(tmp_path, settings) as boot:
        try:
            assert boot.process.wait(60) == 69, boot.err
            assert [state(pid) for pid in boot.left()] == ["D"]
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(frozen)], check=True)
        assert crash(boot)["where"] == "host"
        until(lambda: not boot.left(), "the end of what hung")


# Deaths.


@pytest.mark.parametrize(
    ("stage", "code", "where", "exit_code", "name"),
    [
        ("host", "os.kill(os.getpid(), 11)", "host", 70, "SIGSEGV"),
        ("import", "os.abort()", "stack", 70, "SIGABRT"),
        ("load", "os.kill(os.getpid(), 7)", "load", 74, "SIGBUS"),
        ("numerics", "os.kill(os.getpid(), 9)", "numerics", 70, "SIGKILL"),
    ],
)
def test_a_death_names_its_stage_and_its_signal(
    tmp_path: Path, stage: str, code: str, where: str, exit_code: int, name: str
) -> None:
    with Boot(tmp_path, stage=stage, code=code) as boot:
        ended(boot, exit_code)
        found = crash(boot)
        assert (found["kind"], found["where"], found["signal"]) == ("signal", where, name)
        assert boot.statuses[where] == "error"


def test_a_kill_from_outside_is_told_as_one(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="load", code=HANG) as boot:
        boot.wait_for(has("load"))
        os.kill(the_worker(boot), signal.SIGKILL)
        ended(boot, 70)
        assert "killed from outside" in boot.report["exit"]["reason"]


def test_a_killed_preflight_is_a_death_too(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="cache", code=HANG) as boot:
        boot.wait_for(has("cache"))
        os.kill(the_preflight(boot), signal.SIGKILL)
        ended(boot, 70)
        assert crash(boot)["where"] == "cache"


# In the preflight: at a call of the probe of a folder, note what files there are of it, then act.
WITHIN_A_PROBE = """
import pathlib, time
call, calls = os.{call}, []
def struck(*given):
    calls.append(given)
    if len(calls) == {nth}:
        there = pathlib.Path().rglob(".bootguard-probe-*")
        pathlib.Path("there").write_text(" ".join(map(str, there)))
        {act}
    return call(*given)
os.{call} = struck
"""


def probed(folder: Path) -> tuple[dict[str, str], Path]:
    """Settings with every folder of the boot's below this one, where another boot's probe lies."""
    (folder / "tmp").mkdir()
    (folder / "reports").mkdir()
    others = folder / "reports" / ".bootguard-probe-of-another-boot"
    others.touch()
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HOME": str(folder / "hf")}
    return {**caches, "TMPDIR": str(folder / "tmp")}, others


@pytest.mark.parametrize(
    ("call", "nth", "where"),
    [
        ("fsync", 1, "reports/"),
        ("unlink", 1, ".renamed"),
        ("fsync", 2, "hf/hub/"),
        ("fsync", 7, "tmp/"),
    ],
)
def test_what_a_preflight_was_killed_over_is_removed(
    tmp_path: Path, call: str, nth: int, where: str
) -> None:
    code = WITHIN_A_PROBE.format(call=call, nth=nth, act="os.kill(os.getpid(), 9)")
    settings, others = probed(tmp_path)
    with Boot(tmp_path, settings, stage="host", code=code) as boot:
        ended(boot, 70)
    there = (tmp_path / "there").read_text().split()
    assert len([each for each in there if where in each and others.name not in each]) == 1
    assert list(tmp_path.rglob(".bootguard-probe-*")) == [others]


@pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the host stage tries the compiler it finds"
)
def test_what_a_compiler_was_killed_over_is_removed_after_a_request_too(tmp_path: Path) -> None:
    code = WITHIN_A_PROBE.format(call="fsync", nth=1, act="time.sleep(3600)")
    settings, others = probed(tmp_path)
    with Boot(tmp_path, settings | {"BOOT_HARDWARE": "h100"}, stage="host", code=code) as boot:
        until((tmp_path / "there").exists, "the probe")
        boot.send(signal.SIGTERM)
        ended(boot, 143, "interrupted")
    assert ".compiled" in (tmp_path / "there").read_text()
    assert list(tmp_path.rglob(".bootguard-probe-*")) == [others]


def test_a_worker_that_dies_early_is_judged_when_preflight_has_passed(tmp_path: Path) -> None:
    """Importing Unsloth on a node without a GPU dies by design: what preflight says counts."""
    settings = {"BOOT_BASE_MODEL_ID": str(tmp_path / "no such model")}
    with Boot(tmp_path, settings, stage="import", code="os._exit(9)") as boot:
        ended(boot, 66)
        assert boot.report["crash"] is None


@pytest.mark.parametrize("stage", ["cache", "import"])
def test_a_killed_supervisor_takes_everything_with_it_and_leaves_its_stage(
    tmp_path: Path, stage: str
) -> None:
    with Boot(tmp_path, stage=stage, code=HANG) as boot:
        where = "stack" if stage == "import" else stage
        boot.wait_for(has(where))
        until(lambda: boot.report["stages"] and last_started(boot) == where, "the report")
        boot.send(signal.SIGKILL)
        assert boot.end() == -signal.SIGKILL
        until(lambda: not boot.left(), "the end of all children")
        assert boot.report["state"] == "in_progress"
        assert last_started(boot) == where


def last_started(boot: Boot) -> str:
    return str([s["name"] for s in boot.report["stages"] if s["started"]][-1])


def test_a_daemon_that_a_library_has_left_is_ended(tmp_path: Path) -> None:
    code = "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n" + 8 * " "
    code += "import time; time.sleep(3600)\n    os._exit(0)"
    with Boot(tmp_path, stage="load", code=code) as boot:
        ended(boot, 0)


# Signals.


@pytest.mark.parametrize(
    ("stage", "number", "code"),
    [
        ("settings", signal.SIGTERM, 143),
        ("cache", signal.SIGTERM, 143),
        ("import", signal.SIGINT, 130),
        ("numerics", signal.SIGTERM, 143),
        ("numerics", signal.SIGHUP, 143),
    ],
)
def test_a_request_to_end_closes_the_report_at_any_moment(
    tmp_path: Path, stage: str, number: signal.Signals, code: int
) -> None:
    hang = HANG if stage == "settings" else DEAF + HANG
    with Boot(tmp_path, {"BOOT_GRACE_S": "5"}, stage=stage, code=hang) as boot:
        where = "stack" if stage == "import" else stage
        boot.wait_for(has(where))
        time.sleep(0.2)
        began = time.monotonic()
        boot.send(number)
        ended(boot, code, "interrupted")
        assert time.monotonic() - began < GENEROUS_S
        assert boot.report["exit"]["reason"] == f"{number.name} received in stage {where}"
        assert "Traceback" not in boot.err


def test_the_whole_group_may_be_signalled(tmp_path: Path) -> None:
    """As by Slurm, to every process of a step: a child's death by it is not another story."""
    with Boot(tmp_path, stage="load", code=HANG) as boot:
        boot.wait_for(has("load"))
        for pid in [*boot.left(), boot.process.pid]:
            os.kill(pid, signal.SIGTERM)
        ended(boot, 143, "interrupted")


def test_a_second_request_does_not_wait(tmp_path: Path) -> None:
    """With a volume that hangs, so that the first one takes its time."""
    with Boot(tmp_path, {"BOOT_GRACE_S": "60"}, stage="load", code=HANG) as boot:
        boot.wait_for(has("load"))
        writer = the_writer(boot)
        os.kill(writer, signal.SIGSTOP)
        boot.send(signal.SIGTERM)
        boot.wait_for("SIGTERM received")
        time.sleep(0.7)
        assert boot.process.poll() is None
        boot.send(signal.SIGTERM)
        began = time.monotonic()
        assert boot.end() == 143
        assert time.monotonic() - began < GENEROUS_S
        os.kill(writer, signal.SIGCONT)
        until(lambda: not boot.left(), "the end of all children")


def test_a_request_is_obeyed_in_its_time_though_the_volume_hangs(tmp_path: Path) -> None:
    with Boot(tmp_path, {"BOOT_GRACE_S": "1"}, stage="load", code=HANG) as boot:
        boot.wait_for(has("load"))
        os.kill(the_writer(boot), signal.SIGSTOP)
        began = time.monotonic()
        boot.send(signal.SIGTERM)
        assert boot.end() == 73, boot.err
        assert time.monotonic() - began < 5
        lost = next(line for line in boot.err.splitlines() if line.startswith("{"))
        assert json.loads(lost)["state"] == "interrupted"


def test_a_request_while_the_boot_closes_is_obeyed_too(tmp_path: Path) -> None:
    """The verdict is settled by then, and its last write waits for a volume that hangs."""
    code = "import time; time.sleep(1)"
    with Boot(tmp_path, {"BOOT_GRACE_S": "1"}, stage="numerics", code=code) as boot:
        boot.wait_for(has("numerics"))
        os.kill(the_writer(boot), signal.SIGSTOP)
        boot.wait_for(f"{'job':<10} skip")
        time.sleep(0.5)
        began = time.monotonic()
        boot.send(signal.SIGTERM)
        boot.end()
        assert time.monotonic() - began < 5


def test_what_is_for_a_job_does_not_end_a_guard(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="load", code="import time; time.sleep(2)") as boot:
        boot.wait_for(has("load"))
        boot.send(signal.SIGUSR1)
        boot.send(signal.SIGUSR2)
        ended(boot, 0)
        assert "SIGUSR1 received" in boot.err


def test_a_stray_alarm_is_not_told_as_settings_that_hang(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="load", code="import time; time.sleep(2)") as boot:
        boot.wait_for(has("load"))
        boot.send(signal.SIGALRM)
        boot.end()
        assert "settings could not be read" not in boot.err


NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_INIT = pytest.mark.skipif(
    not shutil.which("unshare") or os.geteuid() != 0, reason="PID namespaces are root's"
)


def inner(boot: Boot) -> int:
    """The boot itself, which is process 1 of its namespace."""
    parent = boot.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children")
    until(lambda: children.read_text().split(), "the boot in its namespace")
    return int(children.read_text().split()[0])


@AS_INIT
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_process_1_obeys_although_the_kernel_gives_it_no_defaults(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with Boot(tmp_path, before=NAMESPACE, stage="load", code=HANG) as boot:
        boot.wait_for(has("load"))
        os.kill(inner(boot), number)
        ended(boot, code, "interrupted")


@AS_INIT
def test_process_1_takes_in_what_its_children_leave(tmp_path: Path) -> None:
    code = (
        "if os.fork() == 0:\n    import time; time.sleep(0.2); os._exit(0)\nos.kill(os.getpid(), 9)"
    )
    with Boot(tmp_path, before=NAMESPACE, stage="load", code=code) as boot:
        ended(boot, 70)
        assert crash(boot)["signal"] == "SIGKILL"


def test_signals_are_taken_before_the_slow_imports() -> None:
    """A pod may be deleted while it starts; a signal without a handler is lost to process 1."""
    program = (
        "import signal, sys\n"
        "class Looks:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'pydantic':\n"
        "            print(callable(signal.getsignal(signal.SIGTERM)), flush=True)\n"
        "sys.meta_path.insert(0, Looks())\n"
        "sys.argv = ['boot', 'wrong']\n"
        "from app.boot import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "BOOT_REPORT_DIR": "/proc/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[0] == "True"


# The job.


def job(folder: Path, body: str) -> dict[str, str]:
    """Settings for a job whose function has this body."""
    folder.mkdir(exist_ok=True)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = "import os, signal, sys, time\nREADY = lambda: print('ready', file=sys.stderr)\n"
    (folder / "mine.py").write_text(f"{head}def main(model, tokenizer, report):\n{lines}\n")
    return {"BOOT_JOB": "mine:main"}


def closed(boot: Boot, code: int, state: str = "complete") -> dict[str, Any]:
    """As `ended`, for a boot whose job prints on standard output too; the job's record."""
    assert boot.end() == code, boot.err
    report = boot.report
    assert (report["exit"]["process_code"], report["state"]) == (code, state), report["exit"]
    assert json.loads(boot.out.splitlines()[-1])["exit"] == code
    assert not boot.left()
    return dict(report["job"])


def test_a_job_that_passes_is_the_boots_success(tmp_path: Path) -> None:
    body = "print(model, report.verdict.value, report.state.value)"
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        record = closed(boot, 0)
        assert boot.out.splitlines()[0] == "a model pass in_progress"
        assert (record["code"], record["raised"], record["target"]) == (0, None, "mine:main")
        assert boot.statuses["job"] == "pass"
        assert record["duration_s"] >= 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 3", 3),
        ("sys.exit(79)", 79),
        ("raise ValueError('wrong')", 1),
        ("os._exit(5)", 5),
    ],
)
def test_a_jobs_status_is_the_boots(tmp_path: Path, body: str, code: int) -> None:
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        record = closed(boot, code)
        assert record["code"] == code
        assert boot.report["exit"]["code"] == 0  # the guard's
        assert boot.report["verdict"] == "pass"
        assert boot.statuses["job"] == "fail"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("signal.alarm(1); time.sleep(30)", 128 + signal.SIGALRM),
        ("os.execvp('sh', ['sh', '-c', 'sleep 3; exit 11'])", 11),
        ("os.closerange(3, 256); time.sleep(3); os._exit(12)", 12),
    ],
)
def test_a_job_that_goes_its_own_way_has_its_own_status(
    tmp_path: Path, body: str, code: int
) -> None:
    """A signal of its own making, another program in its place, the event pipe closed."""
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        assert closed(boot, code)["code"] == code
        assert boot.report["exit"]["code"] == 0


def test_a_job_that_a_term_ends_is_closed(tmp_path: Path) -> None:
    with Boot(tmp_path, job(tmp_path, "READY(); time.sleep(60)")) as boot:
        boot.wait_for("ready")
        boot.process.send_signal(signal.SIGTERM)
        record = closed(boot, 143, "interrupted")
        assert (record["code"], record["signals"]) == (143, ["SIGTERM"])
        assert record["duration_s"] > 0
        assert (boot.report["verdict"], boot.report["exit"]["code"]) == ("pass", 0)
        assert boot.statuses["job"] == "fail"


def test_what_is_forwarded_to_a_job_is_on_disk_at_once(tmp_path: Path) -> None:
    """Whoever sends a TERM may send a KILL next."""
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); READY(); time.sleep(60)"
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        boot.wait_for("ready")
        boot.process.send_signal(signal.SIGTERM)
        until(lambda: (boot.report["job"] or {}).get("signals") == ["SIGTERM"], "the report")
        boot.process.kill()
        assert boot.end() == -signal.SIGKILL
        assert boot.report["state"] == "in_progress"
        assert "forwarded" in boot.err


def test_a_side_file_never_takes_the_reports_place(tmp_path: Path) -> None:
    where = str(tmp_path / "reports" / "boot-report.json")
    with Boot(tmp_path, {"BOOT_METRICS_FILE": where, "BOOT_TERMINATION_LOG": where}) as boot:
        ended(boot, 0)
        assert boot.err.count("is the report itself") == 2


@pytest.mark.parametrize("n_dots", [20, 21, 22])
def test_nothing_that_a_job_has_printed_is_lost(tmp_path: Path, n_dots: int) -> None:
    """Also what it prints last: the worker is gone when its last event is read."""
    body = f"for n in range(1500): print('word', n, '.' * {n_dots}, file=sys.stderr)"
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        closed(boot, 0)
        assert f"word 1499 {'.' * n_dots}" in boot.err


def test_the_traceback_of_a_job_is_in_the_log(tmp_path: Path) -> None:
    with Boot(tmp_path, job(tmp_path, "raise ValueError('wrong')")) as boot:
        closed(boot, 1)
        assert "Traceback (most recent call last)" in boot.err
        assert "mine.py" in boot.err


def test_a_job_that_crashes_is_a_crash(tmp_path: Path) -> None:
    with Boot(tmp_path, job(tmp_path, "os.kill(os.getpid(), 11)")) as boot:
        closed(boot, 70)
        assert crash(boot)["where"] == "job"
        assert "mine.py" in boot.report["exit"]["reason"]


HANDLED = (
    "got = []\nsignal.signal({0}, lambda *_: got.append(1))\nREADY()\n"
    "while not got: time.sleep(0.05)\n"
)


@pytest.mark.parametrize(
    ("body", "number", "code"),
    [
        (HANDLED.format(15) + "return 0", signal.SIGTERM, 143),
        (HANDLED.format(15) + "return 7", signal.SIGTERM, 7),
        ("READY(); time.sleep(60)", signal.SIGTERM, 143),
        ("READY(); time.sleep(60)", signal.SIGINT, 130),
    ],
)
def test_a_job_is_given_the_request_and_never_makes_a_success_of_it(
    tmp_path: Path, body: str, number: signal.Signals, code: int
) -> None:
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        boot.wait_for("ready")
        boot.send(number)
        record = closed(boot, code, "interrupted")
        assert record["signals"] == [number.name]


def test_a_job_has_all_the_time_it_needs_to_save(tmp_path: Path) -> None:
    """The orchestrator's own KILL bounds it, not the grace of the guard."""
    body = HANDLED.format(15) + "time.sleep(2.5)\nopen('saved', 'w').close()\nreturn 0"
    with Boot(tmp_path, {**job(tmp_path, body), "BOOT_GRACE_S": "1"}) as boot:
        boot.wait_for("ready")
        boot.send(signal.SIGTERM)
        time.sleep(0.7)
        boot.send(signal.SIGTERM)  # no second one either
        closed(boot, 143, "interrupted")
        assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_job_is_told_what_is_for_it(tmp_path: Path, number: signal.Signals) -> None:
    with Boot(tmp_path, job(tmp_path, HANDLED.format(int(number)) + "return 0")) as boot:
        boot.wait_for("ready")
        boot.send(number)
        assert closed(boot, 0)["signals"] == [number.name]


def test_a_job_has_its_own_deadline(tmp_path: Path) -> None:
    settings = {"BOOT_JOB_TIMEOUT_S": "1", "BOOT_GRACE_S": "1"}
    with Boot(tmp_path, {**job(tmp_path, "time.sleep(60)"), **settings}) as boot:
        closed(boot, 75)
        assert (crash(boot)["kind"], crash(boot)["where"]) == ("deadline", "job")


def test_deadlines_of_the_guard_do_not_end_a_job(tmp_path: Path) -> None:
    settings = {"BOOT_TOTAL_TIMEOUT_S": "3", "BOOT_NUMERICS_TIMEOUT_S": "1"}
    with Boot(tmp_path, {**job(tmp_path, "time.sleep(4)"), **settings}) as boot:
        closed(boot, 0)


def test_a_jobs_daemons_leave_no_zombies_while_it_runs(tmp_path: Path) -> None:
    """They come to the supervisor; a job of a week may leave thousands, and pids have a limit."""
    body = (
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os.fork(); os._exit(0)\n"
        "    os.wait()\n"
        "time.sleep(2)\n"
        "stats = [s.read() for s in map(open, __import__('glob').glob('/proc/[0-9]*/stat'))]\n"
        "own = [s.rpartition(')')[2].split()[:2] for s in stats]\n"
        "print(own.count(['Z', str(os.getppid())]))"
    )
    with Boot(tmp_path, job(tmp_path, body)) as boot:
        closed(boot, 0)
        assert int(boot.out.splitlines()[0]) < 5


# Volumes and readers.


def test_a_volume_that_vanishes_in_mid_boot_is_told_on_the_log(tmp_path: Path) -> None:
    """The folder is not made anew: that would be in the container, and gone with it."""
    with Boot(tmp_path, stage="load", code="import time; time.sleep(1.5)") as boot:
        boot.wait_for(has("load"))
        boot.reports.rename(tmp_path / "gone")  # at once, whatever is being written into it
        boot.reports.write_text("no folder any more")
        assert boot.end() == 73, boot.err
        lost = next(line for line in boot.err.splitlines() if line.startswith("{"))
        report = json.loads(lost)
        assert report["exit"]["code"] == 73
        assert {s["name"]: s["status"] for s in report["stages"]}["numerics"] == "pass"
        assert json.loads(boot.out)["exit"] == 73
        assert not boot.left()


def test_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="load", code="import time; time.sleep(1)") as boot:
        boot.wait_for(has("load"))
        os.kill(the_writer(boot), signal.SIGKILL)
        ended(boot, 0)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_stalls_holds_up_no_boot(tmp_path: Path, stream: str) -> None:
    reading, writing = os.pipe()
    flood = "for n in range(3000): print('flood', n, '.' * 200, file=sys.stderr)"
    given: dict[str, Any] = {stream: writing}
    try:
        with Boot(tmp_path, stage="load", code=flood, **given) as boot:
            began = time.monotonic()
            assert boot.end(120) == 0
            assert time.monotonic() - began < GENEROUS_S
            assert boot.report["verdict"] == "pass"
    finally:
        os.close(reading)
        os.close(writing)
