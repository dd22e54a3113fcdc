"""Facts about the catalogue of check ids and about `python -m app.report explain`."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.catalogue import Entry, entries, find, near
from app.exits import ExitCode
from app.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "app"
CHECK_MODULES = sorted(path.stem for path in (APP / "checks").glob("*.py") if path.stem[0] != "_")


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.report", "explain", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def written_ids() -> set[str]:
    """What is written as the second argument of `CheckRecord.of` anywhere in the app."""
    found = set()
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "CheckRecord.of":
                written = node.args[1]
                if isinstance(written, ast.Constant):
                    found.add(str(written.value))
                elif isinstance(written, ast.JoinedStr):
                    text = "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "host"
                        for part in written.values
                    )
                    found.add(text)
    return found - {"settings.host"}  # the name of a variable or of a part of the settings


@pytest.mark.parametrize("module", CHECK_MODULES)
def test_every_check_is_in_the_catalogue(module: str) -> None:
    for check in importlib.import_module(f"app.checks.{module}").CHECKS:
        entry = find(check.id)
        assert entry is not None
        assert entry.id == check.id


def test_every_id_that_is_written_beside_the_checks_is_in_the_catalogue() -> None:
    ids = written_ids()
    assert len(ids) > 5
    assert {check_id for check_id in ids if find(check_id) is None} == set()


def test_no_id_stands_twice() -> None:
    ids = [entry.id for entry in entries()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_every_entry_says_what_it_asks_what_makes_it_fail_and_what_to_do(entry: Entry) -> None:
    for text in (entry.asks, entry.source, entry.cause, entry.fix):
        assert len(text) > len("unset")
        assert "\n" not in text
    assert entry.code is not ExitCode.OK


@pytest.mark.parametrize("stage", STAGES)
def test_what_any_stage_can_have_is_found_for_each(stage: str) -> None:
    for name in ("gather", "publish", "crash"):
        entry = find(f"{stage}.{name}")
        assert entry is not None
        assert entry.stage in {"<stage>", "gpu"}


def test_a_variable_of_the_settings_is_found() -> None:
    entry = find("settings.BOOT_STEPS")
    assert entry is not None
    assert entry.code is ExitCode.CONFIG


def test_an_unknown_id_gets_what_may_have_been_meant() -> None:
    assert find("gpu.counts") is None
    assert "gpu.count" in near("gpu.counts")
    assert near("count") == ["gpu.count"]


def test_explain_prints_cause_fix_and_exit_status() -> None:
    done = explain("gpu.count")
    assert done.returncode == 0
    entry = find("gpu.count")
    assert entry is not None
    assert entry.cause in done.stdout
    assert entry.fix in done.stdout
    assert "78 CONFIG" in done.stdout


def test_explain_without_an_id_lists_all() -> None:
    lines = explain().stdout.splitlines()
    assert [re.split(r"\s", line)[0] for line in lines] == [entry.id for entry in entries()]


def test_explain_of_an_unknown_id_is_an_error_of_usage() -> None:
    done = explain("gpu.conut")
    assert done.returncode == int(ExitCode.USAGE)
    assert "gpu.count" in done.stderr
    assert not done.stdout


def test_a_late_driver_has_a_status_of_its_own() -> None:
    found, other = find("gpu.crash"), find("host.crash")
    assert found is not None
    assert other is not None
    assert (found.code, other.code) == (ExitCode.NODE_UNFIT, ExitCode.TEMPFAIL)
