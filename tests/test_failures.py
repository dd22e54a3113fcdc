"""Facts about docs/failures.md: what it names exists, and whole boots end as it says."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import Entry, find
from app.checks.precision import CHECKS as PRECISION
from app.engine.environment import pin
from app.exits import ExitCode
from app.outcome import Status
from app.profiles import PROFILES, Profile
from app.stages import STAGES
from tests import fake_driver
from tests.boots import ROOT, Boot
from tests.failure_kinds import DOCUMENT, KINDS, Row, others, rows
from tests.fake_driver import SCENARIOS
from tests.stack_models import adapted, failing, plan_for

RULED_OUT, OUTSIDE, NOT_YET = "ruled out", "outside", "not yet"
BEFORE_TORCH = STAGES[: STAGES.index("stack")]
NOT_HERE = "not here: "
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces are root's")


@cache
def written_tests() -> frozenset[str]:
    """Every test there is, as `module::name`."""
    return frozenset(
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def entry(check_id: str) -> Entry:
    found = find(check_id)
    assert found is not None, check_id
    return found


def test_every_kind_stands_there_once() -> None:
    assert len(set(KINDS)) == 71
    assert [row.kind for row in rows()] == KINDS


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.kind)
def test_what_a_row_names_exists(row: Row) -> None:
    assert row.what
    assert [check for check in row.checks if find(check) is None] == []
    assert set(row.tests) <= written_tests(), set(row.tests) - written_tests()
    assert bool(row.tests) != row.seen.startswith(NOT_HERE)


# Not ours, and what is said of them: Python's own, and 128 + SIGKILL.
FOREIGN = {"1", "137"}


@pytest.mark.parametrize("row", rows() + others(), ids=lambda row: row.kind or row.what)
def test_a_status_is_one_that_the_checks_give(row: Row) -> None:
    """By what they declare; where a finding knows better the row says when."""
    declared = {entry(check).code for check in row.checks}
    given = {"-" if code is None else str(int(code)) for code in declared}
    known = {"-", *(str(int(each)) for each in ExitCode)} | (FOREIGN if not row.kind else set())
    for code, words in row.codes.items():
        assert code in known
        assert (code in given) != bool(words), (code, words)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.kind)
def test_a_kind_is_seen_in_the_stage_of_its_first_check(row: Row) -> None:
    if row.stage in STAGES:
        assert row.stage == min((check.partition(".")[0] for check in row.checks), key=STAGES.index)
        assert row.codes
    else:
        assert row.stage in {RULED_OUT, OUTSIDE, NOT_YET}
        assert row.stage != NOT_YET or row.seen.startswith(NOT_HERE)


def test_the_counts_are_those_of_the_table() -> None:
    of = Counter(
        row.stage if row.stage not in STAGES else "early" if row.stage in BEFORE_TORCH else "later"
        for row in rows()
    )
    said = (
        f"Of {len(rows())} kinds {of['early']} are caught before torch is imported, "
        f"{of['later']} later, {of[RULED_OUT]} are ruled out, {of[OUTSIDE]} are outside and "
        f"{of[NOT_YET]} {'is' if of[NOT_YET] == 1 else 'are'} not caught yet."
    )
    assert said in " ".join(DOCUMENT.read_text(encoding="utf-8").split())


def ends_with(boot: Boot, kind: str, check: str, code: int) -> None:
    """The boot ended with this status, and this check is why; so says the kind's row."""
    assert boot.end() == code, boot.err
    found = {each["id"]: each for each in boot.report["checks"]}
    assert found[check]["status"] == ("fail" if code else "warn"), found[check]
    if code:
        assert found[check]["next_step"]
    assert boot.report["crash"] is None
    row = next(row for row in rows() if row.kind == kind)
    assert check in row.checks
    assert (str(code) if code else "-") in row.codes


