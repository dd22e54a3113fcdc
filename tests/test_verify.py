"""Files of the cache against what the hub named them by, and the layout as we read it."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks.cache import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.cache import CacheFacts, RoomFacts, VerifyFacts
from app.outcome import Finding, Status
from app.probes.fetch_progress import File, Progress, Teller
from app.probes.fetch_request import Means
from app.probes.hub_cache import find_snapshot, read_listing, wanted
from app.probes.room import room_of
from app.probes.verify import verify
from tests.cache_stage import Asked, base_of
from tests.fake_hub import COMMIT, git_hash, sha256
from tests.fakes_preflight import PLAIN, model_files, plan_for
from tests.rights import without_rights

FILES = model_files(PLAIN, n_shards=2)
SHARD = "model-00001-of-00002.safetensors"


def cached(
    folder: Path, files: dict[str, bytes], *, listing: bool = True, links: bool = True
) -> Path:
    """A cache as the client leaves it; the snapshot's folder."""
    base = folder / "hub" / "models--org--tiny"
    snapshot = base / "snapshots" / COMMIT
    listed: dict[str, Any] = {}
    for name, body in files.items():
        is_large = name.endswith(".safetensors")
        digest = sha256(body) if is_large else git_hash(body)
        blob = base / "blobs" / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(body)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if links:
            link.symlink_to(Path("../../blobs") / digest)
        else:
            link.write_bytes(body)
        listed[name] = {"size": len(body), "blob_id": "9" * 40 if is_large else digest}
        if is_large:
            listed[name] |= {"lfs_sha256": digest, "lfs_size": len(body)}
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(COMMIT)
    if listing:
        (base / "trees").mkdir()
        tree = {"format_version": 1, "files": listed}
        (base / "trees" / f"{COMMIT}.json").write_text(json.dumps(tree))
    return snapshot


def ask(folder: Path, **plan: Any) -> Asked:
    """What comes of the cache alone."""
    return Asked(folder, **{"download": "never"} | plan)


@pytest.mark.parametrize("how", ["size", "sha256"])
@pytest.mark.parametrize("links", [True, False])
def test_files_as_the_hub_gave_them_pass(tmp_path: Path, how: str, links: bool) -> None:
    cached(tmp_path, FILES, links=links)
    asked = ask(tmp_path, verify=how)
    assert (asked.code, asked.findings["cache.verified"].status) == (None, Status.PASS)
    assert asked.facts.verified is not None
    assert asked.facts.verified.n_compared == len(FILES)
    assert asked.facts.verified.n_bytes == sum(map(len, FILES.values()))


def test_a_file_that_was_cut_off_is_named_with_what_to_delete(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, FILES)
    blob = (snapshot / SHARD).resolve()
    blob.write_bytes(FILES[SHARD][:-1])
    asked = ask(tmp_path)
    assert asked.code == ExitCode.DATAERR
    found = asked.findings["cache.verified"]
    assert SHARD in found.reason
    assert f"{len(FILES[SHARD]) - 1:,} bytes, not {len(FILES[SHARD]):,} bytes" in found.actual
    assert str(snapshot / SHARD) in found.next_step
    assert str(blob) in found.next_step
    blob.unlink()
    (snapshot / SHARD).unlink()
    assert ask(tmp_path).code == ExitCode.NOINPUT  # allowed to download, it would come anew


@pytest.mark.parametrize("name", [SHARD, "tokenizer.json"])
@pytest.mark.parametrize("listing", [True, False])
def test_a_flipped_bit_is_seen_by_the_hash_alone(tmp_path: Path, name: str, listing: bool) -> None:
    snapshot = cached(tmp_path, FILES, listing=listing)
    body = bytearray(FILES[name])
    body[-1] ^= 1
    (snapshot / name).resolve().write_bytes(body)
    assert ask(tmp_path, verify="size").code is None
    asked = ask(tmp_path, verify="sha256")
    assert asked.code == ExitCode.DATAERR
    assert name in asked.first.reason
    assert ask(tmp_path, verify="off").code is None


