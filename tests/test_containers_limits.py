"""Facts about boots in containers that are short of memory, of room, of rights, or left alone.

As `tests/test_containers.py`, where the rest stands.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.containers import jobs
from tests.containers.engine import unavailable
from tests.containers.harness import ENTRIES, Given, running
from tests.containers.moments import agrees, is_valid
from tests.tiny_models import tiny_model

pytestmark = [
    pytest.mark.stack,
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
]

MEMORY_BYTES = 600 * 1024**2  # importing alone takes 1.1 GB
TERMINATION_BYTES = 900  # also fits the smallest termination message in use
NO_GPU = not Path("/dev/nvidiactl").exists()

every_entry = pytest.mark.parametrize("entry", list(ENTRIES))
QUICK = {"BOOT_STOP_AFTER": "checkpoint"}


@every_entry
def test_a_worker_out_of_memory_does_not_take_the_container_along(
    tmp_path: Path, entry: str
) -> None:
    limit = [f"--memory={MEMORY_BYTES}", f"--memory-swap={MEMORY_BYTES}"]
    with running(tmp_path / "reports", Given({}, entry, limit)) as container:
        end = container.end()
    agrees(end, 79)
    memory = end.report["memory"]
    assert memory["host_limit_bytes"] == MEMORY_BYTES
    assert 0.9 * MEMORY_BYTES < memory["cgroup_peak_bytes"] <= MEMORY_BYTES
    assert memory["oom_kills"] >= 1
    assert (end.report["crash"]["where"], end.report["crash"]["signal"]) == ("stack", "SIGKILL")
    assert "memory" in end.report["exit"]["reason"]


@every_entry
def test_a_foreign_uid_on_a_read_only_root_boots(tmp_path: Path, entry: str) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    message.chmod(0o666)
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama-nf4"), model)
    for each in model.iterdir():
        each.chmod(0o644)  # the weights are their owner's alone
    options = ["--read-only", "--user=10001:10001", "--cap-drop=ALL"]
    options += ["--security-opt=no-new-privileges", f"--volume={message}:/dev/termination-log"]
    options += [f"--volume={model}:/model:ro"]
    given = Given({"BOOT_BASE_MODEL_ID": "/model"}, entry, options)
    with running(tmp_path / "reports", given) as container:
        end = container.end()
    agrees(end, 0)
    assert end.report["identity"]["uid"] == 10001
    said = message.read_text(encoding="utf-8")
    assert said.count("\n") == 1
    assert len(said.encode()) <= TERMINATION_BYTES
    told = json.loads(said)
    assert (told["exit"], told["verdict"], told["rehearsal"]) == (0, "pass", True)


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_a_failing_boot_says_why_in_the_termination_message(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    options = [f"--volume={message}:/dev/termination-log"]
    given = Given({"BOOT_HARDWARE": "h100"}, options=options)
    with running(tmp_path / "reports", given) as container:
        end = container.end()
    agrees(end, 69)
    told = json.loads(message.read_text(encoding="utf-8"))
    assert (told["exit"], told["name"]) == (69, "NODE_UNFIT")
    assert told["reason"]


def test_a_termination_message_that_cannot_be_written_changes_nothing_else(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    options = [f"--volume={message}:/dev/termination-log:ro"]
    with running(tmp_path / "reports", Given(QUICK, options=options)) as container:
        end = container.end()
    agrees(end, 0)


@every_entry
@pytest.mark.parametrize("free_bytes", [0, 12 * 1024], ids=["from-the-start", "in-mid-boot"])
def test_a_full_report_volume_gives_the_report_to_the_log(
    tmp_path: Path, entry: str, free_bytes: int
) -> None:
    volume = "--mount=type=tmpfs,destination=/full,tmpfs-size=65536,tmpfs-mode=1777"
    shell = f'head -c {65536 - free_bytes} /dev/zero >/full/ballast; exec "$@"'
    given = Given({"BOOT_REPORT_DIR": "/full"}, entry, [volume], shell)
    with running(tmp_path / "reports", given) as container:
        end = container.end()
    assert end.code == end.line["exit"] == 73, end.err
    assert end.line["report"] is None
    (lost,) = [line for line in end.err.splitlines() if line.startswith("{")]
    report = json.loads(lost)
    is_valid(report)
    assert report["exit"]["process_code"] == 73
    assert end.left == []


@every_entry
def test_orphans_of_a_job_are_reaped_and_ended(tmp_path: Path, entry: str) -> None:
    given = Given({"BOOT_JOB": "tests.containers.jobs:orphans"}, entry)
    with running(tmp_path / "reports", given) as container:
        end = container.end()
        zombies = json.loads((container.folder / jobs.ZOMBIES).read_text(encoding="utf-8"))
    agrees(end, 0)
    assert zombies == 0


@every_entry
def test_a_command_takes_the_place_of_the_boot(tmp_path: Path, entry: str) -> None:
    look = "import json, os; print(os.getpid(), os.environ['BOOT_VERDICT']); raise SystemExit(5)"
    given = Given({}, entry, arguments=["--", sys.executable, "-c", look])
    with running(tmp_path / "reports", given) as container:
        (first, *_) = container.processes("boot_and_look")
        supervisor = container.supervisor()
        end = container.end()
    assert end.code == 5
    *_, said = end.out.splitlines()
    assert said == f"{supervisor.inner} pass"
    assert (first.inner, end.report["handed_over"]) == (1, True)
    assert end.report["state"] == "complete"
