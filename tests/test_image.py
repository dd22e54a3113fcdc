"""Facts of the file that an image carries about itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.errors import BootError
from app.image import Image, read_image
from app.outcome import Fault
from app.report import Identity, Report

GOOD = {
    "profile": "h100",
    "lock_digest": "sha256:1f",
    "versions": {"torch": "2.14.1"},
    "architectures": ["sm_90"],
    "minimum_driver": 580,
    "base_digest": "sha256:2e",
}


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "image.json"
    path.write_bytes(content)
    return path


def test_outside_an_image_there_is_none(tmp_path: Path) -> None:
    assert read_image(tmp_path / "image.json") is None
    (tmp_path / "file").touch()
    assert read_image(tmp_path / "file" / "image.json") is None


def test_reads_what_the_build_wrote(tmp_path: Path) -> None:
    """Fields of a newer build are ignored."""
    image = read_image(written(tmp_path, json.dumps({**GOOD, "colour": "2026"}).encode()))
    assert image is not None
    assert image.model_dump(include=set(GOOD)) == GOOD


def test_an_older_build_has_told_less(tmp_path: Path) -> None:
    image = read_image(written(tmp_path, json.dumps(GOOD).encode()))
    assert image is not None
    assert (image.base, image.cuda, image.revision, image.built) == ("", None, "", None)
    assert image.locked() == GOOD["versions"]
    assert image.baked().cuda is None


VERSIONS = st.dictionaries(st.text("abc-", min_size=1), st.sampled_from(("1.0", "2.0+cu130")))
CHANGES = st.dictionaries(
    st.text("abc-", min_size=1), st.sampled_from(("1.0 -> 2.0", "none -> 1.0", "1.0 -> none"))
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(codec="utf-8"), min_size=1),
    versions=VERSIONS,
    changes=CHANGES,
    built=st.none() | st.integers(0, 2**70),
)
def test_what_is_written_is_what_is_read(
    tmp_path: Path, text: str, versions: dict[str, str], changes: dict[str, str], built: int | None
) -> None:
    image = Image(
        profile="v100",
        lock_digest=text,
        versions=versions,
        architectures=[text],
        minimum_driver=525,
        base_digest=text,
        base=text,
        cuda="12.8",
        revision=text,
        python="3.12.3",
        built=built,
        changes=changes,
    )
    assert read_image(written(tmp_path, image.model_dump_json().encode())) == image


@given(locked=VERSIONS, installed=VERSIONS)
def test_the_lock_is_known_again_after_changes(
    locked: dict[str, str], installed: dict[str, str]
) -> None:
    """An image may be derived from one that is derived itself."""
    names = locked.keys() | installed.keys()
    changes = {
        name: f"{locked.get(name, 'none')} -> {installed.get(name, 'none')}"
        for name in names
        if locked.get(name) != installed.get(name)
    }
    image = Image.model_validate({**GOOD, "versions": installed, "changes": changes})
    assert image.locked() == locked


def test_an_image_without_cuda_has_no_minimum_driver() -> None:
    image = Image.model_validate({**GOOD, "profile": "cpu", "minimum_driver": None})
    assert image.minimum_driver is None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "image.json"),
        (b"{", "image.json"),
        (b"\xff\xfe", "image.json"),
        (b"[]", "image.json"),
        (json.dumps({**GOOD, "profile": "a100"}).encode(), "image.json.profile"),
        (json.dumps({**GOOD, "lock_digest": ""}).encode(), "image.json.lock_digest"),
        (json.dumps({**GOOD, "minimum_driver": "580"}).encode(), "image.json.minimum_driver"),
        (json.dumps({**GOOD, "built": "2026"}).encode(), "image.json.built"),
        (json.dumps({**GOOD, "versions": {"torch": 2}}).encode(), "image.json.versions.torch"),
        (json.dumps({**GOOD, "changes": {"torch": "2.0"}}).encode(), "image.json.changes.torch"),
        (json.dumps({**GOOD, "changes": {"torch": "a -> b c"}}).encode(), "changes.torch"),
        (b'{"profile": "\\ud800"}', "image.json"),
        (b"[" * 100_000, "image.json"),
        (b" " * (1024 * 1024) + json.dumps(GOOD).encode(), "larger than"),
        (
            json.dumps({k: v for k, v in GOOD.items() if k != "versions"}).encode(),
            "image.json.versions",
        ),
    ],
)
def test_a_broken_file_is_a_broken_image(tmp_path: Path, content: bytes, named: str) -> None:
    with pytest.raises(BootError) as caught:
        read_image(written(tmp_path, content))
    assert caught.value.finding.fault is Fault.INTERNAL
    assert caught.value.finding.reason.startswith("image broken")
    assert named in caught.value.finding.actual


def test_a_folder_in_its_place_is_a_broken_image(tmp_path: Path) -> None:
    with pytest.raises(BootError, match="image broken"):
        read_image(tmp_path)


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "image.json")
    with pytest.raises(BootError) as caught:
        read_image(tmp_path / "image.json")
    assert "no regular file" in caught.value.finding.actual


def test_the_report_has_it_whole() -> None:
    """Revision, lock and base are what somebody looks for who finds a report alone."""
    image = Image.model_validate({**GOOD, "base": "cuda:13", "revision": "abc", "cuda": "13.0"})
    identity = Identity(bootguard="0", hostname="h", pid=1, uid=0, python="3", platform="linux")
    report = Report(
        report_id="1",
        started="2026-11-30T00:00:00+00:00",
        identity=identity,
        image=image.model_dump(mode="json"),  # as the journal hands it on
    )
    shown = json.loads(report.model_dump_json())["image"]
    assert shown == image.model_dump(mode="json")
    assert {"revision", "lock_digest", "base", "base_digest", "cuda", "changes"} <= set(shown)
    assert Report.model_validate_json(report.model_dump_json()) == report
    with pytest.raises(ValidationError):
        Report.model_validate({**report.model_dump(), "image": {"profile": "h100"}})


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_content_is_an_image_or_a_boot_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BootError):
        read_image(written(tmp_path, content))
