"""Facts about boots that Compose starts, on a real engine: whoever calls it, whatever is there.

`tests/compose_project.py` says what image that is. Elsewhere these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compose_project import Project, no_engine, project, small_image
from tests.containers.engine import docker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(no_engine()), reason=no_engine()),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make folders of other uids"),
]

BOOT_UID = 10001
YOU = 1000
NEW = "boot-report.json"
OLD = '{\n  "report_id": "older",\n  "run_id": "mine",\n  "attempt": 1\n}\n'


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with small_image() as tag:
        yield tag


@pytest.fixture
def yours(image: str) -> Iterator[Project]:
    """A checkout of an ordinary user, who calls Compose himself."""
    with project(image, YOU) as made:
        yield made


def folder_of(path: Path, uid: int, gid: int, mode: int) -> Path:
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


def file_of(path: Path, uid: int, mode: int = 0o644) -> Path:
    path.write_text(OLD, encoding="utf-8")
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def looks(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, found.st_mode & 0o7777


def everything(folder: Path) -> dict[Path, tuple[int, int, int]]:
    return {path: looks(path) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("uid", [0, YOU])
def test_the_first_boot_of_a_checkout_works_and_so_does_the_next(image: str, uid: int) -> None:
    with project(image, uid) as checkout:
        first = checkout.boot()
        assert first.returncode == 0, first.stderr
        assert looks(checkout.reports) == (uid, 0, 0o775)
        assert looks(checkout.reports / NEW) == (BOOT_UID, 0, 0o644)
        one = checkout.report()["report_id"]
        assert checkout.on_host("test", "-r", str(checkout.reports / NEW)) == 0
        second = checkout.boot()
        assert second.returncode == 0, second.stderr
        (kept,) = (checkout.reports / "previous").iterdir()
        assert one in kept.name
        assert checkout.prepare() == []
        assert checkout.on_host("rm", "-r", str(checkout.reports)) == 0


def test_reports_that_were_there_stay_and_their_owner_keeps_his_rights(yours: Project) -> None:
    folder_of(yours.reports, YOU, YOU, 0o755)
    older = file_of(yours.reports / NEW, YOU)
    kept = folder_of(yours.reports / "previous", YOU, YOU, 0o755)
    oldest = file_of(kept / "boot-report.run-1-oldest.json", YOU, 0o600)
    note = file_of(yours.reports / "notes.txt", YOU, 0o640)
    done = yours.boot()
    assert done.returncode == 0, done.stderr
    assert yours.report()["report_id"] != "older"
    assert looks(yours.reports) == looks(kept) == (YOU, 0, 0o775)
    assert looks(oldest) == (YOU, YOU, 0o600)
    assert looks(note) == (YOU, YOU, 0o640)
    moved = kept / "boot-report.mine-1-older.json"
    assert moved.read_text(encoding="utf-8") == OLD
    assert looks(moved) == (YOU, YOU, 0o644)
    assert older.exists()
    assert yours.on_host("rm", "-r", str(yours.reports)) == 0


def test_previous_reports_of_the_boots_own_uid_become_removable(yours: Project) -> None:
    folder_of(yours.reports, YOU, YOU, 0o755)
    folder_of(yours.reports / "previous", BOOT_UID, 0, 0o755)
    file_of(yours.reports / "previous" / "boot-report.run-1-oldest.json", BOOT_UID)
    (said,) = yours.prepare()
    assert said.endswith("can now write /reports /reports/previous")
    assert yours.on_host("rm", "-r", str(yours.reports)) == 0


@pytest.mark.parametrize(
    ("gid", "mode", "after"),
    [
        (YOU, 0o755, 0o775),
        (YOU, 0o775, 0o775),  # a umask of 002, where each user has a group of his own
        (YOU, 0o2755, 0o2775),
        (100, 0o755, 0o775),  # others can read there as well, so the group loses nothing
        (0, 0o755, 0o775),
    ],
)
def test_a_folder_of_somebody_is_opened_to_group_0(
    yours: Project, gid: int, mode: int, after: int
) -> None:
    folder_of(yours.reports, YOU, gid, mode)
    (said,) = yours.prepare()
    assert "/reports" in said
    assert looks(yours.reports) == (YOU, 0, after)
    assert yours.prepare() == []


@pytest.mark.parametrize(
    ("uid", "gid", "mode"),
    [
        (YOU, YOU, 0o555),  # nobody is to write there, not even its owner
        (0, 0, 0o555),
        (YOU, YOU, 0o700),  # kept for himself: nobody can see whether there are reports in it
        (YOU, 100, 0o770),  # shared with a group
        (YOU, 100, 0o750),
    ],
)
def test_a_folder_that_is_not_for_the_boot_stays_and_the_boot_says_so(
    yours: Project, uid: int, gid: int, mode: int
) -> None:
    folder_of(yours.reports, uid, gid, mode)
    done = yours.boot()
    assert done.returncode == 73, done.stderr
    assert everything(yours.reports) == {yours.reports: (uid, gid, mode)}


@pytest.mark.parametrize(
    ("uid", "gid", "mode"), [(YOU, YOU, 0o777), (YOU, YOU, 0o1777), (0, 0, 0o775), (YOU, 0, 0o770)]
)
def test_a_folder_that_the_boot_can_write_stays_as_it_is(
    yours: Project, uid: int, gid: int, mode: int
) -> None:
    folder_of(yours.reports, uid, gid, mode)
    file_of(yours.reports / NEW, YOU)
    yours.prepare()
    assert looks(yours.reports) == (uid, gid, mode)
    assert looks(yours.reports / NEW) == (YOU, YOU, 0o644)


def test_a_named_folder_with_other_things_in_it_stays_as_it_is(yours: Project) -> None:
    home = folder_of(yours.folder.parent / "home", YOU, YOU, 0o755)
    file_of(home / ".profile", YOU)
    before = everything(home)
    (said,) = yours.prepare(BOOTGUARD_REPORTS=str(home))
    assert str(home) in said
    assert everything(home) == before
    assert yours.boot(BOOTGUARD_REPORTS=str(home)).returncode == 73
    file_of(home / NEW, YOU)
    assert yours.boot(BOOTGUARD_REPORTS=str(home)).returncode == 0


def test_a_link_to_a_folder_with_other_things_in_it_opens_nothing(yours: Project) -> None:
    home = folder_of(yours.folder.parent / "home", YOU, YOU, 0o700)
    file_of(home / "secret.txt", YOU, 0o600)
    yours.reports.symlink_to(home)
    before = everything(home)
    (said,) = yours.prepare()
    assert "./reports is left as it is" in said
    assert everything(home) == before


def test_a_named_folder_that_docker_makes_stays_roots(yours: Project) -> None:
    named = yours.folder / "elsewhere"
    done = yours.boot(BOOTGUARD_REPORTS="elsewhere")
    assert done.returncode == 0, done.stderr
    assert looks(named) == (0, 0, 0o775)
    assert not yours.reports.exists()


def test_links_are_not_followed(yours: Project) -> None:
    folder_of(yours.reports, YOU, YOU, 0o755)
    inside = folder_of(yours.reports / "mine", YOU, YOU, 0o700)
    (yours.reports / "previous").symlink_to("mine")
    yours.prepare()
    assert looks(yours.reports) == (YOU, 0, 0o775)
    assert looks(inside) == (YOU, YOU, 0o700)
    assert (yours.reports / "previous").is_symlink()


def test_a_boot_as_the_callers_own_uid_leaves_files_of_his(yours: Project) -> None:
    folder_of(yours.reports, YOU, YOU, 0o700)
    assert yours.boot(BOOTGUARD_UID=str(YOU)).returncode == 0
    assert looks(yours.reports) == (YOU, YOU, 0o700)
    assert looks(yours.reports / NEW) == (YOU, 0, 0o644)


def test_the_status_of_a_boot_is_that_of_compose(yours: Project) -> None:
    wrong = yours.compose("run", "--rm", "-T", "-e", "BOOT_STEPS=none", "boot-cpu")
    assert wrong.returncode == 78, wrong.stderr
    up = yours.compose("up", "--exit-code-from=boot-cpu", "boot-cpu", environ={"BOOT_STEPS": "0"})
    assert up.returncode == 78, up.stderr


def test_settings_and_arguments_reach_the_boot(yours: Project) -> None:
    given = yours.compose("run", "--rm", "-T", "-e", "BOOT_STEPS=5", "boot-cpu")
    assert given.returncode == 0, given.stderr
    assert yours.report()["settings"]["steps"] == 5
    # What follows -- is run after a pass: refused beside BOOT_STOP_AFTER.
    refused = yours.boot("--", "sh", "-c", "exit 3")
    assert "where a command follows --" in refused.stdout
    assert yours.boot("--help").stdout.startswith("usage: python -m app.boot")


def test_two_boots_at_once_both_leave_their_report(yours: Project) -> None:
    assert yours.boot(BOOT_RUN_ID="first").returncode == 0
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda name: yours.boot(BOOT_RUN_ID=name), ("one", "two")))
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    moved = [
        path.name.split(".")[1].split("-")[0] for path in (yours.reports / "previous").iterdir()
    ]
    # Of two that move the same report, one may leave a copy of it.
    assert {yours.report()["run_id"], *moved} == {"first", "one", "two"}


def test_two_first_boots_at_once_break_nothing_for_good(yours: Project) -> None:
    """One may find the prepare container half made; Compose then says so, and ends with 1."""
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda name: yours.boot(BOOT_RUN_ID=name), ("one", "two")))
    for each in done:
        assert each.returncode == 0 or "Conflict" in each.stderr, each.stderr
    assert 0 in {each.returncode for each in done}
    assert yours.boot().returncode == 0


@pytest.mark.skipif(
    bool(not no_engine() and "nvidia" in docker("info", "--format={{.Runtimes}}").stdout),
    reason="this engine can give out devices",
)
def test_without_a_device_to_give_the_engine_refuses_and_without_the_wish_the_boot_does(
    yours: Project,
) -> None:
    run = ("run", "--rm", "-T", "boot-h100")
    refused = yours.compose(*run)
    assert refused.returncode not in {0, 69}
    assert "could not select device driver" in refused.stderr
    none = yours.folder.parent / "none.yaml"
    wish = "services: {boot-h100: {deploy: {resources: {reservations: {devices: !reset []}}}}}\n"
    none.write_text(wish, encoding="utf-8")
    judged = yours.compose(*run, files=[none], environ={"BOOT_STOP_AFTER": "gpu"})
    assert judged.returncode == 69, judged.stderr
    assert yours.report()["exit"]["name"] == "NODE_UNFIT"


def test_a_boot_has_no_rights_and_no_place_to_write_but_its_own(yours: Project) -> None:
    look = (
        "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; id -u; id -g;"
        " touch /opt/x /workspace/x 2>/dev/null && echo writable;"
        " for each in /tmp /cache /models /reports /dev/shm; do touch $each/x || echo $each; done;"
        " cp /bin/true /tmp/ && /tmp/true && echo runs"
    )
    run = ("run", "--rm", "-T", "--entrypoint=sh", "boot-cpu", "-c", look)
    seen = yours.compose(*run)
    assert seen.stdout.split() == [
        *("CapBnd:", "0000000000000000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"),
        *(str(BOOT_UID), "0", "runs"),
    ] or seen.stdout.split() == [
        *("CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1"),
        *(str(BOOT_UID), "0", "runs"),
    ], seen.stderr


def test_a_prepare_that_can_change_nothing_lets_the_boot_go_on(yours: Project) -> None:
    """As on a file system whose server does not let root change owners."""
    folder_of(yours.reports, YOU, YOU, 0o755)
    none = yours.folder.parent / "none.yaml"
    none.write_text("services: {prepare-h100: {cap_add: !reset []}}\n", encoding="utf-8")
    done = yours.compose("run", "--rm", "-T", "boot-cpu", files=[none])
    assert done.returncode == 73, done.stderr
    assert everything(yours.reports) == {yours.reports: (YOU, YOU, 0o755)}


def test_no_volume_without_a_name_is_left_behind(yours: Project) -> None:
    """As each container of the image has, whose VOLUMEs have nothing mounted on them."""
    assert yours.boot().returncode == 0
    found = docker("ps", "--all", "--quiet", f"--filter=name={yours.name}").stdout.split()
    assert len(found) == 1  # the boot's is removed
    (mounts,) = json.loads(docker("inspect", "--format=[{{json .Mounts}}]", *found).stdout)
    assert {mount["Type"] for mount in mounts} <= {"bind", "tmpfs"}
    assert {mount["Destination"] for mount in mounts if mount["RW"]} >= {"/reports"}
    yours.compose("down")
    assert docker("ps", "--all", "--quiet", f"--filter=name={yours.name}").stdout == ""
