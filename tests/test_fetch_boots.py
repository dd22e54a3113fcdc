"""Whole boots that download: signals, kills, two at once, terminals, full and read-only disks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.probes.hub_cache import unfinished
from tests.boots import ROOT, Boot, command_of, ended, marked, until
from tests.fake_hub import COMMIT, Hub, serving, sha256
from tests.fakes_preflight import PLAIN, TOKEN, model_files

FILES = model_files(PLAIN, n_shards=2)
NAME = "model-00001-of-00002.safetensors"


def mounts() -> bool:
    """Whether this account may mount in a namespace of its own."""
    if not shutil.which("unshare"):
        return False
    mounted = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(mounted, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not mounts(), reason="mounting is root's")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(FILES | {"x.safetensors": random.Random(0).randbytes(400_000)})) as served:  # noqa: S311
        yield served


def booted(folder: Path, hub: Hub, cache: Path | None = None, **options: Any) -> Boot:
    """A boot up to the cache stage, of the hub's repository."""
    settings = {
        "HF_HUB_CACHE": str(cache or folder / "hub"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "NO_PROXY": "*",
        "TERM": "xterm",
        "BOOT_BASE_MODEL_ID": "org/tiny",
        "BOOT_STOP_AFTER": "cache",
    } | options.pop("settings", {})
    return Boot(folder, settings, **options)


def child_of(boot: Boot) -> int:
    """The downloading process."""
    found: list[int] = []

    def there() -> bool:
        assert boot.process.poll() is None, boot.err
        found[:] = [pid for pid in marked(boot.marker) if "fetch_child" in command_of(pid)]
        return bool(found)

    until(there, "a downloading process")
    return found[0]


def base_of(cache: Path) -> Path:
    return cache / "models--org--tiny"


def whole(cache: Path, hub: Hub) -> bool:
    """Every file of the snapshot has the hub's bytes."""
    folder = base_of(cache) / "snapshots" / COMMIT
    return all((folder / name).read_bytes() == body for name, body in hub.files.items())


def deciding(boot: Boot) -> dict[str, Any]:
    """The first check that failed."""
    return next(check for check in boot.report["checks"] if check["status"] in {"fail", "error"})


def test_a_request_to_end_ends_a_download_at_once(tmp_path: Path, hub: Hub) -> None:
    hub.silent = True
    with booted(tmp_path, hub) as boot:
        child_of(boot)
        until(lambda: hub.requests, "a request")
        boot.send(signal.SIGTERM)
        ended(boot, 143, "interrupted")


def test_the_finding_comes_before_the_stages_own_deadline(tmp_path: Path, hub: Hub) -> None:
    hub.silent = True
    with booted(tmp_path, hub, settings={"BOOT_CACHE_TIMEOUT_S": "3"}) as boot:
        ended(boot, 75)
        found = deciding(boot)
        assert found["id"] == "cache.resolved"
        assert "BOOT_CACHE_TIMEOUT_S=3" in found["reason"]
        assert boot.report["crash"] is None


def test_of_two_boots_of_one_cache_the_killed_one_does_not_harm_the_other(
    tmp_path: Path, hub: Hub
) -> None:
    hub.bytes_per_s = 100_000
    cache = tmp_path / "hub"
    with booted(tmp_path / "1", hub, cache) as first, booted(tmp_path / "2", hub, cache) as second:
        until(lambda: unfinished(base_of(cache)), "a download")
        child_of(first)
        child_of(second)
        first.process.kill()  # the supervisor alone: all else dies with it
        until(lambda: not marked(first.marker), "the end of every process")
        hub.bytes_per_s = 0  # of what is asked for from here on
        ended(second, 0)
    assert whole(cache, hub)


def test_two_boots_of_one_cache_both_pass(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 400_000
    cache = tmp_path / "hub"
    with booted(tmp_path / "1", hub, cache) as first, booted(tmp_path / "2", hub, cache) as second:
        ended(first, 0)
        ended(second, 0)
    assert whole(cache, hub)
    # The second waited for the first: no large file was sent twice.
    sent = [request for request in hub.requests if request == "GET /cdn/x.safetensors"]
    assert len(sent) == 1


@pytest.fixture
def no_flock(tmp_path: Path) -> Path:
    """A library that makes every file system one without flock(2), as some network ones are."""
    source, made = tmp_path / "flock.c", tmp_path / "flock.so"
    source.write_text(
        "#include <errno.h>\nint flock(int fd, int how) { errno = ENOSYS; return -1; }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", made, source], check=True)
    return made


def test_without_flock_a_killed_boots_lock_holds_up_no_other(
    tmp_path: Path, hub: Hub, no_flock: Path
) -> None:
    hub.bytes_per_s = 100_000
    cache, settings = tmp_path / "hub", {"LD_PRELOAD": str(no_flock)}
    with booted(tmp_path / "1", hub, cache, settings=settings) as first:
        until(lambda: unfinished(base_of(cache)), "a download")
        first.process.kill()
        until(lambda: not marked(first.marker), "the end of every process")
        assert list(cache.glob(".locks/*/*.lock"))
        hub.bytes_per_s = 0
        with booted(tmp_path / "2", hub, cache, settings=settings) as second:
            ended(second, 0)
    assert whole(cache, hub)


def test_without_flock_a_lock_file_without_an_owner_is_not_waited_for(
    tmp_path: Path, hub: Hub, no_flock: Path
) -> None:
    """Its maker was killed before it could write its number."""
    cache = tmp_path / "hub"
    lock = cache / ".locks" / "models--org--tiny" / f"{sha256(hub.files['x.safetensors'])}.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with booted(tmp_path / "1", hub, cache, settings={"LD_PRELOAD": str(no_flock)}) as boot:
        ended(boot, 0)
        assert "trying again" not in boot.err
    assert whole(cache, hub)


def test_without_flock_the_lock_of_a_host_that_is_gone_is_named_and_passed_by(
    tmp_path: Path, hub: Hub, no_flock: Path
) -> None:
    cache = tmp_path / "hub"
    lock = cache / ".locks" / "models--org--tiny" / f"{sha256(hub.files['x.safetensors'])}.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("4242\nanother-host\n")
    settings = {"LD_PRELOAD": str(no_flock), "BOOT_STALL_TIMEOUT_S": "1"}
    with booted(tmp_path / "1", hub, cache, settings=settings) as boot:
        ended(boot, 0)
        assert f"without waiting for {lock}" in boot.err
    assert whole(cache, hub)


def test_a_download_killed_for_memory_is_told(tmp_path: Path, hub: Hub) -> None:
    hub.silent = True
    with booted(tmp_path, hub) as boot:
        os.kill(child_of(boot), signal.SIGKILL)
        ended(boot, 79)
        assert "SIGKILL" in deciding(boot)["reason"]
        assert "memory" in deciding(boot)["next_step"]


def test_a_native_crash_is_tried_once_more_without_xet(tmp_path: Path, hub: Hub) -> None:
    hub.silent = True
    with booted(tmp_path, hub) as boot:
        first = child_of(boot)
        until(lambda: hub.requests, "a request")
        hub.silent = False
        os.kill(first, signal.SIGSEGV)
        ended(boot, 0)
        assert "SIGSEGV" in boot.err
        assert "without Xet" in boot.err
    assert whole(tmp_path / "hub", hub)


def test_progress_is_lines_where_nobody_sits(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 65_000  # a line comes every five seconds, so it has to take longer
    with booted(tmp_path, hub) as boot:
        ended(boot, 0)
        lines = [line for line in boot.err.splitlines() if "downloading org/tiny: " in line]
        assert re.search(r": 0\.[1-4] of 0\.4 MB \(\d+ %\), 0\.\d MB/s, x\.safe", lines[-1]), lines
        assert "\x1b[" not in "".join(lines)


def terminal_of(boot_end: int) -> bytes:
    """All that was written to a terminal so far."""
    text = b""
    while True:
        try:
            chunk = os.read(boot_end, 65536)
        except OSError:  # the other end is closed
            return text
        if not chunk:
            return text
        text += chunk


def test_progress_is_a_bar_on_a_terminal_and_leaves_it_as_it_was(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 300_000
    ours, theirs = pty.openpty()
    with booted(tmp_path, hub, stderr=theirs) as boot:
        os.close(theirs)
        text = terminal_of(ours)
        os.close(ours)
        assert boot.end() == 0
    assert b"\x1b[K" in text
    assert b" of 400" in text
    assert b"downloading org/tiny: " not in text
    assert b"\x1b[?25l" not in text
    assert TOKEN.encode() not in text


def on_a_terminal(folder: Path, hub: Hub, columns: int, **settings: str) -> str:
    """What a boot writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with booted(folder, hub, stderr=theirs, settings=settings) as boot:
        os.close(theirs)
        text = terminal_of(ours)
        os.close(ours)
        assert boot.end() == 0
    return text.decode()


def test_the_bar_stays_in_one_line_of_a_narrow_terminal(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 300_000
    text = on_a_terminal(tmp_path, hub, 24)
    drawn = re.findall(r"\r\x1b\[K([^\r\n]*)\r(?!\n)", text)
    assert any(" of 4" in line for line in drawn)
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in drawn) < 24


def test_nothing_is_drawn_on_a_terminal_that_cannot_draw(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 300_000  # a bar would have been drawn every half second
    text = on_a_terminal(tmp_path, hub, 80, TERM="dumb")
    assert "resolving org/tiny" in text
    assert "\x1b[K" not in text


def test_a_total_deadline_below_the_stages_is_the_one_that_is_named(
    tmp_path: Path, hub: Hub
) -> None:
    hub.silent = True
    with booted(tmp_path, hub, settings={"BOOT_TOTAL_TIMEOUT_S": "4"}) as boot:
        ended(boot, 75)
        found = deciding(boot)
        assert found["id"] == "cache.resolved"
        assert "BOOT_TOTAL_TIMEOUT_S=4" in found["reason"]
        assert boot.report["crash"] is None


def test_a_terminal_that_nobody_reads_holds_up_nothing(tmp_path: Path, hub: Hub) -> None:
    hub.bytes_per_s = 400_000
    ours, theirs = pty.openpty()
    os.set_blocking(theirs, False)
    try:
        while os.write(theirs, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    os.set_blocking(theirs, True)
    with booted(tmp_path, hub, stderr=theirs) as boot:
        assert boot.end() == 0
    os.close(theirs)
    os.close(ours)


@needs_mounts
def test_a_disk_that_fills_up_is_a_read_error_and_no_retry(tmp_path: Path, hub: Hub) -> None:
    """The listing promises less than comes, so that there seems to be room."""
    rows = hub.rows()
    for row in rows:
        row["size"] = 1
        if "lfs" in row:
            row["lfs"] = {"oid": "1" * 64, "size": 1, "pointerSize": 134}
    hub.rows = lambda: rows  # type: ignore[method-assign]
    cache = tmp_path / "small"
    cache.mkdir()
    script = f'mount -t tmpfs -o size=200k tmpfs {cache} && exec "$@"'
    before = ["unshare", "-m", "sh", "-c", script, "sh"]
    with booted(tmp_path, hub, cache, before=before) as boot:
        ended(boot, 74)
        assert "ENOSPC" in deciding(boot)["actual"]
        assert boot.err.count("trying again") == 0


RESOLVE = """
import json, sys
from app.checks.cache import CHECKS
from app.probes.fetch_request import Means
from app.probes.hub import resolve_model
from tests.fakes_preflight import plan_for

hub, url, revision = sys.argv[1:]
plan = plan_for(model="org/tiny", revision=revision, verify="sha256")
environ = {"HOME": "/", "HF_HUB_CACHE": hub, "HF_ENDPOINT": url, "NO_PROXY": "*"}
facts = resolve_model(plan, environ, means=Means(wait=lambda _seconds: None))
found = {check.id: check.judge(facts, plan) for check in CHECKS}
print(json.dumps({name: [each.status, each.fault, each.actual] for name, each in found.items()}))
"""


def resolved_read_only(cache: Path, hub: Hub, revision: str) -> dict[str, list[str]]:
    """Status, fault and what was found by check, with the cache mounted read-only."""
    script = f'mount --bind {cache} {cache} && mount -o remount,bind,ro {cache} && exec "$@"'
    ours = [sys.executable, "-c", RESOLVE, str(cache), hub.url, revision]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *ours],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return dict(json.loads(done.stdout))


@needs_mounts
def test_a_complete_cache_is_used_from_a_read_only_mount_without_the_hub(
    tmp_path: Path, hub: Hub
) -> None:
    cache = tmp_path / "hub"
    with booted(tmp_path / "1", hub, cache) as boot:
        ended(boot, 0)
    shutil.rmtree(base_of(cache) / "refs")
    n_asked = len(hub.requests)
    said = resolved_read_only(cache, hub, COMMIT)
    assert {name: found[0] for name, found in said.items()} == {
        "cache.resolved": "pass",
        "cache.room": "skip",
        "cache.complete": "pass",
        "cache.verified": "pass",
    }
    assert len(hub.requests) == n_asked


@needs_mounts
def test_a_download_into_a_read_only_mount_is_a_setting(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "hub").mkdir()
    status, fault, actual = resolved_read_only(tmp_path / "hub", hub, "main")["cache.resolved"]
    assert (status, fault) == ("fail", "config")
    assert "EROFS" in actual
