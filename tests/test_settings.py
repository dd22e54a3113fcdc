"""Facts of the settings: what is taken, what is refused, and that all of it is said at once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from app import config
from app.config import ModelRequest
from app.errors import BootError
from app.image import Image
from app.outcome import Fault
from app.plan import Plan
from app.profiles import PROFILES
from app.settings import BootSettings, SettingsError, load_settings, report_dir_of
from app.settings_model import PUBLIC
from app.stages import STAGES
from tests.settings_help import CPU, loaded, problem_of

TOKEN = "hf_Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7"
IMAGE = Image(
    profile="h100",
    lock_digest="sha256:1",
    versions={},
    architectures=["sm_90"],
    minimum_driver=580,
    base_digest="sha256:2",
)


def test_defaults_are_the_origins() -> None:
    """`base_model_id` is left to the profile, whose GPU values are the origin's model."""
    settings = loaded(CPU)
    for field in fields(ModelRequest):
        assert field.name in BootSettings.model_fields
        if field.name != "base_model_id":
            assert getattr(settings, field.name) == field.default
    for profile in PROFILES.values():
        assert profile.rehearsal or profile.default_model == config.BASE_MODEL_ID


@pytest.mark.parametrize("hardware", PROFILES)
def test_plan_takes_every_field_of_the_request(hardware: str) -> None:
    plan = loaded({"BOOT_HARDWARE": hardware}).plan()
    profile = PROFILES[hardware]
    assert plan == Plan(profile, ModelRequest(profile.default_model), Path("reports"))
    environ = {
        "BOOT_HARDWARE": hardware,
        "BOOT_BASE_MODEL_ID": "org/other",
        "BOOT_MAX_SEQ_LENGTH": "128",
        "BOOT_LOAD_IN_4BIT": "no",
        "BOOT_LORA_R": "1",
        "BOOT_LORA_ALPHA": "2",
        "BOOT_LORA_DROPOUT": "0",
        "BOOT_LORA_RANDOM_STATE": "4294967295",
        "BOOT_FINETUNE_VISION_LAYERS": "on",
        "BOOT_FINETUNE_LANGUAGE_LAYERS": "OFF",
        "BOOT_FINETUNE_ATTENTION_MODULES": "False",
        "BOOT_FINETUNE_MLP_MODULES": "YES",
        "BOOT_USE_GRADIENT_CHECKPOINTING": "0",
        "BOOT_REVISION": "refs/pr/1",
        "BOOT_DOWNLOAD": "never",
        "BOOT_REPORT_DIR": "/reports",
        "BOOT_STEPS": "7",
        "BOOT_JOB": "jobs.train:main",
    }
    assert loaded(environ).plan() == Plan(
        profile=profile,
        request=ModelRequest(
            *("org/other", 128, False, 1, 2, 0.0, 2**32 - 1, True, False, False, True),
            use_gradient_checkpointing=False,
        ),
        report_dir=Path("/reports"),
        revision="refs/pr/1",
        download="never",
        steps=7,
        job="jobs.train:main",
    )


def test_settings_are_frozen_and_take_nothing_unknown() -> None:
    settings = loaded(CPU)
    with pytest.raises(ValidationError, match="frozen"):
        settings.__setattr__("lora_r", 1)
    with pytest.raises(ValidationError):
        BootSettings.model_validate({"hardware": "cpu", "lora_rank": 8})


def test_the_class_itself_reads_no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOOT_LORA_R", "8")
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("BOOT_LORA_R=8\n")
    assert BootSettings(hardware="cpu").lora_r == config.LORA_R
    assert loaded(CPU).lora_r == config.LORA_R


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "BOOT_LORA_DROPOUT",
            "1.5",
            "BOOT_LORA_DROPOUT must be a number from 0 to below 1, and is '1.5'",
        ),
        (
            "BOOT_LORA_R",
            "0",
            "BOOT_LORA_R must be a whole number from 1 to 1024, and is '0'",
        ),
        (
            "BOOT_HARDWARE",
            "H100",
            "BOOT_HARDWARE must be one of v100, h100, cpu, and is 'H100': did you mean h100?",
        ),
        (
            "BOOT_REVISION",
            "",
            (
                "BOOT_REVISION must be a branch, a tag or a commit hash, and is empty:"
                " unset it or give a value"
            ),
        ),
        (
            "BOOT_HARDWRE",
            "h100",
            (
                "BOOT_HARDWRE must be the name of a setting, and is unknown:"
                " did you mean BOOT_HARDWARE?"
            ),
        ),
        (
            "UNSLOTH_ALLOW_CPU",
            "1",
            (
                "UNSLOTH_ALLOW_CPU must be unset, and is set:"
                " unset it: it takes the CPU for a CUDA device"
            ),
        ),
        (
            "WORLD_SIZE",
            "8",
            (
                "WORLD_SIZE must be 1 or unset, and is '8': start one process: jobs of several"
                " ranks are not supported by this release"
            ),
        ),
    ],
)
def test_an_error_says_name_expected_actual_and_what_to_do(
    name: str, value: str, line: str
) -> None:
    assert str(problem_of({**CPU, name: value})) == line


def test_hardware_is_required_outside_an_image() -> None:
    problem = problem_of({})
    assert problem.name == "BOOT_HARDWARE"
    assert problem.actual == "not set"


