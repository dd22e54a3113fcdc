"""Facts about the two Dockerfiles: one shape, and the few values by which they differ."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from app.profiles import PROFILES

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("h100", "v100")
# What may differ, below the comment at the top: the base, the lock and the profile.
MAY_DIFFER = r"ARG (BASE_IMAGE|BASE_DIGEST|LOCK|PROFILE)=.*"


def text(name: str) -> str:
    return (ROOT / f"Dockerfile.{name}").read_text(encoding="utf-8")


def lines(name: str) -> list[str]:
    """Without the comment at the top."""
    return re.sub(r"\A(#.*\n)+", "", text(name)).splitlines()


def argument(name: str, argument: str) -> str:
    found = re.findall(rf"^ARG {argument}=(.*)$", text(name), re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


def test_the_two_differ_in_values_alone() -> None:
    pairs = zip(*map(lines, NAMES), strict=True)
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(differing) == 4  # each of them once
    for pair in differing:
        found = [re.fullmatch(MAY_DIFFER, line) for line in pair]
        assert found[0] is not None, pair
        assert found[1] is not None, pair
        assert found[0][1] == found[1][1], pair


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_is_for_the_profile_in_its_name(name: str) -> None:
    assert argument(name, "LOCK") == name
    assert argument(name, "PROFILE") == name
    assert name in PROFILES


@pytest.mark.parametrize("name", NAMES)
def test_the_base_is_pinned_by_the_digest_of_the_label(name: str) -> None:
    base, digest = argument(name, "BASE_IMAGE"), argument(name, "BASE_DIGEST")
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert base.endswith(f"@{digest}")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_pulled_but_the_base(name: str) -> None:
    """No other image, no frontend, no file from a network."""
    assert not [line for line in lines(name) if line.startswith(("# syntax", "ADD "))]
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text(name), re.MULTILINE)
    named = {stage for _, stage in stages}
    for source, stage in stages:
        choice = re.sub(r"\$\{LOCK\}", name, source)
        assert source == "${BASE_IMAGE}" or choice in named, stage
    assert set(re.findall(r"(?:--|,)from=(\w+)", text(name))) <= named


@pytest.mark.parametrize("name", NAMES)
def test_the_version_is_the_projects(name: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in text(name)


@pytest.mark.parametrize("name", NAMES)
def test_secrets_are_no_arguments(name: str) -> None:
    """An argument or a variable stands in the image's history."""
    kept = [line for line in lines(name) if re.match(r"\s*(ARG|ENV|LABEL)\b", line)]
    assert not [
        line for line in kept if re.search("token|password|secret|index", line, re.IGNORECASE)
    ]


def test_every_apt_package_has_its_reason() -> None:
    lists = sorted((ROOT / "docker").glob("apt.*.txt"))
    assert len(lists) == 2
    for path in lists:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert re.fullmatch(r"#.*|[a-z0-9.+-]+ +# \S.{4,}|", line), (path.name, line)
