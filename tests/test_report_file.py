"""Facts about how the report gets to disk."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from app.outcome import Severity, Status
from app.report import REPORT_NAME, CheckRecord, Identity, Report, json_schema
from app.report_file import ReportFile
from app.sections_numerics import Steps

SCHEMA = Path(__file__).resolve().parent.parent / "docs" / "boot-report.schema.json"


def a_report(**fields: object) -> Report:
    identity = Identity(
        bootguard="0", hostname="node", pid=1, uid=2, python="3.11.7", platform="Linux"
    )
    values = {"report_id": "a" * 32, "started": "2026-01-01T00:00:00+00:00", "identity": identity}
    return Report.model_validate({**values, **fields})


def test_a_report_is_replaced_whole_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "new" / "folder")
    file.write(a_report())
    file.write(a_report(attempt=2))
    assert [p.name for p in file.path.parent.iterdir()] == [REPORT_NAME]
    assert json.loads(file.path.read_text())["attempt"] == 2


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "previous").iterdir())


def test_an_earlier_report_is_kept(tmp_path: Path) -> None:
    ReportFile(tmp_path).write(a_report(run_id="job 7/../\u7530", attempt=3))
    ReportFile(tmp_path).write(a_report(report_id="b" * 32))
    (name,) = kept(tmp_path)
    assert name == f"boot-report.job_7_..__-3-{'a' * 32}.json"
    assert json.loads((tmp_path / "previous" / name).read_text())["attempt"] == 3


def test_two_boots_in_one_folder_lose_neither_report(tmp_path: Path) -> None:
    """Whoever writes last stands in place; the other's last state is in `previous/`."""
    one, two = ReportFile(tmp_path), ReportFile(tmp_path)
    one.write(a_report(duration_s=1.0))
    two.write(a_report(report_id="b" * 32))
    one.write(a_report(duration_s=2.0, state="complete"))
    two.write(a_report(report_id="b" * 32, state="complete"))
    assert json.loads(one.path.read_text())["report_id"] == "b" * 32
    earlier = tmp_path / "previous" / f"boot-report.run-1-{'a' * 32}.json"
    assert json.loads(earlier.read_text())["state"] == "complete"


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, '{"run_id": 1}', "\udcff", "\0" * 5000])
def test_an_earlier_file_that_is_no_report_is_kept_too(tmp_path: Path, text: str) -> None:
    (tmp_path / REPORT_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    ReportFile(tmp_path).write(a_report())
    (name,) = kept(tmp_path)
    assert name.startswith("boot-report.unreadable-")


def test_what_is_no_file_is_moved_without_being_opened(tmp_path: Path) -> None:
    """Opening a FIFO waits for a writer, and /dev/zero never ends."""
    os.mkfifo(tmp_path / REPORT_NAME)
    ReportFile(tmp_path).write(a_report())
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / REPORT_NAME).symlink_to("/dev/zero")
    ReportFile(tmp_path / "links").write(a_report())
    (tmp_path / "folders" / REPORT_NAME).mkdir(parents=True)
    ReportFile(tmp_path / "folders").write(a_report())
    assert len(kept(tmp_path)) == len(kept(tmp_path / "links")) == len(kept(tmp_path / "folders"))


def test_an_earlier_report_is_kept_where_previous_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "previous").write_text("a file")
    ReportFile(tmp_path).write(a_report())
    ReportFile(tmp_path).write(a_report(report_id="b" * 32))
    assert (tmp_path / f"previous.boot-report.run-1-{'a' * 32}.json").is_file()


def test_a_failed_write_leaves_the_last_good_report(tmp_path: Path) -> None:
    file = ReportFile(tmp_path)
    file.write(a_report())
    (tmp_path / f".{REPORT_NAME}.{'a' * 32}.tmp").mkdir()  # what a write needs is taken
    with pytest.raises(OSError, match="directory"):
        file.write(a_report(attempt=9))
    assert json.loads(file.path.read_text())["attempt"] == 1


def test_bytes_of_a_file_name_that_are_no_text_do_not_lose_the_report(tmp_path: Path) -> None:
    record = CheckRecord(
        stage="host", id="x", status=Status.FAIL, severity=Severity.CRITICAL, reason="at \udcff"
    )
    ReportFile(tmp_path).write(a_report(checks=[record], settings={"P": ["\udcfe"]}))
    written = json.loads((tmp_path / REPORT_NAME).read_text())
    assert written["checks"][0]["reason"] == "at \\udcff"


def test_json_has_no_nan() -> None:
    steps = Steps(
        n_steps=1,
        learning_rate=1e-4,
        n_tokens=1,
        losses=[float("nan"), float("inf"), 1.0],
        n_pairs=0,
        n_pairs_with_gradient=0,
        n_pairs_unreachable=0,
    )
    assert json.loads(steps.model_dump_json())["losses"] == [None, None, 1.0]


def test_the_committed_schema_is_the_schema_of_the_model() -> None:
    """Made by `python -m app.report`."""
    assert json.loads(SCHEMA.read_text()) == json_schema()


def test_a_report_satisfies_the_committed_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(a_report().model_dump_json()))


def root_mounts() -> bool:
    """Whether this user may mount, in a container of its own at that."""
    return (
        os.geteuid() == 0
        and subprocess.run(
            ["unshare", "--mount", "true"], capture_output=True, check=False
        ).returncode
        == 0
    )