def test_without_a_listing_sizes_have_nothing_to_compare_with(tmp_path: Path) -> None:
    cached(tmp_path, FILES, listing=False)
    asked = ask(tmp_path)
    found = asked.findings["cache.verified"]
    assert (asked.code, found.status) == (None, Status.SKIP)
    assert "listing" in found.reason
    assert ask(tmp_path, verify="sha256").findings["cache.verified"].status is Status.PASS


def test_copies_without_a_listing_have_nothing_to_compare_with(tmp_path: Path) -> None:
    cached(tmp_path, FILES, listing=False, links=False)
    asked = ask(tmp_path, verify="sha256")
    assert asked.findings["cache.verified"].status is Status.SKIP


def test_a_plain_folder_has_nothing_to_compare_with(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, FILES)
    shutil.copytree(snapshot, tmp_path / "model")
    asked = ask(tmp_path, model=str(tmp_path / "model"), verify="sha256")
    assert (asked.code, asked.findings["cache.verified"].status) == (None, Status.SKIP)
    # A snapshot that is given by its path is compared like any other.
    asked = ask(tmp_path, model=str(snapshot), verify="sha256")
    assert asked.findings["cache.verified"].status is Status.PASS


def test_a_missing_file_of_a_snapshot_given_by_its_path_is_no_broken_one(tmp_path: Path) -> None:
    """The checkpoint stage says that it is missing."""
    snapshot = cached(tmp_path, FILES)
    (snapshot / SHARD).resolve().unlink()
    asked = ask(tmp_path, model=str(snapshot), verify="sha256")
    assert asked.code is None
    assert asked.facts.missing == (SHARD,)


def test_hashing_ends_before_the_deadline_and_is_no_pass(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, FILES)
    files = ask(tmp_path).facts.files
    found = verify(snapshot, files, "sha256", Means(limit_s=0))
    said = judged(CacheFacts("a", "a", "hub", "", folder=snapshot, verified=found))
    assert said["cache.verified"].status is Status.ERROR
    assert "raise BOOT_CACHE_TIMEOUT_S" in said["cache.verified"].next_step


def judged(facts: CacheFacts) -> dict[str, Finding]:
    plan = plan_for(verify="sha256")
    return {check.id: check.judge(facts, plan) for check in CHECKS}


def test_a_file_that_cannot_be_read_is_not_a_broken_one(tmp_path: Path) -> None:
    found = VerifyFacts(1, 1, problem="x: I/O error", errno=errno.EIO)
    said = judged(CacheFacts("a", "a", "hub", "", folder=tmp_path, verified=found))
    finding = said["cache.verified"]
    assert finding.status is Status.ERROR
    assert finding.fault is not None
    assert exit_code(finding.fault) == ExitCode.IOERR


# Rights.


@contextmanager
def denied(path: Path, mode: int) -> Iterator[None]:
    """Without rights, and with this one shut."""
    path.chmod(mode)
    try:
        with without_rights():
            yield
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("download", ["never", "if-missing"])
@pytest.mark.parametrize("shut", [".", "refs", "snapshots", f"snapshots/{COMMIT}", "blobs"])
def test_a_cache_that_may_not_be_entered_is_a_matter_of_rights(
    outside: Path, shut: str, download: str, listing: bool
) -> None:
    """And the hub, which is not there, is not asked."""
    cached(outside, FILES, listing=listing)
    with denied(base_of(outside) / shut, 0o000):
        asked = ask(outside, download=download)
    assert asked.code == ExitCode.CONFIG
    found = asked.findings["cache.resolved"]
    assert f"Permission denied at {base_of(outside)}" in found.reason
    assert "give this uid the right" in found.next_step
    assert asked.said == []


@pytest.mark.parametrize("listing", [True, False])
def test_a_snapshot_that_may_be_entered_and_not_listed_is_named(
    outside: Path, listing: bool
) -> None:
    snapshot = cached(outside, FILES, listing=listing)
    with denied(snapshot, 0o311):
        asked = ask(outside)
    assert asked.code == ExitCode.CONFIG
    assert f"{snapshot} cannot be listed" in asked.findings["cache.complete"].reason


