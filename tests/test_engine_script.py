"""Facts about scripts/engine.sh: an engine of others is left as it was; where none is, it says so.

Here a small program plays the Docker client and writes down what it is asked. With a real engine,
the script is what `make image-test` runs in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "engine.sh"
LABEL = "label=bootguard.test=image"
NOBODY = 65534
CLIENT = """#!/bin/sh
printf '%s\\n' "$*" >>"{calls}"
case "$1 $2" in
    "compose version") echo 2.26.1 ;;
    "context inspect") echo unix:///run/theirs.sock ;;
    "buildx du") cat "{cache}" ;;
    "ps --all" | "volume ls" | "network ls" | "images --quiet") echo made ;;
    "builder prune") : >"{cache}.new" && mv "{cache}.before" "{cache}" ;;
esac
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with the client of an engine that is there; its log is `calls`."""
    calls, cache = tmp_path / "calls", tmp_path / "cache"
    for path in (cache, tmp_path / "cache.before"):
        path.write_text("ID:\told\n", encoding="utf-8")
    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(CLIENT.format(calls=calls, cache=cache), encoding="utf-8")
    client.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    return {**kept, "PATH": path, "TMPDIR": str(folder)}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), "run", *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(folder),
        timeout=60,
    )


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text(encoding="utf-8").splitlines()


def test_the_status_is_the_commands(theirs: Path) -> None:
    done = run(theirs, "sh", "-c", "echo $DOCKER_HOST; exit 7")
    assert (done.returncode, done.stdout) == (7, "unix:///run/theirs.sock\n"), done.stderr


def test_in_an_engine_of_others_only_what_is_labelled_goes(theirs: Path) -> None:
    grows = f"printf 'ID:\\tnew\\n' >>{theirs}/cache"
    assert run(theirs, "sh", "-c", grows).returncode == 0
    said = calls(theirs)
    lists = [line for line in said if line.startswith(("ps ", "volume ls", "network ls", "images"))]
    assert len(lists) == 4
    assert all(LABEL in line for line in lists)
    removed = [line for line in said if " rm" in f" {line}" and " --rm " not in line]
    assert len(removed) == 4
    assert all(line.endswith(" made") for line in removed)
    pruned = [line for line in said if line.startswith("builder prune")]
    assert pruned == ["builder prune --all --force --filter id=new"]


def test_nothing_is_left_of_its_own(theirs: Path) -> None:
    before = {path.name for path in theirs.iterdir()}
    run(theirs, "true")
    assert {path.name for path in theirs.iterdir()} - before == {"calls"}


def test_a_signal_ends_the_command_first_and_then_clears_up(theirs: Path) -> None:
    """The command gets an INT, at which pytest tears its fixtures down."""
    mark = theirs / "began"
    script = f"trap 'echo torn down; exit 0' INT; touch {mark}; while :; do sleep 0.1; done"
    command = [str(SCRIPT), "run", "bash", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(theirs)
    ) as process:
        deadline = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "torn down\n"
    assert [line for line in calls(theirs) if line.startswith("rm ")]


def without_engine(folder: Path, *prefix: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Where none answers. The script's number too, by which its folders are named."""
    nowhere = {"DOCKER_HOST": f"unix://{folder}/nowhere.sock"}
    command = [*prefix, str(SCRIPT), "run", "true"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(folder), **nowhere},
    ) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err), process.pid


def refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 69
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("no Docker engine: ")
    assert why in line


def test_without_root_it_says_that_none_can_be_started(tmp_path: Path) -> None:
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done, _ = without_engine(tmp_path, *(user if os.geteuid() == 0 else []))
    refused(done, "only root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an engine")
def test_without_room_it_says_where_it_looked(tmp_path: Path) -> None:
    small = tmp_path / "bin" / "df"
    small.parent.mkdir()
    small.write_text("#!/bin/sh\necho Avail; echo 3\n", encoding="utf-8")
    small.chmod(0o755)
    done, number = without_engine(tmp_path)
    refused(done, "tmp has 3 GB free of")
    for parent in (ROOT / ".cache", Path("/var/tmp"), Path("/tmp")):  # noqa: S108 - where it looks
        assert list(parent.glob(f"*engine.{number}")) == []


def test_another_use_is_an_error_of_usage() -> None:
    for arguments in ([], ["run"], ["start"]):
        done = subprocess.run(
            [str(SCRIPT), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 64
        assert done.stderr.startswith("usage: ")
