"""Facts of the file that an image carries about itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import BootError
from app.image import Image, read_image
from app.outcome import Fault

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
    image = read_image(written(tmp_path, json.dumps({**GOOD, "built": "2026"}).encode()))
    assert image is not None
    assert image.model_dump() == GOOD


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


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_content_is_an_image_or_a_boot_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BootError):
        read_image(written(tmp_path, content))
