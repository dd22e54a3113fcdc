"""The host stage: real folders, a real foreign uid, a real full disk where root can mount one."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.host import CHECKS
from app.facts.host import CacheFolders, Folder, FolderFacts, HostFacts, MemoryFacts, cache_folders
from app.facts.job_target import JobTargetFacts
from app.facts.node import AccountFacts, ClockFacts, LimitFacts
from app.outcome import Fault, Status
from app.plan import Baked
from app.probes.folders import probe_folder, write_through
from app.probes.host import probe_host
from app.probes.memory import probe_memory
from app.probes.mounts import Mount, kind_of, mounts
from app.profiles import CPU, GIB, H100, V100
from tests.fakes_preflight import findings, plan_for

ROOT = os.getuid() == 0
REPOSITORY = Path(__file__).resolve().parents[1]


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


def test_a_usable_node_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    plan = plan_for(report_dir=tmp_path / "deep" / "reports")
    facts = probe_host(plan, environment(tmp_path))
    said = findings(CHECKS, facts, plan)
    bad = {Status.FAIL, Status.ERROR, Status.WARN}
    assert not [name for name, finding in said.items() if finding.status in bad]
    assert said["host.job"].status is Status.SKIP
    assert said["host.report_dir"].status is said["host.caches_writable"].status is Status.PASS
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert facts.account.uid == os.getuid()
    assert facts.memory.total_bytes


def in_child_as_uid(code: str, uid: int = 54321) -> str:
    """Run code in a process of a uid that has no account.

    Modules first, uid second: a test machine's Python may lie in a home that only root may read.
    """
    modules = (
        "import os; from pathlib import Path; from app.checks.host import CHECKS; "
        "from app.facts.host import cache_folders; "
        "from app.probes.folders import probe_folder; from app.probes.host import probe_host; "
        "from app.profiles import CPU; "
        "from tests.fakes_preflight import plan_for"
    )
    script = f"{modules}; os.setgid({uid}); os.setuid({uid}); {code}"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        cwd=REPOSITORY,
        env={"HOME": "/", "PYTHONPATH": f"{REPOSITORY}:{os.pathsep.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.skipif(not ROOT, reason="only root can become another uid")
def test_a_foreign_uid_without_account_is_told_what_it_cannot_write() -> None:
    out = in_child_as_uid(
        "plan = plan_for(report_dir=Path('/root-only-reports')); "
        "wanted = ('host.report_dir', 'host.caches_writable'); "
        "facts = probe_host(plan, {'HOME': '/'}); "
        "print(facts.account.uid, facts.report.errno, "
        "[c.judge(facts, plan).status.value for c in CHECKS if c.id in wanted], "
        "[f.folder.path for f in facts.caches if f.problem][0])"
    )
    assert out == f"54321 {errno.EACCES} ['fail', 'fail'] /.cache/huggingface/hub"


@pytest.mark.skipif(not ROOT, reason="only root can become another uid")
def test_without_home_and_account_the_literal_tilde_is_a_fault() -> None:
    out = in_child_as_uid("print(probe_folder(cache_folders({}, CPU).hub).problem)")
    assert "'~/.cache/huggingface/hub' is not an absolute path" in out
    assert "HOME is unset" in out


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def a_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small disk of its own, with these options."""
    place = tmp_path / "small"
    place.mkdir()

    def mounted(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=False
        )
        if done.returncode:
            pytest.skip("mounting a tmpfs is not allowed here")
        return place

    yield mounted
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def small_disk(a_tmpfs: Callable[[str], Path]) -> Path:
    """A tmpfs of 8 KiB."""
    return a_tmpfs("size=8k")


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_mount_with_noexec_fails_where_code_is_generated(
    a_tmpfs: Callable[[str], Path], tmp_path: Path
) -> None:
    """A shared object there is refused, as the loader refuses it; a rehearsal loads none."""
    place = a_tmpfs("noexec")
    bad = probe_folder(Folder("Triton's kernels", str(place), "TRITON_CACHE_DIR"))
    good = probe_folder(Folder("Triton's kernels", str(tmp_path), "TRITON_CACHE_DIR"))
    assert (bad.problem, bad.executable, good.executable) == ("", False, True)
    subprocess.run(["gcc", "-shared", "-x", "c", "-o", place / "a.so", "/dev/null"], check=True)
    code = f"import ctypes; ctypes.CDLL({str(place / 'a.so')!r})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert loaded.returncode
    assert b"failed to map segment" in loaded.stderr
    facts = facts_with(caches=(bad,))
    found = findings(CHECKS, facts, plan_for("v100"))["host.caches_executable"]
    assert found.status is Status.FAIL
    assert "TRITON_CACHE_DIR" in found.next_step
    said = findings(CHECKS, facts, plan_for("cpu"))
    assert said["host.caches_executable"].status is Status.SKIP


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_disk_without_inodes_cannot_be_written(a_tmpfs: Callable[[str], Path]) -> None:
    place = a_tmpfs("size=1m,nr_inodes=1")
    found = probe_folder(Folder("cache", str(place), "HF_HOME"))
    assert (found.errno, found.free_inodes) == (errno.ENOSPC, 0)
    assert found.free_bytes


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_full_disk_is_the_disks_fault_and_leaves_nothing(small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(b"x" * 8192)
    found = probe_folder(Folder("cache", str(small_disk), "HF_HOME"))
    assert found.errno == errno.ENOSPC
    assert [path.name for path in small_disk.iterdir()] == ["fill"]
    facts = facts_with(caches=(found,))
    finding = findings(CHECKS, facts, plan_for())["host.caches_writable"]
    assert finding.fault is Fault.READ_ERROR


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_read_only_mount_is_seen_even_by_root(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = probe_folder(Folder("report", str(small_disk), "BOOT_REPORT_DIR"))
    assert found.errno == errno.EROFS
    finding = findings(CHECKS, facts_with(report=found), plan_for())["host.report_dir"]
    assert finding.status is Status.FAIL
    assert str(small_disk) in finding.reason


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = probe_folder(Folder("cache", str(tmp_path / "file" / "below"), "HF_HOME"))
    assert found.errno == errno.ENOTDIR


@pytest.mark.parametrize("name", ["a\nb", "x" * 5000])
def test_a_path_of_any_kind_stands_on_one_line_and_is_cut(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    for path in (str(tmp_path / "file" / name), name):
        found = probe_folder(Folder("cache", path, "HF_HOME"))
        assert found.problem.isprintable()
        assert len(found.problem) < 500


def test_the_step_for_caches_names_the_fewest_variables(tmp_path: Path) -> None:
    """One moves several, HOME where the folders lie below it, and none moves the temporary one."""
    (tmp_path / "file").touch()
    bad = str(tmp_path / "file")

    def step(environ: dict[str, str]) -> str:
        found = probe_host(plan_for(report_dir=tmp_path / "reports"), environ)
        return findings(CHECKS, found, plan_for())["host.caches_writable"].next_step

    good = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    assert step(good | {"HOME": bad}).startswith("set XDG_CACHE_HOME (or HOME) to ")
    assert step(good | {"XDG_CACHE_HOME": bad}).startswith("set XDG_CACHE_HOME to ")
    assert step(good | {"TMPDIR": bad}).startswith("set TMPDIR to ")
    assert step(good | {"TRITON_CACHE_DIR": "x"}).startswith("set TRITON_CACHE_DIR to ")
    unset = {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": bad}
    assert step(unset).startswith("set HF_HOME to ")


def test_an_account_that_is_not_there_is_told_as_such() -> None:
    found = probe_folder(Folder("cache", "~somebody/hf", "HF_HOME"))
    assert "no account somebody" in found.problem


def test_a_folder_that_cannot_be_used_is_not_told_to_be_full_besides() -> None:
    """What its file system has free is of no matter then."""
    bad = FolderFacts(Folder("hub", "/proc/x", "HF_HOME"), "no", errno.ENOENT, free_bytes=0)
    facts = facts_with(caches=(bad, on_a_disk(1, "code", 100 * GIB)))
    hub = plan_for("h100", model="org/model")
    assert findings(CHECKS, facts, hub)["host.disk"].status is Status.PASS


def test_a_link_that_leads_nowhere_is_told_as_such(tmp_path: Path) -> None:
    """Making the folder answers that something is there already."""
    (tmp_path / "link").symlink_to("/no/such/volume")
    found = probe_folder(Folder("cache", str(tmp_path / "link" / "hub"), "HF_HOME"))
    assert "a link to /no/such/volume, where nothing is" in found.problem


def test_paths_that_utf8_cannot_carry_are_settings_and_shown(tmp_path: Path) -> None:
    odd = tmp_path / b"\xff".decode(errors="surrogateescape")
    plan = plan_for(report_dir=odd / "reports")
    facts = probe_host(plan, {"HOME": str(odd), "TMPDIR": str(tmp_path)})
    said = findings(CHECKS, facts, plan)
    for check in ("host.report_dir", "host.caches_writable"):
        assert said[check].status is Status.FAIL
        assert f"{tmp_path}/\\udcff/" in said[check].reason
        assert "UTF-8" in said[check].next_step
        repr(said[check]).encode()
    assert said["host.report_dir"].fault is Fault.CONFIG
    assert said["host.caches_writable"].fault is None  # the check's own, which is CONFIG
    assert not odd.exists()


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EIO, "look at the mount"),
        (errno.ESTALE, "look at the mount"),
        (errno.EACCES, "mount a folder that uid"),
        (errno.EROFS, "mount a folder that uid"),
        (None, "mount a folder that uid"),
    ],
)
def test_the_step_for_the_report_folder_follows_the_systems_number(
    number: int | None, step: str
) -> None:
    report = FolderFacts(Folder("report", "/r", "BOOT_REPORT_DIR"), "no", number)
    finding = findings(CHECKS, facts_with(report=report), plan_for())["host.report_dir"]
    assert finding.next_step.startswith(step)
    assert "BOOT_REPORT_DIR" in finding.next_step


@pytest.mark.skipif(not ROOT, reason="only root can become another uid")
def test_a_folder_that_may_be_written_and_not_listed_is_a_good_one(open_folder: Path) -> None:
    place = open_folder / "inbox"
    place.mkdir()
    place.chmod(0o733)
    code = (
        f"from app.facts.host import Folder; print(probe_folder(Folder('x', {str(place)!r}, 'X')))"
    )
    assert "problem=''" in in_child_as_uid(code)


def test_what_killed_boots_have_left_goes_when_it_is_old(tmp_path: Path) -> None:
    old, new, folder = (tmp_path / f".bootguard-probe-{name}" for name in ("old", "new", "c"))
    folder.mkdir()
    for each in (old, new, folder / "of-a-compiler"):
        each.touch()
    for each in (old, folder):
        os.utime(each, (0, 0))
    write_through(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no"), MemoryError("no")], ids=repr)
def test_a_failed_rename_leaves_no_probe_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise error

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(type(error), match="no"):
        write_through(tmp_path)
    assert not list(tmp_path.iterdir())


def facts_with(
    *,
    report: FolderFacts | None = None,
    caches: tuple[FolderFacts, ...] = (),
    memory: MemoryFacts | None = None,
    job: JobTargetFacts | None = None,
) -> HostFacts:
    good = FolderFacts(Folder("cache", "/x", "X"), free_bytes=100 * GIB, total_bytes=200 * GIB)
    return HostFacts(
        account=AccountFacts(1),
        limits=LimitFacts(2),
        clock=ClockFacts(2.0, 1.0, "a file"),
        report=report or good,
        caches=caches or (good,),
        memory=memory or MemoryFacts(GIB, GIB),
        job=job,
    )


@pytest.mark.parametrize(
    ("baked", "device", "problem", "status"),
    [
        (True, 7, "", Status.WARN),  # nobody mounted it: it goes with the container
        (True, 8, "", Status.PASS),
        (True, None, "", Status.SKIP),
        (True, 7, "Permission denied", Status.SKIP),  # host.report_dir says it
        (False, 7, "", Status.SKIP),  # outside an image all may lie on one disk
    ],
)
def test_a_report_folder_that_nobody_mounted_is_named(
    baked: bool, device: int | None, problem: str, status: Status
) -> None:
    report = FolderFacts(Folder("report", "/reports", "BOOT_REPORT_DIR"), problem, device=device)
    facts = replace(facts_with(report=report), root_device=7)
    plan = replace(plan_for(), baked=Baked("x", {}, (), None) if baked else None)
    finding = findings(CHECKS, facts, plan)["host.report_mount"]
    assert finding.status is status
    if status is Status.WARN:
        assert "/reports is no mount" in finding.reason
        assert "-v" in finding.next_step


def test_the_device_of_the_root_is_read_for_it(tmp_path: Path) -> None:
    facts = probe_host(replace(plan_for(), report_dir=tmp_path), {"HOME": str(tmp_path)})
    assert facts.root_device == os.stat("/").st_dev  # noqa: PTH116 - the other way round
    assert facts.report.device == tmp_path.stat().st_dev


def test_little_room_warns_by_what_the_profile_needs() -> None:
    low = FolderFacts(Folder("hub", "/hub", "HF_HOME"), free_bytes=5 * GIB)
    facts = facts_with(caches=(low,))
    hub = plan_for("h100", model="org/model")
    assert findings(CHECKS, facts, hub)["host.disk"].status is Status.WARN
    assert findings(CHECKS, facts, plan_for("cpu"))["host.disk"].status is Status.PASS
    for plan in (
        plan_for("h100", model="/models/own"),
        plan_for("h100", model="org/model", download="never"),
    ):
        assert findings(CHECKS, facts, plan)["host.disk"].status is Status.PASS


def on_a_disk(device: int, purpose: str, free: int) -> FolderFacts:
    return FolderFacts(Folder(purpose, f"/{purpose}", "X"), free_bytes=free, device=device)


def test_folders_of_one_disk_share_its_room() -> None:
    """12.5 GiB hold the model, or the generated code and another GiB, but not both."""
    plan = plan_for("h100", model="org/model")
    free = 12 * GIB + GIB // 2
    apart = facts_with(caches=(on_a_disk(1, "hub", free), on_a_disk(2, "code", free)))
    shared = facts_with(caches=(on_a_disk(1, "hub", free), on_a_disk(1, "code", free)))
    assert findings(CHECKS, apart, plan)["host.disk"].status is Status.PASS
    found = findings(CHECKS, shared, plan)["host.disk"]
    assert found.status is Status.WARN
    assert "13.0 GiB on the disk of hub, code" in found.expected


def test_a_fuse_mount_that_reports_nothing_free_is_told_as_such() -> None:
    fuse = FolderFacts(Folder("hub", "/h", "HF_HOME"), free_bytes=0, file_system="fuse.gcsfuse")
    hub = plan_for("h100", model="org/model")
    found = findings(CHECKS, facts_with(caches=(fuse,)), hub)["host.disk"]
    assert found.status is Status.WARN
    assert "fuse.gcsfuse" in found.reason
    assert fuse.on_network


def test_few_inodes_are_named_where_bytes_abound() -> None:
    few = FolderFacts(Folder("hub", "/h", "HF_HOME"), free_bytes=100 * GIB, free_inodes=3)
    hub = plan_for("h100", model="org/model")
    found = findings(CHECKS, facts_with(caches=(few,)), hub)["host.disk"]
    assert found.status is Status.WARN
    assert "only 3 more files" in found.reason


@pytest.mark.parametrize(
    ("number", "status"),
    [(None, Status.PASS), (errno.ENOSYS, Status.PASS), (errno.ENOLCK, Status.WARN)],
)
def test_a_hub_cache_without_locks_warns_unless_its_client_has_another_way(
    number: int | None, status: Status
) -> None:
    hub = FolderFacts(Folder("hub", "/h", "HF_HOME"), file_system="nfs", lock_errno=number)
    assert (
        findings(CHECKS, facts_with(caches=(hub,)), plan_for())["host.cache_locks"].status is status
    )


def test_the_longest_mount_counts_and_of_those_the_last() -> None:
    table = (Mount("/", "overlay"), Mount("/a", "ext4"), Mount("/a/b", "nfs"), Mount("/a/b", "xfs"))
    places = {"/a/b/c": "xfs", "/a/b": "xfs", "/a/bc": "ext4", "/x": "overlay"}
    assert {place: kind_of(Path(place), table) for place in places} == places
    assert kind_of(Path("/x"), ()) == ""


def test_this_machines_own_mounts_are_read() -> None:
    table = mounts(Path("/proc"))
    assert kind_of(Path("/proc/self"), table) == "proc"
    assert probe_folder(Folder("temporary", "/tmp", "TMPDIR"), table).file_system  # noqa: S108


def test_unknown_room_and_memory_are_skipped_never_passed() -> None:
    blind = facts_with(caches=(FolderFacts(Folder("c", "/c", "C")),), memory=MemoryFacts())
    said = findings(CHECKS, blind, plan_for())
    assert said["host.disk"].status is Status.SKIP
    assert said["host.memory"].status is Status.SKIP


def paths(folders: CacheFolders) -> list[str]:
    return [folder.path for folder in folders.all()]


def test_defaults_lie_below_home_one_folder_per_profile() -> None:
    assert paths(cache_folders({"HOME": "/h"}, V100)) == [
        "/h/.cache/huggingface/hub",
        "/h/.cache/bootguard",
        "/h/.cache/bootguard/v100/unsloth",
        "/h/.cache/bootguard/v100/triton",
        "/h/.cache/bootguard/v100/inductor",
        "/tmp",  # noqa: S108
    ]
    assert cache_folders({"HOME": "/h"}, H100).unsloth.path.endswith("/h100/unsloth")


def test_the_users_variables_win_and_are_what_the_engine_pins() -> None:
    environ = {
        "HOME": "/h",
        "XDG_CACHE_HOME": "/x",
        "TRITON_CACHE_DIR": "/t",
        "TMPDIR": "/scratch",
        "UNSLOTH_COMPILE_LOCATION": "/u",
        "HF_HUB_CACHE": "/hub/$WHO",
        "WHO": "me",
    }
    folders = cache_folders(environ, CPU)
    assert paths(folders) == [
        "/hub/me",
        "/x/bootguard",
        "/u",
        "/t",
        "/x/bootguard/cpu/inductor",
        "/scratch",
    ]
    assert folders.environment() == {
        "UNSLOTH_COMPILE_LOCATION": "/u",
        "TRITON_CACHE_DIR": "/t",
        "TORCHINDUCTOR_CACHE_DIR": "/x/bootguard/cpu/inductor",
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$HOME/hf"},
        {"HF_HUB_CACHE": "/c"},
        {"HF_HOME": ""},
        {"XDG_CACHE_HOME": "/x"},
        {"HUGGINGFACE_HUB_CACHE": "/old"},
        {"XDG_CACHE_HOME": ""},
        {"HF_HUB_CACHE": "~"},
        {"HF_HOME": "~root/hf"},
        {"HF_HOME": "~root"},
        {"HF_HOME": "~no-such-account/hf"},
        {"HF_HUB_CACHE": "${HOME}/c"},
        {"HOME": "/"},
    ],
)
def test_the_hubs_own_client_resolves_the_same_folder(environ: dict[str, str]) -> None:
    environ = {"HOME": "/h"} | environ
    code = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    search = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | search,
        capture_output=True,
        text=True,
        check=True,
    )
    assert cache_folders(environ, CPU).hub.path == done.stdout.strip()


