"""Downloads that go wrong half-way, through the real client against a hub on this machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.checks.cache import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.cache import CacheFacts
from app.outcome import Fault
from app.probes import hub_client
from app.probes.hub import Means, resolve_model
from app.probes.hub_answer import Cause, from_json, to_json
from app.probes.hub_cache import repository_folder, unfinished
from tests.fake_hub import COMMIT, BodyT, Hub, serving, sha256
from tests.fakes_preflight import PLAIN, TOKEN, findings, model_files, plan_for

pytestmark = pytest.mark.usefixtures("_direct")


@pytest.fixture
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the machine between the client and the fake hub."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


class Boot:
    """The cache stage with a cache of its own; waits between attempts are noted, not waited."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub = folder, hub
        self.waits: list[float] = []
        self.said: list[str] = []

    @property
    def base(self) -> Path:
        return repository_folder(str(self.folder / "hub"), "org/tiny")

    def resolve(self, *, stall_s: float = 30.0, limit_s: float = 60.0, **plan: Any) -> CacheFacts:
        means = Means(limit_s, stall_s, wait=self.waits.append, say=self.said.append)
        environ = {
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
            "HF_HUB_CACHE": str(self.folder / "hub"),
            "HF_ENDPOINT": self.hub.url,
            "HF_TOKEN": TOKEN,
        }
        asked = plan_for(**{"model": "org/tiny"} | plan)
        return resolve_model(asked, environ, token=TOKEN, means=means)


@contextmanager
def booted(folder: Path, files: dict[str, bytes] | None = None, **hub: Any) -> Iterator[Boot]:
    with serving(Hub(files or model_files(PLAIN, n_shards=2), **hub)) as served:
        yield Boot(folder, served)


def large(n_bytes: int = 200_000) -> dict[str, bytes]:
    """One weight file that takes a while."""
    return model_files() | {"model.safetensors": random.Random(0).randbytes(n_bytes)}  # noqa: S311


def code_of(facts: CacheFacts) -> ExitCode | None:
    said = findings(CHECKS, facts, plan_for())
    for check in CHECKS:
        if said[check.id].status.blocks:
            return exit_code(said[check.id].fault or check.fault)
    return None


@pytest.mark.parametrize("how", ["short", "reset"])
def test_a_body_that_is_cut_is_resumed_where_it_was(tmp_path: Path, how: BodyT) -> None:
    files = large(3_000_000)
    # Slow enough that the client has read some of it when the reset comes, and discards the rest.
    with booted(tmp_path, files, bodies=[how, how], bytes_per_s=1_500_000) as boot:
        facts = boot.resolve()
    assert (facts.revision, boot.waits) == (COMMIT, [])
    assert boot.hub.ranges
    weights = boot.base / "snapshots" / COMMIT / "model.safetensors"
    assert weights.read_bytes() == files["model.safetensors"]
    assert not unfinished(boot.base)


def test_a_body_that_falls_silent_is_a_stall_and_begun_anew(tmp_path: Path) -> None:
    with booted(tmp_path, large(), bodies=["silent"]) as boot:
        facts = boot.resolve(stall_s=1.5)
    assert facts.revision == COMMIT
    assert len(boot.waits) == 1
    assert "no new byte for 1.5 s (BOOT_STALL_TIMEOUT_S)" in boot.said[-1]
    assert "without Xet" in boot.said[-1]
    assert not unfinished(boot.base)


def test_a_hub_that_says_nothing_is_temporary_and_ends_in_time(tmp_path: Path) -> None:
    with booted(tmp_path, silent=True) as boot:
        facts = boot.resolve(stall_s=0.5)
    assert code_of(facts) == ExitCode.TEMPFAIL
    assert len(boot.waits) == 4


def test_a_slow_trickle_is_no_stall(tmp_path: Path) -> None:
    """All of it is less than one piece of what the client writes at a time."""
    with booted(tmp_path, large(100_000), bytes_per_s=25_000) as boot:
        facts = boot.resolve(stall_s=1.5)
    assert (facts.revision, boot.waits) == (COMMIT, [])


def test_the_deadline_ends_a_download_and_says_which_setting(tmp_path: Path) -> None:
    with booted(tmp_path, large(1_000_000), bytes_per_s=25_000) as boot:
        facts = boot.resolve(limit_s=4)
        assert code_of(facts) == ExitCode.TEMPFAIL
        assert facts.failure is not None
        assert "BOOT_CACHE_TIMEOUT_S=4" in facts.failure.reason
        assert "raise BOOT_CACHE_TIMEOUT_S" in facts.failure.next_step
        assert not unfinished(boot.base)
        boot.hub.bytes_per_s = 0
        assert boot.resolve().revision == COMMIT


