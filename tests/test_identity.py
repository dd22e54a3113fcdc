"""Facts about who is booting: run id, attempt and node, from what a scheduler sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.identity import identity_of, run_of
from app.report import Report

ROOT = Path(__file__).resolve().parent.parent
UID = "0f5c1c0e-8a62-4f4b-9c55-0d6a4f3b2a11"


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "elastic"}, "elastic"),
        ({"TORCHELASTIC_RUN_ID": "elastic", "POD_UID": UID}, UID),
        ({"POD_UID": UID, "SLURM_JOB_ID": "12"}, "12"),
        (
            {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"},
            "12_3",
        ),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12"}, "14"),
        (
            {"BOOT_RUN_ID": "mine", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"},
            "mine",
        ),
        ({"BOOT_RUN_ID": "no id", "SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "", "POD_UID": UID}, UID),
    ],
)
def test_the_run_is_named_by_the_nearest_scheduler(
    environ: dict[str, str], run_id: str | None
) -> None:
    assert run_of(environ)["run_id"] == run_id


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 1),
        ({"SLURM_RESTART_COUNT": "0"}, 1),
        ({"SLURM_RESTART_COUNT": "2"}, 3),
        ({"TORCHELASTIC_RESTART_COUNT": "4"}, 5),
        ({"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "4"}, 3),
        ({"SLURM_RESTART_COUNT": "", "TORCHELASTIC_RESTART_COUNT": "4"}, 5),
        ({"BOOT_ATTEMPT": "7", "SLURM_RESTART_COUNT": "2"}, 7),
        ({"BOOT_ATTEMPT": "0", "SLURM_RESTART_COUNT": "2"}, 3),
        ({"BOOT_ATTEMPT": "-1"}, 1),
        ({"BOOT_ATTEMPT": "\u0663"}, 1),  # a digit to int(), and none of ours
        ({"SLURM_RESTART_COUNT": "9" * 5000}, 1),  # more digits than int() takes
    ],
)
def test_an_attempt_is_one_more_than_the_restarts(environ: dict[str, str], attempt: int) -> None:
    assert run_of(environ)["attempt"] == attempt


NAMES = ("BOOT_ATTEMPT", "BOOT_RUN_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "POD_UID")


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=200)))
def test_a_report_can_be_made_whatever_a_scheduler_has_set(environ: dict[str, str]) -> None:
    """Before the settings are judged, and also where they are refused."""
    Report(report_id="a" * 32, started="t", identity=identity_of(environ), **run_of(environ))


def test_the_nodes_name_is_kept_where_the_host_name_is_the_pods() -> None:
    environ = {
        "NODE_NAME": "gpu-17",
        "SLURMD_NODENAME": "n17",
        "SLURM_JOB_NODELIST": "n[17-18]",
        "PASSWORD": "x",
    }
    found = identity_of(environ).scheduler
    assert found == {name: environ[name] for name in environ if name != "PASSWORD"}


def test_a_long_value_is_cut() -> None:
    environ = {"SLURM_JOB_NODELIST": "n" * 5000}
    assert len(identity_of(environ).scheduler["SLURM_JOB_NODELIST"]) == 200


def test_no_program_is_started_for_it() -> None:
    """`platform.platform()` runs `uname -p` from the PATH, which may lie on a mount that hangs."""
    code = (
        "import sys\n"
        "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and print(event))\n"
        "from app.identity import identity_of; print(identity_of({}).platform)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 1
