"""Builds the images that `--image` names, one after the other; else these tests are left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.engine import unavailable
from tests.image.engine import PROFILES, BuildError, Image, built
from tests.image.runs import Given, Run, ran, reports

HERE = Path(__file__).parent
_ENGINE = "BOOTGUARD_ENGINE_CACHE"  # scripts/engine.sh sets it
_told: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known where this folder is named on the command line."""
    parser.addoption("--image", action="append", choices=PROFILES, help="build and test this image")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--image", default=None) or []
    if wanted and _ENGINE not in os.environ:
        raise pytest.UsageError("an image is built by scripts/engine.sh run ...: make image-test")
    why = "images take long to build: make image-test"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            call = getattr(item, "callspec", None)
            if call is None or call.params.get("image") not in wanted:
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was measured, above the line that closes the output."""
    if _told:
        terminalreporter.section("images")
        terminalreporter.write_line("\n".join(_told))


@pytest.fixture(scope="session", params=PROFILES)
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Image]:
    """An image. All tests of one run before the next is built."""
    assert not unavailable()
    profile = str(request.param)
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(built(profile, tmp_path_factory.mktemp(profile)))
        except BuildError as error:
            _told.append(str(error))  # once, and not for each test
            pytest.fail(f"the {profile} image was not built: its log is below", pytrace=False)
        _told.append(f"{made.tag} was built in {made.build_s:.0f} s")
        yield made


@pytest.fixture(scope="session")
def rehearsal(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A boot as `docker run` starts it, with nothing but a report folder: many tests look at it."""
    return ran(image, reports(tmp_path_factory.mktemp("rehearsal")), Given())


@pytest.fixture(scope="session")
def told() -> list[str]:
    """Lines for the end of the output."""
    return _told