def test_a_busy_hub_is_asked_again_when_it_said(tmp_path: Path) -> None:
    with booted(tmp_path, answers=[(429, {"Retry-After": "7"})]) as boot:
        assert boot.resolve().revision == COMMIT
    assert len(boot.waits) == 1
    assert 7 <= boot.waits[0] <= 8
    assert "HTTP 429" in boot.said[-1]


def test_its_own_rate_limit_counts_too(tmp_path: Path) -> None:
    with booted(tmp_path, answers=[(429, {"RateLimit": '"api";r=0;t=9'})]) as boot:
        assert boot.resolve().revision == COMMIT
    assert 9 <= boot.waits[0] <= 10


@pytest.mark.parametrize("after", ["3600", "59"])
def test_a_hub_that_asks_for_more_than_there_is_time_is_not_waited_for(
    tmp_path: Path, after: str
) -> None:
    with booted(tmp_path, always=(429, {"Retry-After": after})) as boot:
        facts = boot.resolve()
    assert (code_of(facts), boot.waits) == (ExitCode.TEMPFAIL, [])
    assert facts.failure is not None
    assert "HTTP 429" in facts.failure.actual


def test_the_token_goes_to_the_hub_alone_and_nobody_else_is_asked(tmp_path: Path) -> None:
    with booted(tmp_path) as boot:
        facts = boot.resolve()
    assert boot.hub.tokens == {f"Bearer {TOKEN}"}
    assert boot.hub.tokens_elsewhere == {""}
    ours = ("/api/models/org/tiny", "/org/tiny/resolve/", "/cdn/")
    paths = {request.partition(" ")[2] for request in boot.hub.requests}
    assert not [path for path in paths if not path.startswith(ours)]
    assert TOKEN not in repr(facts) + repr(boot.said)


def test_a_download_that_another_boot_holds_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """It may have been stopped, or be of a host that is gone."""
    files = large()
    with booted(tmp_path, files) as boot:
        folder = tmp_path / "hub" / ".locks" / "models--org--tiny"
        folder.mkdir(parents=True)
        lock = folder / f"{sha256(files['model.safetensors'])}.lock"
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            facts = boot.resolve(stall_s=1.5)
    assert facts.revision == COMMIT
    assert len(boot.waits) == 1
    assert str(lock) in boot.said[-1]


def test_progress_of_another_boot_in_the_same_folder_is_progress(tmp_path: Path) -> None:
    files = large()
    with booted(tmp_path, files) as boot:
        folder = tmp_path / "hub" / ".locks" / "models--org--tiny"
        folder.mkdir(parents=True)
        lock = folder / f"{sha256(files['model.safetensors'])}.lock"
        (boot.base / "blobs").mkdir(parents=True)
        growing = boot.base / "blobs" / "other.12345678.incomplete"
        done = threading.Event()
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)

            def other() -> None:
                for number in range(1, 31):
                    growing.write_bytes(bytes(number * 1000))
                    done.wait(0.1)
                growing.unlink()
                fcntl.flock(held, fcntl.LOCK_UN)

            thread = threading.Thread(target=other)
            thread.start()
            facts = boot.resolve(stall_s=1.5)
            thread.join()
    assert (facts.revision, boot.waits) == (COMMIT, [])


def test_a_disk_without_room_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    rows = Hub(model_files()).rows()
    for row in rows:
        row["size"] = 10**15
    with booted(tmp_path) as boot:
        boot.hub.rows = lambda: rows  # type: ignore[method-assign]
        facts = boot.resolve()
    assert code_of(facts) == ExitCode.IOERR
    said = findings(CHECKS, facts, plan_for())
    assert "free" in said["cache.room"].reason
    assert "GiB" in said["cache.room"].actual
    assert facts.failure is not None
    assert "was not downloaded" in facts.failure.reason
    assert not (boot.base / "blobs").exists()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_that_shows_its_name_alone_is_no_permission(
    tmp_path: Path, status: int
) -> None:
    gated = [(status, {"X-Error-Code": "GatedRepo"})] * 20
    with booted(tmp_path, of_files=gated) as boot:
        facts = boot.resolve()
    assert (code_of(facts), boot.waits) == (ExitCode.NOPERM, [])
    assert facts.failure is not None
    assert "licence" in facts.failure.next_step


def test_without_a_token_the_next_step_is_to_set_one(tmp_path: Path) -> None:
    with booted(tmp_path, always=(401, {"X-Error-Code": "GatedRepo"})) as boot:
        plan = plan_for(model="org/tiny")
        environ = {"HOME": str(tmp_path), "HF_ENDPOINT": boot.hub.url}
        facts = resolve_model(plan, environ)
    assert facts.failure is not None
    assert facts.failure.next_step.startswith("set HF_TOKEN")
    assert boot.hub.tokens == {""}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_file_that_cannot_be_had_at_once_is_asked_for_again(tmp_path: Path, status: int) -> None:
    with booted(tmp_path, of_files=[(status, {})] * 2) as boot:
        assert boot.resolve().revision == COMMIT


