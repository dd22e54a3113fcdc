"""Facts of names: misspelt ones, and those that orchestrators add by themselves."""

from __future__ import annotations

import pytest

from app.settings_names import HANDED_OVER, is_service_variable, nearest, unknown_names
from tests.settings_help import VARIABLES


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("BOOT_HARDWRE", "BOOT_HARDWARE"),
        ("BOOT_MODEL_ID", "BOOT_BASE_MODEL_ID"),
        ("BOOT_SEQ_LEN", "BOOT_MAX_SEQ_LENGTH"),
        ("BOOT_LORA_RANK", "BOOT_LORA_R"),
        ("BOOT_HF_TOKEN", "HF_TOKEN"),
        ("BOOT_HARDWARE ", "BOOT_HARDWARE"),
        ("boot_hardware", "BOOT_HARDWARE"),
        ("Boot_Lora_R", "BOOT_LORA_R"),
        ("BOOT_REPORT_PORT", "BOOT_REPORT_DIR"),
        ("BOOT_JOBS", "BOOT_JOB"),
        ("BOOT_CHECKPIONT_TIMEOUT_S", "BOOT_CHECKPOINT_TIMEOUT_S"),
        ("BOOT_LOADING_TIMEOUT_S", "BOOT_LOAD_TIMEOUT_S"),
        ("BOOT_GPU_TIMEOUT", "BOOT_GPU_TIMEOUT_S"),
        ("boot_gpu_timeout_seconds", "BOOT_GPU_TIMEOUT_S"),
        ("BOOT_TIMEOUT", "BOOT_TOTAL_TIMEOUT_S"),
        ("BOOT_TIMEOUT_S", "BOOT_TOTAL_TIMEOUT_S"),
        ("BOOT_GRACE", "BOOT_GRACE_S"),
    ],
)
def test_a_misspelling_is_an_error_with_a_suggestion(wrong: str, meant: str) -> None:
    (problem,) = unknown_names({wrong: "secret?"}, VARIABLES)
    assert problem.suggestion == f"did you mean {meant}?"
    assert "secret?" not in str(problem)


def test_a_name_far_from_all_is_an_error_without_one() -> None:
    (problem,) = unknown_names({"BOOT_ZZZ": ""}, VARIABLES)
    assert "--help" in problem.suggestion
    assert nearest("BOOT_ZZZ", VARIABLES) is None


def test_the_settings_have_no_deadline_and_no_other_is_suggested() -> None:
    (problem,) = unknown_names({"BOOT_SETTINGS_TIMEOUT_S": "1"}, VARIABLES)
    assert "--help" in problem.suggestion


def test_what_a_boot_hands_over_is_no_typo_in_the_boot_that_is_started_with_it() -> None:
    assert not unknown_names(dict.fromkeys(HANDED_OVER, "x"), VARIABLES)
    assert not set(HANDED_OVER) & set(VARIABLES)


@pytest.mark.parametrize("name", HANDED_OVER)
def test_one_of_them_alone_was_set_by_a_person_and_would_do_nothing(name: str) -> None:
    (problem,) = unknown_names({name: "/models/mine"}, VARIABLES)
    assert problem.name == name
    assert problem.suggestion.startswith("unset it: ")


def test_lower_case_names_of_others_are_none_of_ours() -> None:
    assert not unknown_names({"boot_zzz": "", "BOOTSTRAP": "", "boot": ""}, VARIABLES)


SERVICE = {
    "BOOT_H100_SERVICE_HOST": "10.0.0.7",
    "BOOT_H100_SERVICE_PORT": "8080",
    "BOOT_H100_SERVICE_PORT_HTTP": "8080",
    "BOOT_H100_PORT": "tcp://10.0.0.7:8080",
    "BOOT_H100_PORT_8080_TCP": "tcp://10.0.0.7:8080",
    "BOOT_H100_PORT_8080_TCP_PROTO": "tcp",
    "BOOT_H100_PORT_8080_TCP_PORT": "8080",
    "BOOT_H100_PORT_8080_TCP_ADDR": "10.0.0.7",
}


def test_variables_of_a_service_are_left_alone() -> None:
    assert not unknown_names(SERVICE, VARIABLES)
    for name, value in SERVICE.items():
        assert is_service_variable(name, {name: value})
    boot = {name.replace("BOOT_H100", "BOOT"): value for name, value in SERVICE.items()}
    assert not unknown_names(boot, VARIABLES)


def test_variables_of_a_docker_link_are_left_alone() -> None:
    link = {
        "BOOT_DB_PORT": "tcp://172.17.0.5:5432",
        "BOOT_DB_NAME": "/web/db",
        "BOOT_DB_ENV_A": "b",
    }
    assert not unknown_names(link, VARIABLES)
    del link["BOOT_DB_PORT"]
    assert len(unknown_names(link, VARIABLES)) == 2


def test_a_port_that_no_service_explains_is_a_typo() -> None:
    assert unknown_names({"BOOT_H100_PORT": "8080"}, VARIABLES)
    assert not unknown_names({"BOOT_H100_PORT": "x", "BOOT_H100_SERVICE_HOST": "h"}, VARIABLES)


def test_no_setting_looks_like_a_service() -> None:
    assert not [name for name in VARIABLES if is_service_variable(name, {name: "tcp://a:1"})]
