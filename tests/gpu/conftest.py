"""Skips all of this folder with one reason where there is no device for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import subject as subjects
from tests.gpu.models import Bare, bare
from tests.gpu.subject import Subject
from tests.tiny_models import Kind

HERE = Path(__file__).parent
# As they were before any test: others hide them from what they test.
GIVEN = subjects.settings(os.environ)
_told: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One question for all tests, and none where they would be skipped anyway.

    Those that use the device in children come first: a context of ours counts as another process
    there, and a device in exclusive mode refuses a second one.
    """
    ours = [item for item in items if HERE in item.path.parents]
    if len(ours) < len(items):  # others import torch for a CPU, and there is one device a process
        why = "a device wants a process of its own: make gpu-test"
    else:
        found = subjects.here()
        why = found if isinstance(found, str) else ""
        items.sort(key=lambda item: "free_device" not in getattr(item, "fixturenames", ()))
    for item in ours:
        item.add_marker(pytest.mark.slow)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was measured, above the line that closes the output."""
    if _told:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(_told))


@pytest.fixture(scope="session")
def told(subject: Subject) -> list[str]:
    """Lines for the end of the output."""
    if not _told:
        _told.append(subject.name)
    return _told


@pytest.fixture(scope="session")
def subject() -> Subject:
    """What the tests run on."""
    found = subjects.here()
    assert isinstance(found, Subject), found
    return found


@pytest.fixture
def free_device(subject: Subject) -> None:
    """Nothing of this process is on the device."""
    torch: Any = sys.modules.get("torch")
    assert not subject.profile.needs_gpu or torch is None or not torch.cuda.is_initialized()


@pytest.fixture(autouse=True)
def _the_callers_device(
    _own_environment: None, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was asked about, after all variables were cleared."""
    visible = GIVEN.get("CUDA_VISIBLE_DEVICES") if subject.profile.needs_gpu else ""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, subject: Subject) -> Bare:
    """A tiny model on the device, shared by the tests of a module that leave it as it is.

    Of a kind given by indirect parametrisation, else a packed Llama.
    """
    kind: Kind = getattr(request, "param", "llama-nf4")
    return bare(kind, subject.profile)
