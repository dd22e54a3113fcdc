"""Facts of single values: what each kind of setting takes, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.profiles import PROFILES
from app.settings import BootSettings
from app.settings_model import rule_of
from app.stages import STAGES
from tests.settings_help import CPU, VARIABLES, loaded, problem_of


@pytest.mark.parametrize("variable", [name for name in VARIABLES if name != "HF_TOKEN"])
def test_an_empty_value_is_an_error_everywhere(variable: str) -> None:
    problem = problem_of({**CPU, variable: ""})
    assert (problem.name, problem.actual) == (variable, "empty")
    assert problem.suggestion == "unset it or give a value"


@pytest.mark.parametrize(
    "value",
    ["2", "maybe", "t", "y", "None", " true", "true ", "1.0", "-1", "\N{FULLWIDTH DIGIT ONE}"],
)
def test_booleans_take_the_usual_words_only(value: str) -> None:
    assert problem_of({**CPU, "BOOT_LOAD_IN_4BIT": value}).name == "BOOT_LOAD_IN_4BIT"


@pytest.mark.parametrize(
    "value",
    [
        *("1.0", "1e3", "0x10", " 8", "8 ", "8\n", "1_0", "+8", "eight", "true", "NaN", "-8"),
        *("1025", "9" * 5000, "\N{ARABIC-INDIC DIGIT EIGHT}"),
    ],
)
def test_integers_are_decimal_digits_within_bounds(value: str) -> None:
    assert problem_of({**CPU, "BOOT_LORA_R": value}).name == "BOOT_LORA_R"


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "1e999", "1", "-0.1", "0,5", "0.1 ", "1_0e-2", "0x0", "true"]
)
def test_dropout_is_finite_and_below_one(value: str) -> None:
    assert problem_of({**CPU, "BOOT_LORA_DROPOUT": value}).name == "BOOT_LORA_DROPOUT"


@pytest.mark.parametrize(("value", "is_"), [("0", 0.0), (".5", 0.5), ("5e-2", 0.05), ("0.", 0.0)])
def test_numbers_in_the_usual_forms_pass(value: str, is_: float) -> None:
    assert loaded({**CPU, "BOOT_LORA_DROPOUT": value}).lora_dropout == is_


@pytest.mark.parametrize(
    ("variable", "low", "high"),
    [
        ("BOOT_MAX_SEQ_LENGTH", 32, 2**20),
        ("BOOT_LORA_R", 1, 1024),
        ("BOOT_LORA_ALPHA", 1, 65504),
        ("BOOT_LORA_RANDOM_STATE", 0, 2**32 - 1),
        ("BOOT_STEPS", 1, 1000),
        ("BOOT_ATTEMPT", 1, 999_999),
    ],
)
def test_bounds_belong_to_the_range(variable: str, low: int, high: int) -> None:
    for value in (low, high):
        loaded({**CPU, variable: str(value)})
    for value in (low - 1, high + 1):
        assert problem_of({**CPU, variable: str(value)}).name == variable


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BOOT_BASE_MODEL_ID", "https://user:password@hub.example/org/model"),
        ("BOOT_BASE_MODEL_ID", "~/model"),
        ("BOOT_BASE_MODEL_ID", " org/model"),
        ("BOOT_BASE_MODEL_ID", "org/\x1bmodel"),
        ("BOOT_REVISION", "main\r"),
        ("BOOT_REVISION", "a..b"),
        ("BOOT_REVISION", "a b"),
        ("BOOT_REPORT_DIR", "~/reports"),
        ("BOOT_REPORT_DIR", "reports\n"),
        ("BOOT_REPORT_DIR", "a\0b"),
        ("BOOT_REPORT_DIR", "a" * 4096),
        ("BOOT_TERMINATION_LOG", "~/log"),
        ("BOOT_TERMINATION_LOG", "/dev/"),
        ("BOOT_METRICS_FILE", "."),
        ("BOOT_METRICS_FILE", "/metrics/.."),
        ("BOOT_METRICS_FILE", "boot.prom "),
        ("BOOT_JOB", "train"),
        ("BOOT_JOB", "train:"),
        ("BOOT_JOB", ":main"),
        ("BOOT_JOB", "train.py:main()"),
        ("BOOT_JOB", "jobs/train.py:main"),
        ("BOOT_JOB", ".train:main"),
        ("BOOT_JOB", "train:Trainer.fit"),
        ("BOOT_JOB", "jobs.2024:main"),
        ("BOOT_JOB", "jobs.import:main"),
        ("BOOT_JOB", "jobs:main\n"),
        ("BOOT_JOB", "j\N{LATIN SMALL LETTER O WITH DIAERESIS}bs:main"),
        ("BOOT_RUN_ID", "../../etc"),
        ("BOOT_RUN_ID", "-rf"),
        ("BOOT_STOP_AFTER", "loading"),
        ("BOOT_LOG_FORMAT", "JSON"),
        ("BOOT_DOWNLOAD", "always"),
        ("BOOT_USE_GRADIENT_CHECKPOINTING", "Unsloth"),
    ],
)
def test_text_that_cannot_be_meant_is_refused(variable: str, value: str) -> None:
    """A trailing carriage return comes from environment files written on Windows."""
    problem = problem_of({**CPU, variable: value})
    assert problem.name == variable
    assert problem.actual.isprintable()
    assert len(problem.actual) < 150
    assert "password" not in str(problem)


def test_a_list_of_words_is_the_list_in_the_code() -> None:
    for stage in STAGES:
        assert loaded({**CPU, "BOOT_STOP_AFTER": stage}).stop_after == stage
    assert rule_of("hardware").choices == tuple(PROFILES)


@pytest.mark.parametrize("target", ["train:main", "a.b.c:_run_2", "TRAIN:Main", "train.py:main"])
def test_a_job_is_a_function_of_a_module(target: str) -> None:
    """The last is a module `py` in a package `train`, and looking for it tells."""
    assert loaded({**CPU, "BOOT_JOB": target}).plan().job == target


def test_a_job_that_is_no_target_is_told_the_form() -> None:
    assert "jobs.train:main" in problem_of({**CPU, "BOOT_JOB": "train.main"}).suggestion


def test_files_are_paths() -> None:
    settings = loaded({**CPU, "BOOT_METRICS_FILE": "m/boot.prom", "BOOT_TERMINATION_LOG": "/t"})
    assert (settings.metrics_file, settings.termination_log) == (Path("m/boot.prom"), Path("/t"))


def test_something_must_be_left_to_train() -> None:
    none = {"BOOT_FINETUNE_LANGUAGE_LAYERS": "false"}
    assert "nothing to train" in problem_of({**CPU, **none}).suggestion
    assert loaded({**CPU, **none, "BOOT_FINETUNE_VISION_LAYERS": "true"}).finetune_vision_layers
    with pytest.raises(ValidationError, match="nothing to train"):
        BootSettings(hardware="cpu", finetune_language_layers=False)


def test_only_the_hub_has_revisions() -> None:
    for model in ("/models/x", "./x", "../x", "rehearsal:gemma3n"):
        environ = {**CPU, "BOOT_BASE_MODEL_ID": model, "BOOT_REVISION": "main"}
        assert problem_of(environ).name == "BOOT_REVISION"


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("H100", "h100"), ("v10O", "v100"), ("h1OO", None), ("nvidia-v100", "v100"),
        ("CPU", "cpu"), ("a100", None), ("l40s", None), ("gpu", None), ("b200", None),
    ],
)  # fmt: skip
def test_only_what_is_close_is_suggested(value: str, meant: str | None) -> None:
    problem = problem_of({"BOOT_HARDWARE": value})
    assert problem.suggestion == (f"did you mean {meant}?" if meant else "")
    assert problem.finding.next_step


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"BOOT_HARDWARE": "a100"},
        {**CPU, "BOOT_STEPS": ""},
        {**CPU, "BOOT_NEVER_HEARD": "1"},
        {**CPU, "WORLD_SIZE": "8"},
        {**CPU, "BOOT_REVISION": "v1", "BOOT_BASE_MODEL_ID": "/m"},
        {**CPU, "BOOT_FINETUNE_MLP_MODULES": "0", "BOOT_FINETUNE_ATTENTION_MODULES": "0"},
    ],
)
def test_a_next_step_is_a_step_and_the_reason_does_not_repeat_it(environ: dict[str, str]) -> None:
    finding = problem_of(environ).finding
    assert finding.next_step.split()[0] in {"set", "unset", "correct", "start"}
    assert finding.next_step not in finding.reason
    assert len(finding.reason) < 200


def test_a_dropout_too_small_for_a_number_is_none() -> None:
    """No float tells it from 0, and no training run would."""
    assert loaded({**CPU, "BOOT_LORA_DROPOUT": "1e-400"}).lora_dropout == 0