def test_a_disk_that_does_not_answer_is_a_read_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, FILES)

    def stale(_path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle", "/cache/x")

    monkeypatch.setattr(Path, "is_dir", stale)
    asked = ask(tmp_path)
    assert asked.code == ExitCode.IOERR
    assert "Stale file handle at /cache/x" in asked.findings["cache.resolved"].reason


# The layout.


def test_a_ref_is_needed_for_a_name_and_not_for_a_commit(tmp_path: Path) -> None:
    cached(tmp_path, FILES)
    shutil.rmtree(tmp_path / "hub" / "models--org--tiny" / "refs")
    assert ask(tmp_path, revision=COMMIT).facts.revision == COMMIT
    asked = ask(tmp_path)
    assert asked.code == ExitCode.NOINPUT
    assert f"BOOT_REVISION={COMMIT}" in asked.first.next_step


@pytest.mark.parametrize("content", ["", "main", "A" * 40, f"{'a' * 40}/../../x", "\0"])
def test_a_ref_that_names_no_commit_is_none(tmp_path: Path, content: str) -> None:
    cached(tmp_path, FILES)
    (tmp_path / "hub" / "models--org--tiny" / "refs" / "main").write_text(content)
    assert ask(tmp_path).code == ExitCode.NOINPUT


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SHARD])
@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("dangling", [True, False])
def test_a_snapshot_that_lacks_a_file_is_not_complete(
    tmp_path: Path, name: str, listing: bool, dangling: bool
) -> None:
    snapshot = cached(tmp_path, FILES, listing=listing)
    (snapshot / name).resolve().unlink()
    if not dangling:
        (snapshot / name).unlink()
    asked = ask(tmp_path)
    assert asked.code == ExitCode.NOINPUT
    told = "a tokenizer" if name == "tokenizer.json" and not listing else name
    assert told in asked.first.actual


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_page_saved_as_a_file_is_there_and_left_to_the_checkpoint_stage(
    tmp_path: Path, name: str
) -> None:
    """The hub is not asked for it, so that it is told in a second."""
    page = b"<!doctype html><title>Sign in</title>"
    cached(tmp_path, FILES | {name: page}, listing=False)
    assert ask(tmp_path).facts.folder is not None


def test_an_unfinished_download_of_something_else_harms_no_complete_snapshot(
    tmp_path: Path,
) -> None:
    snapshot = cached(tmp_path, FILES)
    blobs = snapshot.parents[1] / "blobs"
    (blobs / f"{'1' * 64}.12345678.incomplete").write_bytes(b"x")
    assert ask(tmp_path).code is None
    (snapshot.parents[1] / "trees" / f"{COMMIT}.json").unlink()
    asked = ask(tmp_path)
    assert asked.code is None
    assert "beside 1 unfinished download" in asked.facts.reason


def test_where_it_may_be_asked_a_hub_decides_what_an_unfinished_download_is(
    tmp_path: Path,
) -> None:
    """Nobody answers, so that what is there is used, and that is said."""
    snapshot = cached(tmp_path, FILES, listing=False)
    (snapshot.parents[1] / "blobs" / f"{'1' * 64}.incomplete").write_bytes(b"x")
    asked = Asked(tmp_path)
    assert asked.facts.revision == COMMIT
    assert "unfinished" in asked.facts.reason
    assert any("ConnectError" in line for line in asked.said)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", '{"format_version": 2, "files": {}}', "[" * 100_000),
        *('{"format_version": 1}', '{"format_version": 1, "files": []}'),
        '{"format_version": 1, "files": {"a": {"size": "1", "blob_id": "x"}}}',
        '{"format_version": 1, "files": {"a": null}}',
    ],
)
def test_a_broken_listing_is_no_listing(tmp_path: Path, text: str) -> None:
    snapshot = cached(tmp_path, FILES)
    (snapshot.parents[1] / "trees" / f"{COMMIT}.json").write_text(text)
    assert read_listing(snapshot.parents[1], COMMIT) is None
    assert ask(tmp_path).code is None


def test_names_of_a_listing_stay_in_the_snapshot(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, FILES)
    entry = {"size": 1, "blob_id": "x"}
    tree = {"format_version": 1, "files": {"../x.json": entry, "/etc/x.json": entry}}
    (snapshot.parents[1] / "trees" / f"{COMMIT}.json").write_text(json.dumps(tree))
    assert read_listing(snapshot.parents[1], COMMIT) == {}


