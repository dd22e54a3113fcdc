"""Facts about the supervisor as a whole process: hand-over, memory, what it writes at its end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from app.stages import STAGES
from tests.boots import HANG, Boot, command_of, ended, runs, until

LOOK = (
    'echo "$BOOT_VERDICT $BOOT_COMPUTE_DTYPE $BOOT_MODEL_PATH $$"; cat "$BOOT_REPORT_PATH"; exit 5'
)


def script(folder: Path, text: str, name: str = "command") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def verdicts(boot: Boot) -> list[dict[str, Any]]:
    return [json.loads(line) for line in boot.out.splitlines() if line.startswith('{"bootguard"')]


# The command after `--`.


def test_a_command_takes_the_boots_place_and_knows_what_was_found(tmp_path: Path) -> None:
    with Boot(tmp_path, {}, "--", "sh", "-c", LOOK) as boot:
        pid = boot.process.pid
        assert boot.end() == 5, boot.err
        verdict, told, *report = boot.out.splitlines()
        assert json.loads(verdict)["exit"] == 0
        assert told == f"pass float32 {tmp_path / 'model'} {pid}"
        shown = json.loads("\n".join(report))
        assert (shown["handed_over"], shown["state"], shown["exit"]["code"]) == (
            True,
            "complete",
            0,
        )
        assert shown == boot.report


def test_nothing_of_the_boot_is_left_when_the_command_begins(tmp_path: Path) -> None:
    look = "cat /proc/$$/task/$$/children; echo; ls -l /proc/$$/fd; exit 0"
    with Boot(tmp_path, {}, "--", "sh", "-c", look) as boot:
        assert boot.end() == 0
        children, *descriptors = boot.out.splitlines()[1:]
        assert len(children.split()) <= 1  # `cat` itself
        assert not [line for line in descriptors if "memfd" in line or "socket" in line]


def test_a_boot_that_fails_hands_nothing_over(tmp_path: Path) -> None:
    command = ("--", "touch", str(tmp_path / "ran"))
    with Boot(tmp_path, {"BOOT_BASE_MODEL_ID": str(tmp_path / "none")}, *command) as boot:
        ended(boot, 66)
        assert not boot.report["handed_over"]
        assert not (tmp_path / "ran").exists()


def test_a_boot_that_is_interrupted_hands_nothing_over(tmp_path: Path) -> None:
    command = ("--", "touch", str(tmp_path / "ran"))
    with Boot(tmp_path, {}, *command, stage="numerics", code=HANG) as boot:
        boot.wait_for("numerics   started")
        boot.send(signal.SIGTERM)
        ended(boot, 143, "interrupted")
        assert not boot.report["handed_over"]
        assert not (tmp_path / "ran").exists()


def test_a_command_that_vanished_meanwhile_is_told(tmp_path: Path) -> None:
    """Its presence was judged with the settings; now the kernel refuses."""
    command = script(tmp_path, "#!/bin/sh\n")
    code = f"os.unlink({str(command)!r})"
    with Boot(tmp_path, {}, "--", str(command), stage="numerics", code=code) as boot:
        assert boot.end() == 64, boot.err
        report = boot.report
        assert (report["handed_over"], report["verdict"]) == (False, "fail")
        assert report["exit"]["process_code"] == 64
        assert boot.statuses["job"] == "fail"
        assert [path.name for path in boot.reports.iterdir()] == ["boot-report.json"]
        assert not boot.left()


def test_standard_output_holds_one_verdict_also_after_a_failed_hand_over(tmp_path: Path) -> None:
    """Who reads the first line must not be told that all is well."""
    command = script(tmp_path, "#!/bin/sh\n")
    code = f"os.unlink({str(command)!r})"
    with Boot(tmp_path, {}, "--", str(command), stage="numerics", code=code) as boot:
        boot.end()
        assert [line["exit"] for line in verdicts(boot)] == [64]


def test_the_command_gets_the_signals_as_if_it_had_been_started_alone(tmp_path: Path) -> None:
    with Boot(tmp_path, {}, "--", "sh", "-c", "echo begun >&2; exec sleep 60") as boot:
        boot.wait_for("begun\n")
        boot.send(signal.SIGTERM)
        assert boot.end() == -signal.SIGTERM


# What stays, and what goes.


def test_what_a_script_had_started_before_stays(tmp_path: Path) -> None:
    """`monitor & exec python -m app.boot`: the monitor, and what it starts meanwhile."""
    shell = '(sleep 1; sleep 300; echo > dead) & exec "$@"'
    before = ["bash", "-c", shell, "shell"]
    code = "import time; time.sleep(2)"
    with Boot(tmp_path, before=before, stage="numerics", code=code) as boot:
        assert boot.process.wait(60) == 0, boot.err
        left = [command_of(pid) for pid in boot.left()]
        assert any("sleep 300" in command for command in left), left
        assert not (tmp_path / "dead").exists()


def test_the_supervisor_stays_light(tmp_path: Path) -> None:
    """Under 60 MB resident at its peak, however heavy its children are."""
    with Boot(tmp_path, stage="numerics", code=HANG) as boot:
        boot.wait_for("numerics   started")
        time.sleep(1.5)
        status = Path(f"/proc/{boot.process.pid}/status").read_text()
        (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        assert int(peak) < 60_000
        assert len(os.listdir(f"/proc/{boot.process.pid}/task")) == 1  # noqa: PTH208 - one thread
        worker = next(pid for pid in boot.left() if "app.worker" in command_of(pid))
        assert os.getpgid(worker) == worker != os.getpgid(boot.process.pid)


def test_children_of_the_boot_do_not_outlive_it_by_a_closed_terminal(tmp_path: Path) -> None:
    with Boot(tmp_path, stage="load", code=HANG) as boot:
        boot.wait_for("load       started")
        worker = next(pid for pid in boot.left() if "app.worker" in command_of(pid))
        boot.send(signal.SIGHUP)
        ended(boot, 143, "interrupted")
        until(lambda: not runs(worker), "the worker's end")


def test_a_bug_in_the_supervisor_does_not_lose_the_report(tmp_path: Path) -> None:
    """By an exception where nobody expects one: in the middle of the first stage."""
    code = "raise RuntimeError('nobody foresaw this')"
    with Boot(tmp_path, stage="settings", code=code) as boot:
        ended(boot, 70)
        report = boot.report
        assert report["crash"]["kind"] == "RuntimeError"
        assert "nobody foresaw this" in report["exit"]["reason"]
        assert [stage["name"] for stage in report["stages"]] == list(STAGES)
        assert "Traceback" in boot.err


def test_settings_that_hang_are_given_up(tmp_path: Path) -> None:
    """After a minute by its own clock, which the test cannot wait for: by the alarm itself."""
    with Boot(tmp_path, stage="settings", code=HANG) as boot:
        boot.wait_for("settings   started")
        time.sleep(0.2)
        boot.send(signal.SIGALRM)
        ended(boot, 75)
        assert boot.report["crash"]["where"] == "settings"


def test_a_side_file_is_written_with_the_verdict(tmp_path: Path) -> None:
    settings = {
        "BOOT_TERMINATION_LOG": str(tmp_path / "message"),
        "BOOT_METRICS_FILE": str(tmp_path / "boot.prom"),
        "BOOT_STOP_AFTER": "host",
    }
    with Boot(tmp_path, settings) as boot:
        ended(boot, 0)
        message = (tmp_path / "message").read_text()
        assert json.loads(message)["exit"] == 0
        assert len(message) <= 900
        assert "bootguard" in (tmp_path / "boot.prom").read_text()
