"""Facts about whole boots, run as users run them: a process, an environment, an exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.stages import STAGES
from tests.reports import assert_findings_are_whole
from tests.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parent.parent
SECRET = "hf_" + "aB3" * 12
NO_GPU = not Path("/dev/nvidiactl").exists()


@dataclass(frozen=True)
class Boot:
    """What a boot left behind."""

    code: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def statuses(self) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.report["stages"]}

    def check(self, check_id: str) -> dict[str, Any]:
        (found,) = (check for check in self.report["checks"] if check["id"] == check_id)
        return dict(found)


def boot(folder: Path, settings: Mapping[str, str], *arguments: str) -> Boot:
    """Boot in a folder of its own; nothing of the test's environment but places and PATH."""
    kept = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HOME", "LANG")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "app.boot", *arguments],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT), "BOOT_REPORT_DIR": "reports", **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = folder / settings.get("BOOT_REPORT_DIR", "reports") / "boot-report.json"
    found = json.loads(report.read_text()) if report.is_file() else {}
    assert_findings_are_whole(found or {"checks": []})
    return Boot(done.returncode, done.stdout, done.stderr, found)


def agrees(found: Boot, code: int) -> None:
    """The exit status is the same in the process, in the report and in the verdict line."""
    assert found.code == code, found.err
    assert found.report["exit"]["code"] == found.report["exit"]["process_code"] == code
    assert json.loads(found.out)["exit"] == code
    assert found.out.count("\n") == 1
    assert list(found.statuses) == list(STAGES)
    assert found.report["state"] == "complete"


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize("hardware", ["h100", "v100"])
def test_without_a_gpu_the_node_is_unfit(tmp_path: Path, hardware: str) -> None:
    found = boot(tmp_path, {"BOOT_HARDWARE": hardware})
    agrees(found, 69)
    assert found.statuses["gpu"] == "fail"
    assert found.statuses["cache"] == "not_run"
    failed = found.check("gpu.device_files")
    assert failed["status"] == "fail"
    assert "nvidia.com/gpu" in failed["next_step"]
    assert "gpu.device_files" in found.err


def test_a_misspelt_variable_is_named_with_the_right_one(tmp_path: Path) -> None:
    found = boot(tmp_path, {"BOOT_HARDWRE": "h100"})
    agrees(found, 78)
    assert "BOOT_HARDWARE" in found.report["exit"]["reason"] + found.report["exit"]["next_step"]


def test_all_wrong_settings_are_listed_at_once(tmp_path: Path) -> None:
    wrong = {
        "BOOT_LORA_DROPOUT": "1.5",
        "BOOT_LORA_R": "0",
        "BOOT_LOAD_IN_4BIT": "maybe",
        "BOOT_REVISION": "",
        "UNSLOTH_FORCE_FLOAT32": "1",
        "UNSLOTH_ALLOW_CPU": "1",
    }
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu", **wrong})
    agrees(found, 78)
    text = json.dumps([c for c in found.report["checks"] if c["status"] == "fail"])
    assert all(name in text for name in wrong)


def test_an_unknown_argument_is_a_usage_error(tmp_path: Path) -> None:
    agrees(boot(tmp_path, {"BOOT_HARDWARE": "cpu"}, "--hardware=h100"), 64)


def test_help_needs_no_settings_and_writes_no_report(tmp_path: Path) -> None:
    found = boot(tmp_path, {}, "--help")
    assert found.code == 0
    assert "BOOT_HARDWARE" in found.out
    assert not found.report


def test_a_model_folder_that_is_not_there(tmp_path: Path) -> None:
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu", "BOOT_BASE_MODEL_ID": str(tmp_path / "none")})
    agrees(found, 66)
    assert str(tmp_path / "none") in json.dumps(found.report["exit"])


def test_a_report_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu", "BOOT_REPORT_DIR": "file/reports"})
    assert found.code == 73
    assert "BOOT_REPORT_DIR" in found.err
    lost = next(line for line in found.err.splitlines() if line.startswith("{"))
    assert json.loads(lost)["exit"]["code"] == 73


def test_a_boot_can_stop_early_and_says_so(tmp_path: Path) -> None:
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu", "BOOT_STOP_AFTER": "gpu"})
    agrees(found, 0)
    assert found.report["stopped_after"] == "gpu"
    assert found.report["verdict"] == "pass"
    assert found.statuses["cache"] == "not_run"


def test_the_entry_point_runs_as_a_file_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "app" / "boot.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "BOOT_HARDWARE" in done.stdout


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize(
    "redirection", [">&-", "2>&-", "<&-", "| true", "2>&1 | true", ">/dev/full", "2>/dev/full"]
)
def test_a_stream_that_takes_nothing_changes_neither_status_nor_report(
    tmp_path: Path, redirection: str
) -> None:
    command = f'"$0" -m app.boot {redirection}; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BOOT_HARDWARE": "v100"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 69
    report = json.loads((tmp_path / "reports" / "boot-report.json").read_text())
    assert report["exit"]["code"] == 69


def test_the_log_can_be_json_lines(tmp_path: Path) -> None:
    for settings in ({"BOOT_HARDWARE": "cpu", "BOOT_STOP_AFTER": "gpu"}, {"BOOT_HARDWRE": "cpu"}):
        found = boot(tmp_path, {**settings, "BOOT_LOG_FORMAT": "json"})
        stages = {json.loads(line)["stage"] for line in found.err.splitlines()}
        assert "settings" in stages