@pytest.mark.parametrize(
    "name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"]
)
def test_a_variable_that_is_set_to_nothing_is_to_be_unset(tmp_path: Path, name: str) -> None:
    """huggingface_hub takes it for a relative path; the others have it for unset."""
    plan = plan_for(report_dir=tmp_path)
    facts = probe_host(plan, {"HOME": str(tmp_path), name: ""})
    assert [found.folder.purpose for found in facts.caches if found.problem] == [
        "Hugging Face cache"
    ]
    found = findings(CHECKS, facts, plan)["host.caches_writable"]
    assert (found.status, found.next_step) == (Status.FAIL, f"unset {name}")
    assert name in found.reason


def test_a_temporary_folder_that_is_missing_is_named_and_not_made(tmp_path: Path) -> None:
    """No program makes one: Python takes another folder, without a word."""
    plan = plan_for(report_dir=tmp_path / "reports")
    place = tmp_path / "no" / "such"
    facts = probe_host(plan, {"HOME": str(tmp_path), "TMPDIR": str(place)})
    found = findings(CHECKS, facts, plan)["host.caches_writable"]
    assert found.reason == f"temporary files: No such file or directory ({place})"
    assert found.next_step.startswith("set TMPDIR to ")
    assert found.next_step.endswith(f"or make the folder {place}")
    assert not (tmp_path / "no").exists()