def test_a_file_that_the_listing_promises_and_the_hub_has_not_is_absent(tmp_path: Path) -> None:
    with booted(tmp_path, of_files=[(404, {"X-Error-Code": "EntryNotFound"})]) as boot:
        assert code_of(boot.resolve()) == ExitCode.NOINPUT


def test_what_a_killed_process_left_long_ago_is_removed(tmp_path: Path) -> None:
    with booted(tmp_path) as boot:
        blobs = boot.base / "blobs"
        blobs.mkdir(parents=True)
        for name, hours in (("old", 25), ("new", 1)):
            path = blobs / f"{name}.12345678.incomplete"
            path.touch()
            then = time.time() - hours * 3600
            os.utime(path, (then, then))
        assert boot.resolve().revision == COMMIT
    assert [path.name for path in unfinished(boot.base)] == ["new.12345678.incomplete"]


def test_a_file_system_without_locks_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: object, *, timeout: float | None = None) -> None:
        raise OSError(errno.ENOLCK, f"no locks {timeout}")

    monkeypatch.setattr(hub_client, "WeakFileLock", refused)
    state = hub_client.State()
    with hub_client._locks(state, used=True)("x.lock"):
        assert state.waiting == set()


def test_a_lock_that_fails_otherwise_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: object, *, timeout: float | None = None) -> None:
        raise OSError(errno.EROFS, f"read-only {timeout}")

    monkeypatch.setattr(hub_client, "WeakFileLock", refused)
    state = hub_client.State()
    with pytest.raises(OSError, match="read-only"), hub_client._locks(state, used=True)("x.lock"):
        pass
    assert state.waiting == set()


def test_bytes_are_counted_once() -> None:
    """Over HTTP both we and the client count them."""
    state = hub_client.State()
    bar = hub_client.counter(state)(name="huggingface_hub.snapshot_download.transfer")
    other = hub_client.counter(state)(name="huggingface_hub.snapshot_download")
    bar.update(5)
    other.update(9)
    state.read_bytes = 7
    assert state.received == 7
    bar.update(5)
    assert state.received == 10


def test_a_cause_crosses_the_pipe_as_it_was() -> None:
    cause = Cause(
        Fault.TEMPORARY,
        ("A", "B"),
        429,
        5,
        "revision",
        1.5,
        locks=("x.lock",),
        said="no",
        elsewhere=True,
    )
    assert from_json(json.loads(json.dumps(to_json(cause)))) == cause


def test_a_variable_that_breaks_the_client_is_a_setting(tmp_path: Path) -> None:
    with booted(tmp_path) as boot:
        environ = {
            "HOME": str(tmp_path),
            "HF_ENDPOINT": boot.hub.url,
            "HF_HUB_ETAG_TIMEOUT": "30s",
        }
        facts = resolve_model(plan_for(model="org/tiny"), environ)
    assert code_of(facts) == ExitCode.CONFIG


MAPPED = "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit"


@pytest.mark.parametrize(("there", "told"), [(("v1",), "which has it"), ((), "was not asked")])
def test_a_revision_of_the_unmapped_repository_alone_names_both(
    tmp_path: Path, there: tuple[str, ...], told: str
) -> None:
    asked = "unsloth/gemma-3n-E2B-it"
    with booted(tmp_path, revisions={MAPPED: ("main",), asked: there}) as boot:
        facts = boot.resolve(model=asked, hardware="h100", revision="v1")
    assert code_of(facts) == ExitCode.NOINPUT
    assert facts.failure is not None
    assert MAPPED in facts.failure.reason
    assert f"maps {asked} to" in facts.failure.reason
    assert told in facts.failure.reason


def test_a_revision_of_the_mapped_repository_is_loaded_and_said(tmp_path: Path) -> None:
    with booted(tmp_path) as boot:
        facts = boot.resolve(model="unsloth/gemma-3n-E2B-it", hardware="h100", revision="v1")
    assert (facts.revision, facts.model_id) == (COMMIT, MAPPED)
    assert "BOOT_REVISION v1 is a revision of that" in facts.reason


def test_a_hub_that_names_no_commit_is_none(tmp_path: Path) -> None:
    with booted(tmp_path, always=(200, {}), page=b'["a list"]') as boot:
        facts = boot.resolve()
    assert code_of(facts) == ExitCode.CONFIG
    assert facts.failure is not None
    assert facts.failure.fault is Fault.CONFIG
