"""Facts of secrets that come as files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.settings import SettingsError, load_settings
from tests.settings_help import CPU


def test_a_secret_file_gives_the_token(tmp_path: Path) -> None:
    (tmp_path / "hf_token").write_text("hf_0123456789\n")
    (tmp_path / "kubernetes.io").mkdir()
    (tmp_path / "other").write_bytes(b"\xff")
    settings = load_settings(CPU, image=None, secrets_dir=tmp_path)
    assert settings.hf_token is not None
    assert settings.hf_token.get_secret_value() == "hf_0123456789"


def test_variables_count_before_files(tmp_path: Path) -> None:
    (tmp_path / "HF_TOKEN").write_text("token-from-a-file")
    (tmp_path / "BOOT_REVISION").write_text("from-a-file\n")
    (tmp_path / "BOOT_RUN_ID").write_text("from-a-file\n")
    environ = {**CPU, "HF_TOKEN": "from-a-variable", "BOOT_REVISION": "v2"}
    settings = load_settings(environ, image=None, secrets_dir=tmp_path)
    assert settings.hf_token is not None
    assert settings.hf_token.get_secret_value() == "from-a-variable"
    assert (settings.revision, settings.run_id) == ("v2", "from-a-file")


def test_an_empty_token_variable_means_none_as_it_does_to_the_hub(tmp_path: Path) -> None:
    environ = {**CPU, "HF_TOKEN": ""}
    assert load_settings(environ, image=None, secrets_dir=None).hf_token is None
    environ["HUGGING_FACE_HUB_TOKEN"] = "an-old-name"
    settings = load_settings(environ, image=None, secrets_dir=None)
    assert settings.public()["hf_token"] == "set"
    (tmp_path / "hf_token").touch()
    with pytest.raises(SettingsError, match=r"HF_TOKEN must be .* and is empty"):
        load_settings(CPU, image=None, secrets_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("BOOT_STEPS", "many"), ("BOOT_HARDWARE", "a100"), ("BOOT_STPES", "3")]
)
def test_what_is_wrong_in_a_file_names_the_file(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / name).write_text(value)
    with pytest.raises(SettingsError) as caught:
        load_settings({}, image=None, secrets_dir=tmp_path)
    told = {problem.name: str(problem) for problem in caught.value.problems}
    assert str(tmp_path / name) in told[name]


def test_a_variable_counts_and_its_file_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "BOOT_STEPS").write_text("3")
    with pytest.raises(SettingsError) as caught:
        load_settings({**CPU, "BOOT_STEPS": "many"}, image=None, secrets_dir=tmp_path)
    assert str(tmp_path) not in str(caught.value)


def test_kubernetes_mounts_links_into_a_dated_folder(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_30").mkdir()
    (tmp_path / "..2026_11_30" / "HF_TOKEN").write_text("hf_0123456789")
    (tmp_path / "..data").symlink_to("..2026_11_30")
    (tmp_path / "HF_TOKEN").symlink_to("..data/HF_TOKEN")
    settings = load_settings(CPU, image=None, secrets_dir=tmp_path)
    assert settings.public()["hf_token"] == "set"


def test_unknown_and_unreadable_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "BOOT_REVISON").write_text("a secret")
    (tmp_path / "boot_steps").write_text("a secret")
    (tmp_path / "hf_token").mkdir()
    (tmp_path / "BOOT_RUN_ID").write_bytes(b"\xff a secret")
    with pytest.raises(SettingsError) as caught:
        load_settings(CPU, image=None, secrets_dir=tmp_path)
    assert [problem.name for problem in caught.value.problems] == [
        "BOOT_REVISON",
        "boot_steps",
        str(tmp_path / "BOOT_RUN_ID"),
        str(tmp_path / "hf_token"),
    ]
    assert "a secret" not in str(caught.value)


def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "hf_token").symlink_to("pipe")
    with pytest.raises(SettingsError, match=r"hf_token must be readable .*not a regular file"):
        load_settings(CPU, image=None, secrets_dir=tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_closed_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir(mode=0)
    with pytest.raises(SettingsError, match="readable by this user"):
        load_settings(CPU, image=None, secrets_dir=tmp_path / "secrets")


def test_no_folder_is_fine(tmp_path: Path) -> None:
    settings = load_settings(CPU, image=None, secrets_dir=tmp_path / "absent")
    assert settings.hf_token is None