# What variables do to a driver; what is wrong with a driver itself is booted in test_gpu_boots.
OF_THE_DRIVER: tuple[tuple[str, str, dict[str, str], str, int], ...] = (
    ("bf16_pre_ampere", "healthy_v100", {"ACCELERATE_MIXED_PRECISION": "bf16"},
     "host.environment", 78),
    ("gpu_leak_visible", "four_gpus", {"NVIDIA_VISIBLE_DEVICES": "0"}, "gpu.granted", 78),
    ("slurm_gpu_env", "four_gpus", {"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0,1"},
     "gpu.granted", 78),
)  # fmt: skip


@needs_root
@pytest.mark.parametrize(("kind", "scenario", "settings", "check", "code"), OF_THE_DRIVER)
def test_a_kind_of_the_driver_ends_a_whole_boot(
    tmp_path: Path, kind: str, scenario: str, settings: dict[str, str], check: str, code: int
) -> None:
    """On a node with device files."""
    with fake_driver.boot(SCENARIOS[scenario], tmp_path, settings, node=True) as boot:
        ends_with(boot, kind, check, code)


FULL = 'mount -t tmpfs -o size=64k none "$at"; cat /dev/zero >"$at/full" 2>/dev/null || true; '
READ_ONLY = 'mount -t tmpfs -o ro none "$at"; '
TO_FETCH = {"BOOT_BASE_MODEL_ID": "org/tiny"}  # a model that no cache holds
HEADERS = sysconfig.get_paths()["include"]
# What is done in a mount namespace of the boot's own; $at is an empty folder.
OF_THE_HOST: tuple[tuple[str, str, dict[str, str], str, int], ...] = (
    ("hf_home_unwritable", READ_ONLY, TO_FETCH | {"HF_HOME": "{at}/hf"},
     "host.caches_writable", 78),
    ("triton_cache_unwritable", READ_ONLY, {"TRITON_CACHE_DIR": "{at}"},
     "host.caches_writable", 78),
    ("triton_cache_unwritable", 'mount -t tmpfs -o noexec none "$at"; ',
     {"TRITON_CACHE_DIR": "{at}"}, "host.caches_executable", 78),
    ("disk_full", FULL, {"HF_HOME": "{at}"}, "host.caches_writable", 74),
    ("disk_full", 'mount -t tmpfs -o size=1m none "$at"; ', TO_FETCH | {"HF_HOME": "{at}"},
     "host.disk", 0),
    ("triton_no_cc", 'export PATH="$at"; ', {}, "host.c_compiler", 70),
    ("triton_no_python_h", f"mount -t tmpfs none '{HEADERS}'; ", {}, "host.python_h", 70),
    ("triton_no_lcuda", "", {"TRITON_LIBCUDA_PATH": "{at}"}, "host.libcuda_link", 78),
    ("shm_small", "mount -t tmpfs -o size=1m none /dev/shm; ", {}, "host.shared_memory", 0),
    ("nccl_shm", "mount -t tmpfs -o size=64m none /dev/shm; ", {}, "host.shared_memory", 0),
)  # fmt: skip


@needs_root
@pytest.mark.parametrize(("kind", "script", "settings", "check", "code"), OF_THE_HOST)
def test_a_kind_of_the_host_ends_a_whole_boot(
    tmp_path: Path, kind: str, script: str, settings: dict[str, str], check: str, code: int
) -> None:
    """Up to the host stage of a healthy H100's node."""
    at = tmp_path / "at"
    at.mkdir()
    healthy = SCENARIOS["healthy_h100"]
    environ = {
        "BOOT_HARDWARE": "h100",
        "BOOT_STOP_AFTER": "host",
        **fake_driver.environ(healthy, tmp_path),
        **{name: value.format(at=at) for name, value in settings.items()},
    }
    namespace = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
    before = (*namespace, f'at=$1; shift; {script}exec "$@"', "sh", str(at))
    with Boot(tmp_path, environ, before=before) as boot:
        ends_with(boot, kind, check, code)


