"""Facts about boots that do not pass: each ends in the status that the README promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.containers.harness import started_stages
from tests.image.engine import PROFILES, Image
from tests.image.runs import HARDENED, REHEARSAL, Given, Run, container, ran, reports

INTERRUPTED = 143
LONG = {**REHEARSAL, "BOOT_STEPS": "1000"}


def failed(run: Run, code: int, *words: str) -> None:
    """The boot ended so, and its report says why."""
    assert run.code == code, run.err
    assert run.report["exit"]["code"] == code
    for word in words:
        assert word in run.report["exit"]["reason"]


def test_a_missing_gpu_is_69(image: Image, tmp_path: Path) -> None:
    """As the image is started where somebody forgot `--gpus`."""
    run = ran(image, reports(tmp_path / "reports"), Given(settings={}, options=HARDENED))
    failed(run, 69, "no NVIDIA device file")


@pytest.mark.parametrize(
    "settings",
    [{"BOOT_STEPS": "0"}, {"BOOT_STEP": "5"}, {"BOOT_MAX_SEQ_LENGTH": ""}],
    ids=["out of range", "misspelt", "empty"],
)
def test_a_bad_setting_is_78(image: Image, tmp_path: Path, settings: Mapping[str, str]) -> None:
    given = Given({**REHEARSAL, **settings}, HARDENED)
    failed(ran(image, reports(tmp_path / "reports"), given), 78, next(iter(settings)))


def test_another_images_profile_is_78(image: Image, tmp_path: Path) -> None:
    other = next(name for name in PROFILES if name != image.profile)
    run = ran(image, reports(tmp_path / "reports"), Given({"BOOT_HARDWARE": other}, HARDENED))
    failed(run, 78, "BOOT_HARDWARE")


def test_an_unwritable_report_folder_is_73_and_the_report_goes_to_stderr(
    image: Image, tmp_path: Path
) -> None:
    run = ran(image, reports(tmp_path / "reports"), Given(options=HARDENED, mount=":/reports:ro"))
    assert run.code == 73, run.err
    assert list(run.folder.iterdir()) == []
    lost = [json.loads(line) for line in run.err.splitlines() if line.startswith("{")]
    assert [report["exit"]["code"] for report in lost] == [73]


def test_help_needs_nothing(image: Image, tmp_path: Path) -> None:
    run = ran(image, reports(tmp_path / "reports"), Given({}, HARDENED, ["--help"]))
    assert (run.code, run.err) == (0, "")
    assert "BOOT_HARDWARE" in run.out


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["alone", "below another init"])
@pytest.mark.parametrize("stage", ["stack", "numerics"])
def test_docker_stop_closes_the_report_and_is_143(
    image: Image, tmp_path: Path, stage: str, init: tuple[str, ...]
) -> None:
    given = Given(LONG, [*HARDENED, *init])
    with container(image, reports(tmp_path / "reports"), given) as boot:
        boot.until_stage(stage)
        boot.stop()
        end = boot.end()
    assert end.code == INTERRUPTED, end.err
    assert end.report["state"] == "interrupted"
    assert end.report["exit"]["process_code"] == INTERRUPTED
    assert started_stages(end.report)[-1] == stage
    assert "tini" not in end.err