def test_a_boot_in_a_folder_that_was_removed_is_told_so(tmp_path: Path) -> None:
    """MKL ends the process there while torch is imported, and names a library of torch."""
    code = 'cd gone && rmdir ../gone && exec "$0" -m app.boot'
    for folder in (tmp_path / "reports", Path("reports")):
        (tmp_path / "gone").mkdir()
        done = subprocess.run(
            ["/bin/sh", "-c", code, sys.executable],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPATH": str(REPOSITORY),
                "BOOT_HARDWARE": "cpu",
                "BOOT_STOP_AFTER": "checkpoint",
                "BOOT_REPORT_DIR": str(folder),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        verdict = json.loads(done.stdout)
        assert (done.returncode, verdict["exit"]) == (78, 78)
        assert verdict["reason"] == "the working folder has no path: No such file or directory"
        assert "start in a folder that exists" in verdict["next_step"]


def test_a_working_folder_on_a_dead_mount_is_the_disks() -> None:
    facts = replace(facts_with(caches=()), working_folder_errno=errno.ESTALE)
    found = findings(CHECKS, facts, plan_for())["host.working_folder"]
    assert (found.status, found.fault) == (Status.FAIL, Fault.READ_ERROR)
    assert "mount" in found.next_step


TMP = "/tmp"  # noqa: S108 - the mount of a container's own


@pytest.mark.skipif(not ROOT, reason="only root can mount, and become another uid")
@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, {"XDG_CACHE_HOME"}),
        ({"HOME": "/"}, {"XDG_CACHE_HOME"}),
        ({"HOME": TMP}, set()),
        ({"HOME": "/", "XDG_CACHE_HOME": f"{TMP}/cache"}, set()),
        ({"HOME": TMP, "TRITON_CACHE_DIR": "/opt/x"}, {"TRITON_CACHE_DIR"}),
    ],
)
def test_a_root_that_is_read_only_is_mended_by_one_variable(
    environ: dict[str, str], names: set[str]
) -> None:
    """As `--read-only --tmpfs /tmp` gives it, for a uid without an account."""
    code = (
        "import json, os, sys; from pathlib import Path; from app.checks.host import CHECKS; "
        "from app.probes.host import probe_host; from app.outcome import Status; "
        "from tests.fakes_preflight import findings, plan_for; "
        "os.setgid(10001); os.setuid(10001); "
        "plan = plan_for(report_dir=Path('/tmp/reports')); "
        "facts = probe_host(plan, json.loads(sys.argv[1])); "
        "said = findings(CHECKS, facts, plan); "
        "print(json.dumps([[name, each.next_step] for name, each in said.items() "
        "if each.status is Status.FAIL]))"
    )
    # The checkout goes elsewhere first: it may itself lie below /tmp.
    elsewhere = "/mnt"
    mounts = (
        f'mount --bind "$3" {elsewhere} && cd {elsewhere} && '
        "mount -t tmpfs -o mode=1777 none /tmp && mount -o remount,bind,ro / && "
        'exec "$0" -B -c "$1" "$2"'
    )
    paths = [sys.executable, os.pathsep.join([str(REPOSITORY), *sys.path])]
    python, search = (path.replace(str(REPOSITORY), elsewhere) for path in paths)
    told = [code, json.dumps(environ), str(REPOSITORY)]
    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-c", mounts, python, *told],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mounts here")
    failed = json.loads(done.stdout)
    assert [name for name, _ in failed] == (["host.caches_writable"] if names else [])
    for _, step in failed:
        assert set(re.findall(r"[A-Z]+(?:_[A-Z]+)+|TMPDIR", step)) == names