# The time of day for whoever preloads it; the kernel's own stays.
CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    int done = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec = 60;
    return done;
}
"""


def test_a_clock_in_1970_is_the_nodes_fault_where_something_is_fetched(tmp_path: Path) -> None:
    made = tmp_path / "clock.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(made), "-"]
    subprocess.run(command, input=CLOCK, text=True, check=True)
    environ = {"LD_PRELOAD": str(made), "BOOT_STOP_AFTER": "host", "HF_HOME": str(tmp_path)}
    with Boot(tmp_path / "boot", environ | TO_FETCH) as boot:
        ends_with(boot, "tls_clock", "host.clock", 69)


def test_a_row_that_names_a_boot_of_this_file_has_one() -> None:
    names: dict[str, tuple[tuple[Any, ...], ...]] = {
        "driver": OF_THE_DRIVER,
        "host": OF_THE_HOST,
        "settings": OF_THE_SETTINGS,
    }
    for part, cases in names.items():
        test = f"test_failures::test_a_kind_of_the_{part}_ends_a_whole_boot"
        assert {row.kind for row in rows() if test in row.tests} == {case[0] for case in cases}


def test_a_job_that_asks_a_question_gets_the_end_of_its_input(tmp_path: Path) -> None:
    """So a library that asks for a password raises, and does not wait for the night."""
    job = "def main(model, tokenizer, report):\n    input('token? ')\n"
    (tmp_path / "asking.py").write_text(job)
    with Boot(tmp_path, {"BOOT_JOB": "asking:main"}) as boot:
        assert boot.end() == 1, boot.err
        (ended,) = (each for each in boot.report["checks"] if each["id"] == "job.ended")
        assert "EOFError" in ended["reason"]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_what_is_ruled_out_by_variables(profile: Profile) -> None:
    environ = {"HOME": "/home/user"}
    pin(profile, environ)
    assert environ["TOKENIZERS_PARALLELISM"] == "false"
    assert environ["UNSLOTH_DISABLE_STATISTICS"] == "1"


OF_THE_SETTINGS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("nccl_shm", {"WORLD_SIZE": "2"}, "settings.WORLD_SIZE"),
    ("env_types", {"HF_HUB_ETAG_TIMEOUT": "30s"}, "settings.HF_HUB_ETAG_TIMEOUT"),
)


@pytest.mark.parametrize(("kind", "settings", "check"), OF_THE_SETTINGS)
def test_a_kind_of_the_settings_ends_a_whole_boot(
    tmp_path: Path, kind: str, settings: dict[str, str], check: str
) -> None:
    with Boot(tmp_path, settings) as boot:
        ends_with(boot, kind, check, 78)


def test_an_old_kernel_only_warns_in_a_whole_boot(tmp_path: Path) -> None:
    """By the personality that makes uname(2) tell of Linux 2.6."""
    if not shutil.which("setarch"):
        pytest.skip("no setarch here")
    before = ("setarch", platform.machine(), "--uname-2.6")
    with Boot(tmp_path, {"BOOT_STOP_AFTER": "host"}, before=before) as boot:
        ends_with(boot, "kernel_old", "host.kernel", 0)


def _half(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.half()


def _bfloat(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.bfloat16()


def _elsewhere(model: Any) -> None:
    model.get_base_model().hf_device_map = {"model": "cpu", "lm_head": "disk"}


@pytest.mark.stack
@pytest.mark.parametrize(
    ("kind", "harm", "check"),
    [
        ("unscale_fp16", _half, "precision.lora_dtypes"),
        ("amp_scaler_bf16", _bfloat, "precision.lora_dtypes"),
        ("cpu_offload", _elsewhere, "precision.device_map"),
        ("multi_gpu_map", _elsewhere, "precision.device_map"),
    ],
)
def test_a_kind_of_a_loaded_model_breaks_the_contract(
    kind: str, harm: Callable[[Any], None], check: str
) -> None:
    """On a real tiny model with its adapter, whole before it is harmed."""
    plan = plan_for("llama-nf4")
    model, _ = adapted(plan)
    from app.engine import census

    assert not failing(PRECISION, census.take(model), plan)
    harm(model)
    found = failing(PRECISION, census.take(model), plan)
    assert found[check].status is Status.FAIL
    assert any(check in row.checks for row in rows() if row.kind == kind)