needs_mounts = pytest.mark.skipif(not root_mounts(), reason="only root can mount a volume")


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of 64 kB that is there only for one test."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
    yield folder
    while os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)


@needs_mounts
def test_nothing_is_written_below_the_mount_point_of_a_volume_that_is_gone(volume: Path) -> None:
    file = ReportFile(volume)
    file.write(a_report())
    subprocess.run(["umount", "-l", volume], check=True)
    with pytest.raises(OSError, match="unmounted or replaced") as raised:
        file.write(a_report(attempt=2))
    assert raised.value.errno == errno.ESTALE
    assert list(volume.iterdir()) == []


@needs_mounts
def test_another_volume_in_the_place_of_ours_gets_no_report(volume: Path) -> None:
    file = ReportFile(volume)
    file.write(a_report())
    mount("-t", "tmpfs", "tmpfs", volume)
    with pytest.raises(OSError, match="unmounted or replaced"):
        file.write(a_report(attempt=2))
    assert list(volume.iterdir()) == []


@needs_mounts
def test_a_volume_that_turns_read_only_is_an_error_and_keeps_the_last_report(volume: Path) -> None:
    file = ReportFile(volume)
    file.write(a_report())
    mount("-o", "remount,ro", volume)
    with pytest.raises(OSError, match="Read-only"):
        file.write(a_report(attempt=2))
    assert json.loads(file.path.read_text())["attempt"] == 1


@needs_mounts
def test_a_volume_that_is_full_is_an_error_and_keeps_the_last_report(volume: Path) -> None:
    file = ReportFile(volume)
    file.write(a_report())
    (volume / "filler").write_bytes(b"x" * 32 * 1024)
    with pytest.raises(OSError, match="No space"):
        file.write(a_report(run_id="x" * 64 * 1024))
    assert json.loads(file.path.read_text())["attempt"] == 1
    assert sorted(path.name for path in volume.iterdir()) == [REPORT_NAME, "filler"]
    file.write(a_report(attempt=3))  # room enough again


def test_a_folder_that_is_deleted_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "reports")
    file.write(a_report())
    shutil.rmtree(tmp_path / "reports")
    with pytest.raises(FileNotFoundError, match="reports"):
        file.write(a_report(attempt=2))
    (tmp_path / "reports").mkdir()
    with pytest.raises(OSError, match="another one stands there"):
        file.write(a_report(attempt=2))
    assert list((tmp_path / "reports").iterdir()) == []


def test_before_the_first_report_a_folder_may_come_and_go(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "reports")
    (tmp_path / "reports").write_text("in the way")
    with pytest.raises(FileExistsError):
        file.write(a_report())
    (tmp_path / "reports").unlink()
    file.write(a_report())
    assert file.path.is_file()


def test_a_writer_that_takes_over_knows_the_folder_of_the_one_before(tmp_path: Path) -> None:
    first = ReportFile(tmp_path / "reports")
    first.write(a_report())
    second = ReportFile(tmp_path / "reports", known=first.place)
    second.write(a_report(attempt=2))
    (tmp_path / "reports").rename(tmp_path / "away")
    (tmp_path / "reports").mkdir()
    with pytest.raises(OSError, match="another one stands there"):
        ReportFile(tmp_path / "reports", known=first.place).write(a_report(attempt=3))


def test_the_first_report_tells_nothing_of_what_it_found(tmp_path: Path) -> None:
    """An earlier boot's report is there at every restart."""
    assert ReportFile(tmp_path).write(a_report()) == ""
    assert ReportFile(tmp_path).write(a_report(report_id="b" * 32)) == ""


def test_two_boots_in_one_folder_learn_of_each_other(tmp_path: Path) -> None:
    one, two = ReportFile(tmp_path), ReportFile(tmp_path)
    one.write(a_report())
    assert two.write(a_report(report_id="b" * 32)) == ""
    assert one.write(a_report()) == str(
        tmp_path / "previous" / f"boot-report.run-1-{'b' * 32}.json"
    )
    assert two.write(a_report(report_id="b" * 32)).endswith(f"boot-report.run-1-{'a' * 32}.json")
    assert one.write(a_report()) != ""
    assert one.write(a_report()) == ""


def test_two_boots_that_write_at_once_lose_no_report(tmp_path: Path) -> None:
    """Each writes forty states as fast as it can; the last state of each is somewhere."""
    code = (
        "import json, sys; from pathlib import Path; from app.report_file import ReportFile\n"
        "file, report_id = ReportFile(Path(sys.argv[1])), sys.argv[2]\n"
        "for n in range(40):\n"
        "    state = {'report_id': report_id, 'n': n}\n"
        "    file.write_text(json.dumps(state, indent=2), report_id)"
    )
    ids = ["a" * 32, "b" * 32, "c" * 32]
    children = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path, one], cwd=SCHEMA.parent.parent)
        for one in ids
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    found = [tmp_path / REPORT_NAME, *(tmp_path / "previous").iterdir()]
    states = [json.loads(path.read_text()) for path in found]
    assert {(state["report_id"], state["n"]) for state in states} >= {(one, 39) for one in ids}


def test_a_folder_that_another_boot_keeps_locked_is_written_all_the_same(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    ReportFile(tmp_path).write(a_report())
    os.close(other)
    assert (tmp_path / REPORT_NAME).is_file()