@pytest.mark.parametrize(
    "settings",
    [
        {"BOOT_RUN_ID": SECRET},
        {"BOOT_REPORT_DIR": f"reports-{SECRET}"},
        {"BOOT_BASE_MODEL_ID": f"/models/{SECRET}", "BOOT_STOP_AFTER": "cache"},
        {"POD_NAME": SECRET, "SLURM_JOB_ID": SECRET},
        {"HF_HOME": f"/proc/{SECRET}"},
    ],
)
def test_a_pasted_secret_is_in_no_output(tmp_path: Path, settings: dict[str, str]) -> None:
    given = {"BOOT_HARDWARE": "cpu", "BOOT_STOP_AFTER": "gpu", "HF_TOKEN": SECRET, **settings}
    for _ in range(2):  # the second boot names a file after the first one's report
        found = boot(tmp_path, given)
        assert SECRET not in found.out + found.err + json.dumps(found.report)
    assert not [path for path in tmp_path.rglob("previous/*") if SECRET in path.name]


def test_a_secret_on_the_command_line_is_in_no_output(tmp_path: Path) -> None:
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu"}, f"--token={SECRET}")
    agrees(found, 64)
    assert SECRET not in found.out + found.err + json.dumps(found.report)


@pytest.mark.stack
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_closes_the_report_and_ends_the_worker(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "BOOT_HARDWARE": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-m", "app.boot"],
        cwd=tmp_path,
        env={**environ, "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "importing torch" not in process.stderr.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert json.loads(out)["exit"] == code
    assert "Traceback" not in err
    report = json.loads((tmp_path / "reports" / "boot-report.json").read_text())
    assert (report["state"], report["exit"]["process_code"]) == ("interrupted", code)
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.mark.stack
def test_a_log_that_nobody_reads_does_not_break_the_worker(tmp_path: Path) -> None:
    """Libraries print while they are imported; a broken pipe there looked like a broken image."""
    command = '"$0" -m app.boot 2> >(head -3 >/dev/null)'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BOOT_HARDWARE": "cpu",
            "BOOT_STOP_AFTER": "load",
            "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
        },
        capture_output=True,
        check=False,
    )
    assert json.loads(done.stdout)["exit"] == done.returncode == 0


@pytest.mark.stack
def test_the_libraries_warn_of_nothing_in_a_healthy_rehearsal(tmp_path: Path) -> None:
    """As Python's logging and torch's write a level (W1201 00:43:14)."""
    settings = {"BOOT_HARDWARE": "cpu", "BOOT_STOP_AFTER": "numerics"}
    found = boot(tmp_path, {**settings, "BOOT_BASE_MODEL_ID": str(tiny_model("gemma3n-nf4"))})
    agrees(found, 0)
    said = [line for line in found.err.splitlines() if " worker " in line]
    assert said
    assert [line for line in said if re.search(r"warn|\bW\d{4} ", line, re.IGNORECASE)] == []


@pytest.mark.stack
def test_modules_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("json", "random", "torch", "unsloth", "pydantic", "subprocess"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadow')")
    settings = {"BOOT_HARDWARE": "cpu", "BOOT_STOP_AFTER": "stack"}
    found = boot(tmp_path, {**settings, "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4"))})
    agrees(found, 0)


@pytest.mark.stack
@pytest.mark.parametrize(
    ("module", "code", "cause"),
    [
        ("unsloth", "raise AttributeError('version skew')", "version skew"),
        ("unsloth", "this is no Python", "SyntaxError"),
        ("unsloth", "raise SystemExit(0)", "SystemExit"),
        ("torch", "raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13"),
    ],
)
def test_an_import_that_fails_is_told_with_its_innermost_cause(
    tmp_path: Path, module: str, code: str, cause: str
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / f"{module}.py").write_text(code)
    path = f"{ROOT}:{shadow}"
    model = tiny_model("llama-nf4")
    found = boot(
        tmp_path,
        {"BOOT_HARDWARE": "cpu", "PYTHONPATH": path, "BOOT_BASE_MODEL_ID": str(model)},
    )
    agrees(found, 70)
    assert found.statuses["stack"] == "fail"
    assert cause in found.report["exit"]["reason"]


@pytest.mark.stack
def test_a_truncated_shard_is_found_before_it_is_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model("gemma3n-nf4"), model)
    (shard,) = model.glob("*.safetensors")
    os.truncate(shard, shard.stat().st_size - 1)
    found = boot(tmp_path, {"BOOT_HARDWARE": "cpu", "BOOT_BASE_MODEL_ID": str(model)})
    agrees(found, 65)
    assert shard.name in json.dumps(found.report["checks"])
    assert found.statuses["load"] == "not_run"


def test_a_python_without_the_packages_is_told_to_be_rebuilt() -> None:
    """`-S` leaves the installed packages out."""
    command = [sys.executable, "-S", "-m", "app.boot"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_SOFTWARE
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bootguard cannot start: No module named ")
    assert "lock" in last


@pytest.mark.stack
def test_a_job_gets_the_real_model_and_its_status_is_the_boots(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def main(model, tokenizer, report):\n"
        "    n = sum(p.numel() for p in model.parameters() if p.requires_grad)\n"
        "    print(type(model).__name__, n > 0, len(tokenizer('a b')['input_ids']) > 0)\n"
        "    return 3\n"
    )
    model = tiny_model("llama-nf4")
    settings = {"BOOT_HARDWARE": "cpu", "BOOT_BASE_MODEL_ID": str(model), "BOOT_JOB": "mine:main"}
    # Within the tiny model's context, which is 2048.
    found = boot(tmp_path, settings | {"BOOT_MAX_SEQ_LENGTH": "512"})
    assert found.code == found.report["exit"]["process_code"] == 3, found.err
    first, *_, verdict = found.out.splitlines()
    assert first == "PeftModelForCausalLM True True"
    assert json.loads(verdict)["exit"] == 3
    assert (found.report["verdict"], found.report["job"]["code"]) == ("pass", 3)
