"""Boots broken on purpose are named by the check that the table says, with its exit status.

All of `tests.broken_cases` runs in one child process; a few run as whole boots too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broken_cases import CASES, HEALTHY
from tests.reports import assert_findings_are_whole
from tests.tiny_models import tiny_model

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
# Python reads it at its start: the worker of a whole boot gets the case that is asked for.
SITE = """\
import os, sys
if "app.worker" in sys.orig_argv:
    from tests import broken_boots
    broken_boots.strike(os.environ["BROKEN_CASE"])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each case ended."""
    out = tmp_path_factory.mktemp("broken") / "ended.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.broken_boots", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_broken_boot_is_named_and_ends_as_the_table_says(
    ended: dict[str, Any], name: str
) -> None:
    case, found = CASES[name], ended[name]
    assert tuple(each["check"] for each in found["found"]) == case.checks, found
    assert found["code"] == case.code, found
    if case.checks:
        assert case.named in found["found"][0]["reason"], found
    assert_findings_are_whole(
        {"checks": [{"id": each["check"], **each} for each in found["found"]]}
    )
    # What nobody foresaw is caught by the step guard: never by accident.
    assert not found["troubles"] or case.checks == ("numerics.gather",)


@pytest.mark.parametrize("name", CASES)
def test_the_first_parameters_dtype_would_have_passed(ended: dict[str, Any], name: str) -> None:
    first = ended[name]["first"]
    assert first in CASES[name].profile.float_dtypes or not first


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shows])
def test_what_no_check_sees_shows_beside_a_healthy_boots_report(
    ended: dict[str, Any], name: str
) -> None:
    shown, found, healthy = CASES[name].shows, ended[name], ended["healthy"]
    assert found[shown] != healthy[shown]
    assert found["n_passed"] == healthy["n_passed"]
    if shown != "weights":
        assert found["weights"] == healthy["weights"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_boot_asks_every_check_and_has_both_fingerprints(
    ended: dict[str, Any], name: str
) -> None:
    found = ended[name]
    assert (found["found"], found["code"]) == ([], 0)
    assert found["weights"]
    assert found["logits"]


@pytest.mark.parametrize("name", ["compute dtype", "base moved", "absmax", "nan gradient"])
def test_a_whole_boot_ends_so_too(tmp_path: Path, name: str) -> None:
    """The process's exit status, the report and the verdict line."""
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    case = CASES[name]
    kept = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HOME", "LANG")
    done = subprocess.run(
        [sys.executable, "-m", "app.boot"],
        cwd=tmp_path,
        env={
            **{key: os.environ[key] for key in kept if key in os.environ},
            "PYTHONPATH": f"{ROOT}:{tmp_path}",
            "BROKEN_CASE": name,
            "BOOT_HARDWARE": "cpu",
            "BOOT_REPORT_DIR": "reports",
            "BOOT_BASE_MODEL_ID": str(tiny_model(case.kind)),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads((tmp_path / "reports" / "boot-report.json").read_text(encoding="utf-8"))
    assert_findings_are_whole(report)
    assert done.returncode == report["exit"]["process_code"] == case.code, done.stderr
    failed = [check for check in report["checks"] if check["status"] in ("fail", "error")]
    assert tuple(check["id"] for check in failed) == case.checks
    verdict = json.loads(done.stdout)
    assert (verdict["verdict"], verdict["exit"]) == ("fail", case.code)
    assert case.named in verdict["reason"]
