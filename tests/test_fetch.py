"""Downloads that go wrong half-way, through the real client against a hub on this machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.outcome import Fault
from app.probes import hub_client
from app.probes.hub_answer import Cause, from_json, to_json
from app.probes.hub_cache import unfinished
from tests.cache_stage import Asked, base_of
from tests.fake_hub import COMMIT, Hub, serving, sha256
from tests.fakes_preflight import PLAIN, TOKEN, model_files

FILES = model_files(PLAIN, n_shards=2)


def asked_of(folder: Path, hub: Hub, **options: Any) -> Asked:
    """One answer of a hub that is there for this long only."""
    with serving(hub):
        return Asked(folder, hub.url, **options)


def large(n_bytes: int = 200_000) -> dict[str, bytes]:
    """One weight file that takes a while."""
    return model_files() | {"model.safetensors": random.Random(0).randbytes(n_bytes)}  # noqa: S311


def test_a_body_that_is_cut_is_resumed_where_it_was(tmp_path: Path) -> None:
    files = large(1_500_000)
    # Slow enough that the client has read some of it when the reset comes, and discards the rest.
    hub = Hub(files, bodies=["reset", "short"], bytes_per_s=1_500_000)
    asked = asked_of(tmp_path, hub)
    assert (asked.facts.revision, asked.waits) == (COMMIT, [])
    assert len(hub.ranges) == 2
    weights = base_of(tmp_path) / "snapshots" / COMMIT / "model.safetensors"
    assert weights.read_bytes() == files["model.safetensors"]
    assert not unfinished(base_of(tmp_path))


def test_a_body_that_falls_silent_is_a_stall_and_begun_anew(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(large(), bodies=["silent"]), stall_s=1.0)
    assert asked.facts.revision == COMMIT
    assert len(asked.waits) == 1
    assert "no new byte for 1 s (BOOT_STALL_TIMEOUT_S)" in asked.said[-1]
    assert "without Xet" in asked.said[-1]
    assert not unfinished(base_of(tmp_path))


def test_a_hub_that_says_nothing_is_temporary_and_ends_in_time(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(FILES, silent=True), stall_s=0.3)
    assert (asked.code, len(asked.waits)) == (ExitCode.TEMPFAIL, 4)


def test_a_slow_trickle_is_no_stall(tmp_path: Path) -> None:
    """All of it is less than one piece of what the client writes at a time."""
    asked = asked_of(tmp_path, Hub(large(50_000), bytes_per_s=25_000), stall_s=1.0)
    assert (asked.facts.revision, asked.waits) == (COMMIT, [])


def test_the_deadline_ends_a_download_and_says_which_setting(tmp_path: Path) -> None:
    with serving(Hub(large(1_000_000), bytes_per_s=25_000)) as hub:
        asked = Asked(tmp_path, hub.url, limit_s=3)
        assert asked.code == ExitCode.TEMPFAIL
        assert "BOOT_CACHE_TIMEOUT_S=3" in asked.first.reason
        assert "raise BOOT_CACHE_TIMEOUT_S" in asked.first.next_step
        assert not unfinished(base_of(tmp_path))
        hub.bytes_per_s = 0
        assert Asked(tmp_path, hub.url).facts.revision == COMMIT


def test_a_busy_hub_is_asked_again_when_it_said(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(FILES, answers=[(429, {"Retry-After": "17"})]))
    assert asked.facts.revision == COMMIT
    assert len(asked.waits) == 1
    assert 17 <= asked.waits[0] <= 18
    assert "HTTP 429" in asked.said[-1]


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (503, "try again later; a filled cache needs no hub"),
        (507, "try again later; a filled cache needs no hub"),
        (429, "try again later: all jobs of the token's account share its rate limit"),
    ],
)
def test_what_the_hub_said_outlasts_a_deadline_that_falls_into_a_later_attempt(
    tmp_path: Path, status: int, step: str
) -> None:
    with serving(Hub(FILES, answers=[(status, {})])) as hub:

        def wait(_seconds: float) -> None:
            hub.silent = True  # from here on nothing is answered

        asked = Asked(tmp_path, hub.url, limit_s=5.0, wait=wait)
    assert asked.code == ExitCode.TEMPFAIL
    assert f"HTTP {status}" in asked.first.reason
    told = "tried 2 times before the deadline (BOOT_CACHE_TIMEOUT_S=5)"
    assert asked.first.actual.endswith(told)
    assert asked.first.next_step.startswith(step)


def test_a_hub_that_fails_with_every_file_up_to_the_deadline_is_told_by_that(
    tmp_path: Path,
) -> None:
    """It has listed the files, so that they look like a slow download."""
    asked = asked_of(tmp_path, Hub(FILES, of_files=[(503, {})] * 99), limit_s=3.0)
    assert asked.code == ExitCode.TEMPFAIL
    assert "HTTP 503" in asked.first.actual
    assert "before the deadline (BOOT_CACHE_TIMEOUT_S=3)" in asked.first.actual
    assert asked.first.next_step == "try again later; a filled cache needs no hub"


def test_a_slow_download_after_a_refusal_tells_both(tmp_path: Path) -> None:
    hub = Hub(large(1_000_000), answers=[(503, {})], bytes_per_s=25_000)
    asked = asked_of(tmp_path, hub, limit_s=5.0)
    assert asked.code == ExitCode.TEMPFAIL
    assert "not complete at the deadline (BOOT_CACHE_TIMEOUT_S=5)" in asked.first.actual
    assert "before that, HTTP 503" in asked.first.actual
    assert "raise BOOT_CACHE_TIMEOUT_S" in asked.first.next_step


def test_a_hub_that_refuses_every_time_is_told_with_how_often(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(FILES, always=(503, {})))
    assert (asked.code, len(asked.waits)) == (ExitCode.TEMPFAIL, 4)
    assert asked.first.actual.endswith(", tried 5 times")


@pytest.mark.parametrize(("token", "told"), [(TOKEN, False), (None, True)])
def test_a_token_is_advised_against_a_rate_limit_to_whom_has_none(
    tmp_path: Path, token: str | None, told: bool
) -> None:
    hub = Hub(FILES, always=(429, {"Retry-After": "59"}))
    asked = asked_of(tmp_path, hub, token=token)
    assert ("HF_TOKEN raises" in asked.first.next_step) == told
    assert asked.first.actual.endswith(
        "tried once before the deadline (BOOT_CACHE_TIMEOUT_S=60); it asks to wait for 59 s"
    )


def test_its_own_rate_limit_counts_too(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(FILES, answers=[(429, {"RateLimit": '"api";r=0;t=19'})]))
    assert asked.facts.revision == COMMIT
    assert 19 <= asked.waits[0] <= 20


@pytest.mark.parametrize("after", ["3600", "59"])
def test_a_hub_that_asks_for_more_than_there_is_time_is_not_waited_for(
    tmp_path: Path, after: str
) -> None:
    asked = asked_of(tmp_path, Hub(FILES, always=(429, {"Retry-After": after})))
    assert (asked.code, asked.waits) == (ExitCode.TEMPFAIL, [])
    assert "HTTP 429" in asked.first.actual


def test_the_token_goes_to_the_hub_alone_and_nobody_else_is_asked(tmp_path: Path) -> None:
    hub = Hub(FILES)
    asked = asked_of(tmp_path, hub, environ={"HF_TOKEN": TOKEN})
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert hub.tokens_elsewhere == {""}
    ours = ("/api/models/org/tiny", "/org/tiny/resolve/", "/cdn/")
    paths = {request.partition(" ")[2] for request in hub.requests}
    assert not [path for path in paths if not path.startswith(ours)]
    assert TOKEN not in repr(asked.facts) + repr(asked.said)


def lock_of(folder: Path, body: bytes) -> Path:
    """The lock that the client takes to download a file with this content."""
    locks = folder / "hub" / ".locks" / "models--org--tiny"
    locks.mkdir(parents=True)
    return locks / f"{sha256(body)}.lock"


def test_a_download_that_another_boot_holds_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """It may have been stopped, or be of a host that is gone."""
    files = large()
    lock = lock_of(tmp_path, files["model.safetensors"])
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asked = asked_of(tmp_path, Hub(files), stall_s=1.0)
    assert asked.facts.revision == COMMIT
    assert len(asked.waits) == 1
    assert str(lock) in asked.said[-1]


def test_progress_of_another_boot_in_the_same_folder_is_progress(tmp_path: Path) -> None:
    files = large()
    lock = lock_of(tmp_path, files["model.safetensors"])
    growing = base_of(tmp_path) / "blobs" / "other.12345678.incomplete"
    growing.parent.mkdir(parents=True)
    done = threading.Event()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def other() -> None:
            for number in range(1, 26):
                growing.write_bytes(bytes(number * 1000))
                done.wait(0.1)
            growing.unlink()
            fcntl.flock(held, fcntl.LOCK_UN)

        thread = threading.Thread(target=other)
        thread.start()
        asked = asked_of(tmp_path, Hub(files), stall_s=1.0)
        thread.join()
    assert (asked.facts.revision, asked.waits) == (COMMIT, [])


def test_a_disk_without_room_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    hub = Hub(FILES)
    rows = [row | {"size": 10**15} for row in hub.rows()]
    hub.rows = lambda: rows  # type: ignore[method-assign]
    asked = asked_of(tmp_path, hub)
    assert asked.code == ExitCode.IOERR
    assert "free" in asked.findings["cache.room"].reason
    assert "GiB" in asked.findings["cache.room"].actual
    assert "was not downloaded" in asked.first.reason
    assert not (base_of(tmp_path) / "blobs").exists()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_that_shows_its_name_alone_is_no_permission(
    tmp_path: Path, status: int
) -> None:
    gated = [(status, {"X-Error-Code": "GatedRepo"})] * 20
    asked = asked_of(tmp_path, Hub(FILES, of_files=gated))
    assert (asked.code, asked.waits) == (ExitCode.NOPERM, [])
    assert "licence" in asked.first.next_step


def test_without_a_token_the_next_step_is_to_set_one(tmp_path: Path) -> None:
    hub = Hub(FILES, always=(401, {"X-Error-Code": "GatedRepo"}))
    asked = asked_of(tmp_path, hub, token=None)
    assert asked.first.next_step.startswith("set HF_TOKEN")
    assert hub.tokens == {""}


@pytest.mark.parametrize("status", [429, 503])
def test_a_file_that_cannot_be_had_at_once_is_asked_for_again(tmp_path: Path, status: int) -> None:
    hub = Hub(FILES, of_files=[(status, {})] * 2)
    assert asked_of(tmp_path, hub).facts.revision == COMMIT


def test_a_file_that_the_listing_promises_and_the_hub_has_not_is_absent(tmp_path: Path) -> None:
    hub = Hub(FILES, of_files=[(404, {"X-Error-Code": "EntryNotFound"})])
    assert asked_of(tmp_path, hub).code == ExitCode.NOINPUT


def test_what_a_killed_process_left_long_ago_is_removed(tmp_path: Path) -> None:
    blobs = base_of(tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    for name, hours in (("old", 25), ("new", 1)):
        path = blobs / f"{name}.12345678.incomplete"
        path.touch()
        then = time.time() - hours * 3600
        os.utime(path, (then, then))
    assert asked_of(tmp_path, Hub(FILES)).facts.revision == COMMIT
    assert [path.name for path in unfinished(base_of(tmp_path))] == ["new.12345678.incomplete"]


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
    asked = asked_of(tmp_path, Hub(FILES), environ={"HF_HUB_ETAG_TIMEOUT": "30s"})
    assert asked.code == ExitCode.CONFIG


ASKED, MAPPED = "unsloth/gemma-3n-E2B-it", "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit"


@pytest.mark.parametrize(
    ("there", "told"), [(("v1",), "which has it"), (("main",), "which has none either")]
)
def test_a_revision_of_the_unmapped_repository_alone_names_both(
    tmp_path: Path, there: tuple[str, ...], told: str
) -> None:
    hub = Hub(FILES, revisions={MAPPED: ("main",), ASKED: there})
    asked = asked_of(tmp_path, hub, model=ASKED, hardware="h100", revision="v1")
    assert asked.code == ExitCode.NOINPUT
    assert f"{MAPPED} has no revision v1" in asked.first.reason
    assert f"maps {ASKED} to ({told})" in asked.first.reason


@pytest.mark.parametrize(
    ("four", "asked_for", "name"),
    [
        (True, ASKED, f"{MAPPED} (Unsloth's 4-bit repository of {ASKED})"),
        (False, MAPPED, f"{ASKED} (Unsloth's 16-bit repository of {MAPPED})"),
        (True, MAPPED, MAPPED),
    ],
)
def test_a_mapped_name_that_is_not_there_says_whose_it_is(
    tmp_path: Path, four: bool, asked_for: str, name: str
) -> None:
    plan: dict[str, Any] = {"model": asked_for, "hardware": "h100", "load_in_4bit": four}
    asked = Asked(tmp_path, download="never", **plan)
    assert asked.code == ExitCode.NOINPUT
    assert asked.first.reason.startswith(f"{name} at main is not in the cache")
    asked = asked_of(tmp_path, Hub({}, always=(403, {})), **plan)
    assert asked.first.reason.startswith(f"{name} at main could not be had from 127.0.0.1: ")


def test_a_revision_of_the_mapped_repository_is_loaded_and_said(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, Hub(FILES), model=ASKED, hardware="h100", revision="v1").facts
    assert (facts.revision, facts.model_id) == (COMMIT, MAPPED)
    assert "BOOT_REVISION v1 is a revision of that" in facts.reason


def test_a_hub_that_names_no_commit_is_none(tmp_path: Path) -> None:
    asked = asked_of(tmp_path, Hub(FILES, always=(200, {}), page=b'["a list"]'))
    assert (asked.code, asked.waits) == (ExitCode.CONFIG, [])
    assert "what answers there is no hub" in asked.first.next_step
