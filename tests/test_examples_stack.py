"""The example jobs in whole boots on a CPU: the real Unsloth and TRL on tiny models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from app.report import Identity, Report
from app.sections import Precision, RequestedPrecision, ResolvedPrecision
from examples.guarded import DATA, output_folder, precision, questions
from tests.stack_models import load, plan_for
from tests.tiny_models import Kind, tiny_model

ROOT = Path(__file__).resolve().parent.parent
GIB = 1024**3


@dataclass(frozen=True)
class Ran:
    """A boot with a job, after its end."""

    code: int
    lines: list[str]  # of standard output
    err: str
    report: dict[str, Any]
    folder: Path

    def line(self, start: str) -> str:
        """The one line in which the job says what came of it."""
        (found,) = (line for line in self.lines if line.startswith(start))
        return found


def ran(folder: Path, kind: Kind, job: str) -> Ran:
    """Boot one tiny model in a folder of its own, as a user does, and run the job on it."""
    done = subprocess.run(
        [sys.executable, "-m", "app.boot"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BOOT_HARDWARE": "cpu",
            "BOOT_BASE_MODEL_ID": str(tiny_model(kind)),
            "BOOT_MAX_SEQ_LENGTH": "512",
            "BOOT_JOB": f"examples.{job}:main",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = folder / "reports" / "boot-report.json"
    found = json.loads(report.read_text()) if report.is_file() else {}
    return Ran(done.returncode, done.stdout.splitlines(), done.stderr, found, folder)


def closed(found: Ran, target: str) -> None:
    """The job ended by itself with 0, and report, process and verdict line agree on it."""
    assert found.code == 0, found.err
    job = found.report["job"]
    assert (job["target"], job["returned"], job["raised"], job["code"]) == (target, "0", None, 0)
    assert job["duration_s"] > 0
    assert (found.report["state"], found.report["exit"]["process_code"]) == ("complete", 0)
    assert {stage["name"]: stage["status"] for stage in found.report["stages"]}["job"] == "pass"
    assert json.loads(found.lines[-1])["exit"] == 0
    # Unbounded growth is what this is for: the stack alone takes a gigabyte.
    assert found.report["memory"]["worker_peak_bytes"] < 4 * GIB
    left = sorted(path.name for path in found.folder.iterdir())
    assert left == ["reports"], "a trainer has written into the working folder"


def loaded_again(kind: Kind, adapter: Path) -> dict[str, Any]:
    """The adapter's tensors as peft puts them on a base model that is loaded anew."""
    model, _ = load(plan_for(kind))
    from peft import PeftModel
    from peft.utils import get_peft_model_state_dict
    from safetensors.torch import load_file

    model = PeftModel.from_pretrained(model, adapter)
    on_model: dict[str, Any] = get_peft_model_state_dict(model)
    in_file = load_file(adapter / "adapter_model.safetensors")
    assert on_model.keys() == in_file.keys()
    assert all(bool((on_model[name] == value).all()) for name, value in in_file.items())
    return on_model


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3n-nf4", "llama-nf4"])
def test_supervised_fine_tuning_lowers_the_loss_and_saves_a_loadable_adapter(
    tmp_path: Path, kind: Kind
) -> None:
    found = ran(tmp_path, kind, "sft_job")
    closed(found, "examples.sft_job:main")
    line = found.line("sft: ")
    first, last = (float(number) for number in re.findall(r"\d+\.\d+", line)[:2])
    assert last < first
    tensors = loaded_again(kind, tmp_path / "reports" / "adapter-sft")
    b_matrices = [tensor for name, tensor in tensors.items() if "lora_B" in name]
    assert len(b_matrices) == found.report["adapter"]["n_pairs"]
    assert all(bool(tensor.any()) for tensor in b_matrices), "lora_B starts at zero"


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3n-nf4", "qwen-nf4"])
def test_grpo_moves_the_adapter_with_finite_numbers(tmp_path: Path, kind: Kind) -> None:
    found = ran(tmp_path, kind, "grpo_job")
    closed(found, "examples.grpo_job:main")
    line = found.line("grpo: ")
    moved, of = (int(number) for number in re.findall(r"\d+", line)[:2])
    assert 0 < moved <= of == 2 * found.report["adapter"]["n_pairs"]
    rewards = [float(number) for number in line.rpartition("rewards ")[2].split()]
    assert len(rewards) == 5
    assert all(isfinite(reward) and 0 < reward < 1 for reward in rewards)
    tensors = loaded_again(kind, tmp_path / "reports" / "adapter-grpo")
    assert any(bool(tensor.any()) for name, tensor in tensors.items() if "lora_B" in name)


def booted(dtype: str, device: str, *, forced: bool = False, **settings: str) -> Report:
    """A report as far as a job's flags need one."""
    return Report(
        report_id="r",
        started="now",
        identity=Identity(bootguard="0", hostname="h", pid=1, uid=0, python="3", platform="linux"),
        settings=settings,
        precision=Precision(
            requested=RequestedPrecision(hardware="any", load_in_4bit=True),
            resolved=ResolvedPrecision(
                compute_dtype=dtype, device=device, reason="", forced_float32=forced
            ),
        ),
    )


@pytest.mark.parametrize(
    ("dtype", "device", "forced", "flags"),
    [
        ("bfloat16", "cuda", False, {"bf16"}),
        ("float16", "cuda", False, {"fp16"}),
        # Gemma 3n on a V100: Unsloth's trainer wants neither flag.
        ("float16", "cuda", True, set()),
        ("float32", "cpu", False, {"use_cpu"}),
        ("bfloat16", "cpu", False, {"use_cpu"}),
    ],
)
def test_the_trainer_trains_in_the_precision_that_was_proved(
    dtype: str, device: str, *, forced: bool, flags: set[str]
) -> None:
    found = precision(booted(dtype, device, forced=forced))
    assert found.keys() == {"use_cpu", "bf16", "fp16"}
    assert {name for name, on in found.items() if on} == flags


def test_a_report_without_precision_is_refused_and_not_guessed_around() -> None:
    with pytest.raises(ValueError, match="no precision"):
        precision(booted("float32", "cpu").model_copy(update={"precision": None}))


def test_the_adapter_lands_beside_the_report_or_where_the_example_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = booted("float32", "cpu", report_dir="/reports")
    assert output_folder(report, "adapter") == Path("/reports/adapter")
    monkeypatch.setenv("EXAMPLE_OUTPUT_DIR", "/volume")
    assert output_folder(report, "adapter") == Path("/volume/adapter")


def test_the_data_are_forty_different_questions_with_answers() -> None:
    rows = questions()
    assert len({row["question"] for row in rows}) == len(rows) == 40
    assert all(row.keys() == {"question", "answer"} and row["answer"] for row in rows)
    assert DATA.stat().st_size < 10_000
