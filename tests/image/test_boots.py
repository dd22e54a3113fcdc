"""Facts about rehearsals in the image: whoever runs it, they pass, and write where they should.

No container has a network: that the image starts offline is part of each of these facts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.image.engine import BOOT_UID, Image
from tests.image.runs import HARDENED, REHEARSAL, Given, Run, ran, reports

YOU = 1000 if os.geteuid() == 0 else os.geteuid()
# Users beside the image's own: as OpenShift chooses one, and the one who owns the report folder.
ARBITRARY = 1000650000


def passed(run: Run, uid: int) -> None:
    """The whole rehearsal, told by status, verdict line and report, and nothing that warns."""
    assert run.code == 0, run.err
    assert run.warnings == []
    line = json.loads(run.out)
    assert (line["verdict"], line["rehearsal"], line["exit"]) == ("pass", True, 0)
    report = run.report
    assert (report["state"], report["verdict"], report["rehearsal"]) == ("complete", "pass", True)
    odd = [check for check in report["checks"] if check["status"] not in ("pass", "skip")]
    assert odd == []
    assert (run.folder / "boot-report.json").stat().st_uid == uid


def test_the_images_own_user_passes(rehearsal: Run) -> None:
    passed(rehearsal, BOOT_UID)


def test_nothing_is_written_outside_the_volumes(rehearsal: Run) -> None:
    """But in /tmp, which is for that: a read-only container gets a tmpfs there."""
    assert [line for line in rehearsal.changed if not line[2:].startswith("/tmp")] == []  # noqa: S108


def test_the_report_says_which_image_it_was(image: Image, rehearsal: Run) -> None:
    told = rehearsal.report["image"]
    names = ("revision", "lock_digest", "base", "base_digest", "cuda", "changes")
    assert {name: told[name] for name in names} == {name: image.described[name] for name in names}


def test_an_arbitrary_user_passes_with_a_read_only_root(image: Image, tmp_path: Path) -> None:
    user = f"--user={ARBITRARY}:0"
    run = ran(image, reports(tmp_path / "reports"), Given(options=[*HARDENED, user]))
    passed(run, ARBITRARY)
    assert run.changed == []


def test_the_owner_of_the_report_folder_passes(image: Image, tmp_path: Path) -> None:
    folder = reports(tmp_path / "reports", YOU, 0o755)
    passed(ran(image, folder, Given(options=[f"--user={YOU}:{YOU}"])), YOU)


def test_a_command_runs_after_the_pass_and_its_status_is_the_containers(
    image: Image, tmp_path: Path
) -> None:
    command = ["--", "sh", "-c", "echo verdict: $BOOT_VERDICT; exit 7"]
    run = ran(image, reports(tmp_path / "reports"), Given(arguments=command, options=HARDENED))
    assert run.code == 7, run.err
    assert run.out.splitlines()[-1] == "verdict: pass"


def test_with_dockers_own_shared_memory_that_alone_is_warned_of(
    image: Image, tmp_path: Path
) -> None:
    quick = {**REHEARSAL, "BOOT_STOP_AFTER": "host"}
    run = ran(image, reports(tmp_path / "reports"), Given(quick, shared_memory="64m"))
    assert run.code == 0, run.err
    warned = [check["id"] for check in run.report["checks"] if check["status"] == "warn"]
    assert warned == ["host.shared_memory"]


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["alone", "below another init"])
def test_the_init_says_nothing(image: Image, tmp_path: Path, init: tuple[str, ...]) -> None:
    quick = {**REHEARSAL, "BOOT_STOP_AFTER": "settings"}
    run = ran(image, reports(tmp_path / "reports"), Given(quick, options=init))
    assert run.code == 0
    assert "tini" not in run.err
