"""What the tests of the settings share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.image import Image
from app.settings import BootSettings, Problem, SettingsError, load_settings
from app.settings_model import variable_of

CPU = {"BOOT_HARDWARE": "cpu"}
VARIABLES = [variable_of(field) for field in BootSettings.model_fields]


def loaded(environ: Mapping[str, str], image: Image | None = None) -> BootSettings:
    """The settings from variables alone."""
    return load_settings(environ, image=image, secrets_dir=None)


def problems_of(environ: Mapping[str, str], image: Image | None = None) -> dict[str, Problem]:
    """What is wrong, by name; nothing is said twice."""
    with pytest.raises(SettingsError) as caught:
        loaded(environ, image)
    names = [problem.name for problem in caught.value.problems]
    assert len(names) == len(set(names))
    return {problem.name: problem for problem in caught.value.problems}


def problem_of(environ: Mapping[str, str], image: Image | None = None) -> Problem:
    """The one thing that is wrong."""
    (problem,) = problems_of(environ, image).values()
    return problem
