"""Facts about the documentation: what it takes from the code is what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from app.settings_model import BootSettings, variable_of
from app.settings_names import HANDED_OVER

ROOT = Path(__file__).resolve().parent.parent


def documents() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.documents())


@pytest.mark.parametrize("name", ["README.md", "docs/boot-report.schema.json", "docs/checks.md"])
def test_a_made_document_is_as_make_docs_makes_it(name: str) -> None:
    path = ROOT / name
    assert path.read_text(encoding="utf-8") == documents()[path]


def test_every_variable_that_the_readme_uses_is_one_of_ours() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    settings = {variable_of(field) for field in BootSettings.model_fields}
    assert set(re.findall(r"\bBOOT_[A-Z0-9_]*[A-Z0-9]", readme)) <= settings | set(HANDED_OVER)


def test_every_target_that_the_readme_names_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([\w-]+)", readme)) | set(
        re.findall(r"^make ([\w-]+)", readme, flags=re.MULTILINE)
    )
    assert named <= set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "docs" / "decisions.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), target
