"""Facts about compose.yaml and .env.example: as they are written, and as Compose reads them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.settings import load_settings
from app.settings_deadlines import DeadlineSettings
from app.settings_model import BootSettings, rule_of, variable_of
from tests.compose_project import (
    BOOTS,
    COMPOSE,
    PREPARES,
    ROOT,
    SERVICES,
    composed,
    no_compose,
    written,
)
from tests.test_docs import documents

EXAMPLE = ROOT / ".env.example"
SETTINGS = {variable_of(field) for field in BootSettings.model_fields}
# A GPU's can be asked to rehearse; any other value ends with 78.
HARDWARE = {
    "boot-h100": "${BOOT_HARDWARE-h100}",
    "boot-v100": "${BOOT_HARDWARE-v100}",
    "boot-cpu": "cpu",
}
# Compose writes quantities as it likes.
GIB = 1024**3

with_compose = pytest.mark.skipif(bool(no_compose()), reason=no_compose())
every_service = pytest.mark.parametrize("name", SERVICES)
every_boot = pytest.mark.parametrize("name", BOOTS)
every_prepare = pytest.mark.parametrize("name", PREPARES)


def service(name: str) -> dict[str, Any]:
    return dict(written()["services"][name])


def example() -> dict[str, str]:
    """What the example offers, each line without its #."""
    found = re.findall(
        r"^#([A-Za-z0-9_]+)=(.*)$", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return dict(found)


@pytest.mark.parametrize("path", [COMPOSE, EXAMPLE], ids=lambda path: path.name)
def test_what_it_takes_from_the_settings_is_as_make_docs_makes_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == documents()[path]


def test_the_services_are_these() -> None:
    assert set(written()["services"]) == set(SERVICES)


@every_service
def test_every_service_is_locked_down(name: str) -> None:
    kept = service(name)
    assert kept["read_only"] is True
    assert kept["cap_drop"] == ["ALL"]
    assert kept["security_opt"] == ["no-new-privileges:true"]
    assert kept["restart"] == "no"
    limits = kept["deploy"]["resources"]["limits"]
    assert set(limits) == {"memory", "pids"}  # an engine refuses more processors than it has
    # Two inits complain about each other, and the image has one.
    assert not {"init", "privileged", "pid", "ipc", "devices", "ports"} & set(kept)


@every_boot
def test_a_boot_has_no_rights_and_enough_room(name: str) -> None:
    kept = service(name)
    assert kept["user"] == "${BOOTGUARD_UID:-10001}:0"
    assert kept["network_mode"] == "${BOOTGUARD_NETWORK:-bridge}"
    assert "cap_add" not in kept
    assert kept["tmpfs"] == ["/tmp:exec,mode=1777,size=4g"]  # noqa: S108 - in the container
    assert kept["shm_size"] == "8g"


@every_boot
def test_compose_stops_a_boot_later_than_it_stops_itself(name: str) -> None:
    found = re.fullmatch(r"([0-9]+)m", service(name)["stop_grace_period"])
    assert found is not None
    longest = re.search(r"to ([0-9]+)$", rule_of("grace_s").must)
    assert longest is not None
    dead_volume_s = 30
    assert int(found[1]) * 60 > int(longest[1]) + dead_volume_s


@every_boot
def test_every_setting_is_passed_on_and_nothing_else_of_that_name(name: str) -> None:
    environment = service(name)["environment"]
    assert {each for each in environment if each.startswith("BOOT")} == SETTINGS - {"HF_TOKEN"}
    assert "HF_TOKEN" in environment
    fixed = {each: value for each, value in environment.items() if value is not None}
    assert fixed == {"BOOT_REPORT_DIR": "/reports", "BOOT_HARDWARE": HARDWARE[name]}


@pytest.mark.parametrize("profile", ["h100", "v100"])
def test_what_the_image_sets_is_never_passed_on_without_a_value(profile: str) -> None:
    """The engine takes a variable without a value out of what the image has."""
    text = (ROOT / f"Dockerfile.{profile}").read_text(encoding="utf-8")
    blocks = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    of_image = set(re.findall(r"\b([A-Z_]+)=", " ".join(blocks)))
    assert "BOOT_HARDWARE" in of_image
    for name in BOOTS:
        unset = {each for each, value in service(name)["environment"].items() if value is None}
        assert not unset & of_image


@every_boot
def test_only_a_gpu_boot_asks_for_a_device_and_for_one(name: str) -> None:
    resources = service(name)["deploy"]["resources"]
    asked = resources.get("reservations", {}).get("devices", [])
    one = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert asked == ([] if name == "boot-cpu" else one)


def test_boots_share_models_and_no_compiled_code() -> None:
    volumes = [service(name)["volumes"][1:] for name in BOOTS]
    assert {models for models, _ in volumes} == {"${BOOTGUARD_MODELS:-models}:/models"}
    caches = [cache for _, cache in volumes]
    assert len(set(caches)) == len(BOOTS)
    assert {cache.partition(":")[0] for cache in caches} | {"models"} == set(written()["volumes"])
    assert {cache.partition(":")[2] for cache in caches} == {"/cache"}


@every_prepare
def test_a_prepare_has_two_rights_and_sees_little(name: str) -> None:
    kept = service(name)
    assert kept["cap_add"] == ["CHOWN", "FOWNER"]
    assert kept["network_mode"] == "none"
    assert kept["user"] == "0:0"
    assert set(kept["environment"]) == {"BOOTGUARD_REPORTS", "BOOTGUARD_UID"}
    reports, project = kept["volumes"]
    assert reports["target"] == "/reports"
    assert (project["target"], project["read_only"]) == ("/project", True)
    # Elsewhere the image's VOLUMEs would be made anew by each container, and stay behind.
    assert [each.partition(":")[0] for each in kept["tmpfs"]] == ["/cache", "/models"]


@every_boot
def test_a_boot_waits_for_the_prepare_of_its_own_image(name: str) -> None:
    kept = service(name)
    (before,) = kept["depends_on"]
    assert kept["depends_on"][before] == {"condition": "service_completed_successfully"}
    prepare = service(before)
    assert (kept["image"], kept["build"]) == (prepare["image"], prepare["build"])
    assert kept["volumes"][0] == prepare["volumes"][0]


@every_service
def test_every_service_can_build_its_image(name: str) -> None:
    kept = service(name)
    profile = kept["image"].removeprefix("bootguard:")
    assert kept["build"]["dockerfile"] == f"Dockerfile.{profile}"
    text = (ROOT / kept["build"]["dockerfile"]).read_text(encoding="utf-8")
    declared = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    assert set(kept["build"]["args"]) == declared - {"LOCK", "PROFILE", "SOURCE_DATE_EPOCH"}
    assert set(kept["build"]["args"].values()) == {None}
    assert profile == ("v100" if name.endswith("v100") else "h100")


def test_the_example_has_every_variable_once_and_no_other() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    compose = written()
    read = set(re.findall(r"\$\{([A-Z_]+)", text))
    read |= {each["environment"] for each in compose["secrets"].values()}
    for kept in compose["services"].values():
        read |= {name for name, value in kept["environment"].items() if value is None}
        read |= set(kept["build"]["args"])
    lines = re.findall(r"^#([A-Za-z0-9_]+)=", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(lines) == sorted(read)


def test_the_example_sets_nothing() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


def test_the_defaults_in_the_example_are_the_defaults() -> None:
    shown = {name: value for name, value in example().items() if name in SETTINGS and value}
    assert len(shown) > len(DeadlineSettings.model_fields)
    required = {"BOOT_HARDWARE": "cpu"}
    assert load_settings(shown | required, image=None) == load_settings(required, image=None)


@with_compose
@every_boot
def test_what_is_set_reaches_the_boot_and_what_is_not_is_not_there(name: str) -> None:
    hostile = dict.fromkeys(SETTINGS, 'a "b" $$c # d')
    for given in ({}, hostile):
        environment = composed(environ=given)["services"][name]["environment"]
        del environment["BOOT_REPORT_DIR"]
        if name == "boot-cpu" or not given:
            assert environment.pop("BOOT_HARDWARE") == name.removeprefix("boot-")
        passed_on = {each: value for each, value in environment.items() if value is not None}
        # `config` writes what can be read again: each dollar twice.
        shown = {each: value.replace("$", "$$") for each, value in given.items()}
        assert passed_on == {each: shown[each] for each in shown if each in environment}


@with_compose
def test_a_report_folder_of_the_hosts_settings_is_not_taken_for_one_in_the_container() -> None:
    read = composed(environ={"BOOT_REPORT_DIR": "reports"})["services"]["boot-h100"]
    assert read["environment"]["BOOT_REPORT_DIR"] == "/reports"
    assert read["volumes"][0]["source"] == str(ROOT / "reports")


@with_compose
def test_composes_own_variables_do_what_the_example_says(tmp_path: Path) -> None:
    models = tmp_path / "models"
    own = {
        "BOOTGUARD_REPORTS": str(tmp_path / "reports of mine"),
        "BOOTGUARD_MODELS": str(models),
        "BOOTGUARD_MEMORY": "3g",
        "BOOTGUARD_UID": "1234",
        "BASE_IMAGE": "mine:1@sha256:12",
        "BASE_DIGEST": "sha256:12",
    }
    read = composed(environ=own)["services"]["boot-cpu"]
    reports, hub, _ = read["volumes"]
    assert reports["source"] == own["BOOTGUARD_REPORTS"]
    assert (hub["type"], hub["source"], hub["target"]) == ("bind", str(models), "/models")
    assert read["user"] == "1234:0"
    assert int(read["deploy"]["resources"]["limits"]["memory"]) == 3 * GIB
    assert read["build"]["args"] == {name: own[name] for name in ("BASE_IMAGE", "BASE_DIGEST")}
    assert not {name for name in read["environment"] if name.startswith("BOOTGUARD")}


@with_compose
def test_without_them_the_defaults_are_those_of_the_example() -> None:
    own = {name: value for name, value in example().items() if name.startswith("BOOTGUARD")}
    shown = composed(environ={name: value for name, value in own.items() if value})
    unset = composed(environ={})
    for name in BOOTS:
        assert shown["services"][name] == unset["services"][name]


@with_compose
def test_a_file_beside_it_is_read_and_the_shell_comes_first(tmp_path: Path) -> None:
    shutil.copy(COMPOSE, tmp_path)
    (tmp_path / ".env").write_text("BOOT_STEPS=5\nBOOT_RUN_ID=mine\nBOOTGUARD_MEMORY=1g\n")
    there = ("--project-directory", str(tmp_path), "--file", str(tmp_path / "compose.yaml"))
    read = composed(*there, environ={"BOOT_STEPS": "7"})["services"]["boot-cpu"]
    assert read["environment"]["BOOT_STEPS"] == "7"
    assert read["environment"]["BOOT_RUN_ID"] == "mine"
    assert int(read["deploy"]["resources"]["limits"]["memory"]) == GIB
    assert read["volumes"][0]["source"] == str(tmp_path / "reports")