def test_all_errors_come_at_once() -> None:
    """Those of single values, of values together, of names and of others' variables."""
    environ = {
        "BOOT_LORA_R": "0",
        "BOOT_LORA_DROPOUT": "1.5",
        "BOOT_REVISION": "",
        "BOOT_LORA_RANK": "8",
        "BOOT_FINETUNE_MLP_MODULES": "0",
        "BOOT_FINETUNE_ATTENTION_MODULES": "0",
        "UNSLOTH_FORCE_FLOAT32": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "",
        "HF_TOKEN": "two words",
    }
    with pytest.raises(SettingsError) as caught:
        loaded(environ)
    names = [problem.name for problem in caught.value.problems]
    assert names == [
        "BOOT_LORA_RANK",
        "BOOT_HARDWARE",
        "BOOT_REVISION",
        "BOOT_LORA_R",
        "BOOT_LORA_DROPOUT",
        "HF_TOKEN",
        "BOOT_FINETUNE_ATTENTION_MODULES or BOOT_FINETUNE_MLP_MODULES",
        "UNSLOTH_FORCE_FLOAT32",
        "WORLD_SIZE",
        "LOCAL_RANK",
    ]
    assert str(caught.value).count("\n") == len(names) - 1
    assert isinstance(caught.value, BootError)
    assert caught.value.finding.fault is Fault.CONFIG
    for problem in caught.value.problems:
        assert problem.finding.fault is Fault.CONFIG
        assert problem.finding.next_step
        assert "\n" not in problem.finding.reason


def test_a_token_in_another_variable_is_an_error() -> None:
    """It would be valid there, and stand in report and log."""
    for environ in ({"BOOT_RUN_ID": TOKEN}, {"BOOT_RUN_ID": "a-secret", "HF_TOKEN": "a-secret"}):
        problem = problem_of({**CPU, **environ})
        assert problem.name == "BOOT_RUN_ID"
        assert problem.expected == "free of secrets"
    assert loaded({**CPU, "BOOT_REPORT_DIR": "/data/hf_checkpoints"}).public()["report_dir"] == (
        "/data/hf_checkpoints"
    )


def test_inside_an_image_the_hardware_is_the_images() -> None:
    assert loaded({}, IMAGE).hardware == "h100"
    assert loaded({"BOOT_HARDWARE": "h100"}, IMAGE).profile is PROFILES["h100"]


def test_any_image_can_rehearse() -> None:
    assert loaded(CPU, IMAGE).profile.rehearsal


def test_another_gpu_than_the_images_is_an_error() -> None:
    problem = problem_of({"BOOT_HARDWARE": "v100"}, IMAGE)
    assert problem.name == "BOOT_HARDWARE"
    assert "h100" in problem.expected
    assert "v100" in problem.suggestion
    assert problem_of({"BOOT_HARDWARE": "a100"}, IMAGE).expected == "one of v100, h100, cpu"


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_that_is_to_run_after_the_pass_is_dropped_silently(stage: str) -> None:
    """With a job or a command the only normal end is after it."""
    stop = {**CPU, "BOOT_STOP_AFTER": stage}
    job = {**stop, "BOOT_JOB": "jobs.train:main"}
    if stage == "job":
        assert loaded(job).job == "jobs.train:main"
        assert load_settings(stop, image=None, secrets_dir=None, command=True).stop_after == "job"
        return
    problem = problem_of(job)
    assert problem.name == "BOOT_STOP_AFTER"
    assert "BOOT_JOB" in problem.expected
    with pytest.raises(SettingsError) as caught:
        load_settings(stop, image=None, secrets_dir=None, command=True)
    (problem,) = caught.value.problems
    assert problem.name == "BOOT_STOP_AFTER"
    assert "--" in problem.expected


def test_a_job_and_a_command_are_one_too_many() -> None:
    environ = {**CPU, "BOOT_JOB": "jobs.train:main"}
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, image=None, secrets_dir=None, command=True)
    (problem,) = caught.value.problems
    assert problem.name == "BOOT_JOB"
    assert problem.finding.fault is Fault.CONFIG
    load_settings(CPU, image=None, secrets_dir=None, command=True)


def test_a_wrong_stage_beside_a_command_is_said_once() -> None:
    environ = {**CPU, "BOOT_STOP_AFTER": "loading"}
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, image=None, secrets_dir=None, command=True)
    assert [problem.name for problem in caught.value.problems] == ["BOOT_STOP_AFTER"]


def test_report_folder_is_found_among_wrong_settings() -> None:
    assert report_dir_of({"BOOT_REPORT_DIR": "/r", "BOOT_LORA_R": "0"}) == Path("/r")
    for environ in ({}, {"BOOT_REPORT_DIR": ""}, {"BOOT_REPORT_DIR": "a\0"}):
        assert report_dir_of(environ) == Path("reports")


def test_every_field_is_public_or_secret() -> None:
    assert {*PUBLIC, "hf_token"} == set(BootSettings.model_fields)
    public = loaded({**CPU, "HF_TOKEN": TOKEN}).public()
    assert public["hf_token"] == "set"
    assert loaded(CPU).public()["hf_token"] == "unset"
    assert public["report_dir"] == "reports"
    assert public["lora_dropout"] == 0.05
    assert public["load_timeout_s"] == 1800
    assert public["termination_log"] is None
    assert public["revision"] is None