@given(st.text(max_size=60))
def test_no_revision_leads_out_of_the_cache(revision: str) -> None:
    assert find_snapshot("/nowhere", "org/tiny", revision) is None


def test_what_a_load_reads_is_wanted_and_nothing_else() -> None:
    names = [*FILES, "README.md", "pytorch_model.bin", "original/params.json", "onnx/m.json"]
    names += ["chat_template.jinja", "merges.txt", "checkpoint-5/model.safetensors"]
    assert set(wanted(names)) == {*FILES, "chat_template.jinja", "merges.txt"}
    pickles = ["config.json", "pytorch_model-00001-of-00002.bin", "training_args.bin"]
    assert wanted(pickles) == ["config.json"]
    assert wanted(pickles, pickles=True) == pickles[:2]
    assert wanted([*pickles, SHARD], pickles=True) == ["config.json", SHARD]


# Room.


def room(**changes: Any) -> Finding:
    facts = replace(RoomFacts("/x", 2**30, 2**40), **changes)
    return judged(CacheFacts("a", "a", "hub", "", room=facts))["cache.room"]


def test_room_is_judged_with_a_tenth_more() -> None:
    assert room().status is Status.PASS
    assert room(free_bytes=int(2**30 * 1.11)).status is Status.PASS
    assert room(free_bytes=int(2**30 * 1.09)).status is Status.FAIL
    assert room(free_bytes=0).status is Status.FAIL
    assert room(free_bytes=0, needed_bytes=0).status is Status.PASS


def test_a_file_system_that_does_not_tell_only_warns() -> None:
    assert room(free_bytes=0, fuse=True).status is Status.WARN
    assert room(free_bytes=None, problem="Function not implemented").status is Status.WARN
    assert room(free_bytes=1, fuse=True).status is Status.FAIL


def test_the_file_system_is_read_off_the_mount_table(tmp_path: Path) -> None:
    table = tmp_path / "self" / "mountinfo"
    table.parent.mkdir()
    for kind, is_fuse in [("ext4", False), ("fuse.gcsfuse", True), ("fuse", True)]:
        table.write_text(f"1 2 0:1 / {tmp_path} rw shared:1 - {kind} src rw\n")
        found = room_of(tmp_path / "not" / "there", 5, tmp_path)
        assert (found.folder, found.fuse) == (str(tmp_path), is_fuse)
        assert found.free_bytes
    table.write_text("odd\n")
    assert not room_of(tmp_path, 5, tmp_path).fuse


# Progress.


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_lines_come_every_few_seconds_with_rate_and_file() -> None:
    clock, said = Clock(), list[str]()
    teller = Teller("org/tiny", said.append, now=clock)
    progress = Progress((File("a.safetensors", 10_000_000, "blob", here=False),))
    for second in range(11):
        clock.seconds = second
        progress.done_bytes = second * 500_000
        progress.now = "a.safetensors"
        teller(progress)
    assert said == [
        "downloading org/tiny: 2.5 of 10.0 MB (25 %), 0.5 MB/s, a.safetensors",
        "downloading org/tiny: 5.0 of 10.0 MB (50 %), 0.5 MB/s, a.safetensors",
    ]


def test_progress_is_what_lies_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "one").write_bytes(bytes(10))
    (tmp_path / "blobs" / "two.1234.incomplete").write_bytes(bytes(7))
    (tmp_path / "blobs" / "two.5678.incomplete").write_bytes(bytes(3))
    files = (
        *(File("1", 10, "one", here=False), File("2", 20, "two", here=False)),
        File("3", 5, "three", here=True),
    )
    progress = Progress(files)
    names = [path.name for path in (tmp_path / "blobs").iterdir()]
    progress.measure(tmp_path, names, ["two.1234.incomplete"])
    assert (progress.done_bytes, progress.total_bytes, progress.now) == (22, 35, "2")
    assert progress.missing_bytes(tmp_path) == 20


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_says_what_makes_it_fail_and_what_to_do(check: Any) -> None:
    assert check.cause
    assert check.fix


def test_a_gone_file_system_is_a_fact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone(_path: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    statvfs: Callable[[object], None] = gone
    monkeypatch.setattr("os.statvfs", statvfs)
    assert room_of(tmp_path, 5).problem == "Input/output error"