GroupsT = Callable[[str, str, dict[str, str]], Path]


@pytest.fixture
def groups(tmp_path: Path) -> GroupsT:
    """Write a /proc and a control group tree; `mount` and `own` are templates."""

    def make(mount: str, own: str, files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 90 kB\n")
        (proc / "self" / "mountinfo").write_text(mount.replace("FS", str(tmp_path / "fs")))
        (proc / "self" / "cgroup").write_text(own)
        return proc

    return make


V2 = "31 23 0:28 / FS rw - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 {root} FS rw - cgroup cgroup rw,memory\n"


def test_the_smallest_limit_of_all_parents_counts(groups: GroupsT) -> None:
    proc = groups(V2, "0::/a/b\n", {
        "memory.max": "max", "a/memory.max": "40960", "a/memory.current": "30000",
        "a/memory.stat": "anon 1\ninactive_file 10000\n", "a/b/memory.max": "81920",
        "a/b/memory.current": "1",
    })  # fmt: skip
    found = probe_memory(proc)
    assert (found.total_bytes, found.limit_bytes, found.available_bytes) == (102400, 40960, 20960)
    assert found.limited_by.endswith("/fs/a/memory.max")


@pytest.mark.parametrize(
    ("root", "own"),
    [("/", "/job"), ("/docker/1", "/docker/1/job"), ("/docker/1", "/docker/1/job/../job")],
)
def test_version_1_and_a_mount_that_shows_a_part(groups: GroupsT, root: str, own: str) -> None:
    proc = groups(V1.format(root=root), f"4:memory:{own}\n0::/\n", {
        "memory.limit_in_bytes": "9223372036854771712", "job/memory.limit_in_bytes": "50000",
        "job/memory.usage_in_bytes": "60000",
    })  # fmt: skip
    found = probe_memory(proc)
    assert (found.limit_bytes, found.available_bytes) == (50000, 0)


def test_a_parent_that_a_containers_mount_does_not_show_limits_too(groups: GroupsT) -> None:
    """Version 1 tells it in the group's own account; the pod's limit is that of such a parent."""
    proc = groups(V1.format(root="/pod/c"), "4:memory:/pod/c\n", {
        "memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "10000",
        "memory.stat": "cache 1\nhierarchical_memory_limit 50000\n",
    })  # fmt: skip
    found = probe_memory(proc)
    assert (found.limit_bytes, found.available_bytes) == (50000, 40000)


@pytest.mark.parametrize(
    ("stat", "available"),
    [
        ("inactive_file 10000\nactive_file 5000\n", 25960),
        ("inactive_file 0\ntotal_inactive_file 10000\ntotal_active_file 1\n", 20961),
        ("active_file 5000\nshmem 9000\n", 15960),
        ("", 10960),
    ],
)
def test_cached_files_can_be_had_again(groups: GroupsT, stat: str, available: int) -> None:
    """Files in use of late too: what a job before this one has read is not lost to this one."""
    proc = groups(V2, "0::/a\n", {
        "a/memory.max": "40960", "a/memory.current": "30000", "a/memory.stat": stat,
    })  # fmt: skip
    assert probe_memory(proc).available_bytes == available


@pytest.mark.parametrize("text", ["", "nonsense", "a b c d e - cgroup2\n", "\0 - \0\n"])
def test_an_odd_proc_is_no_limit_and_no_crash(groups: GroupsT, text: str) -> None:
    assert probe_memory(groups(text, text, {})).limit_bytes is None
