"""Facts of `--help` and of the README's table of settings."""

from __future__ import annotations

import re
import subprocess
import sys

from app.exits import ACTIONS
from app.settings_deadlines import TIMED_STAGES, field_of
from app.settings_inherited import REFUSED
from app.settings_model import BootSettings, variable_of
from app.settings_names import HANDED_OVER
from app.usage import WIDTH, settings_table_markdown, usage_text

FAMILY = {field_of(stage): stage for stage in TIMED_STAGES}


def test_help_has_every_variable_with_its_rule_default_and_meaning() -> None:
    text = " ".join(usage_text().split())
    for field, info in BootSettings.model_fields.items():
        assert info.description
        assert info.description[0].isupper()
        assert info.description.endswith(".")
        if field not in FAMILY:
            assert f"{variable_of(field)} default: " in text
            assert info.description in text
    assert "BOOT_LORA_DROPOUT default: 0.05 Must be a number from 0 to below 1. Share" in text
    assert "BOOT_FINETUNE_VISION_LAYERS default: false Must be true or false" in text
    assert "BOOT_STOP_AFTER default: unset Must be one of settings, host," in text


def test_help_has_one_paragraph_for_the_deadlines_of_all_stages() -> None:
    text = " ".join(usage_text().split())
    paragraph = text[text.index("BOOT_<STAGE>_TIMEOUT_S") : text.index("BOOT_TOTAL_TIMEOUT_S")]
    for field, stage in FAMILY.items():
        default = BootSettings.model_fields[field].default
        assert f"{stage} {default:g}" in paragraph
        assert variable_of(field) == f"BOOT_{stage.upper()}_TIMEOUT_S"


def test_help_says_what_follows_a_pass() -> None:
    head = usage_text().partition("Settings:")[0]
    for name in ("BOOT_JOB", "-- command", *HANDED_OVER):
        assert name in head


def test_help_has_every_exit_code() -> None:
    lines = usage_text().splitlines()
    for code, action in ACTIONS.items():
        assert any(
            line.split()[:2] == [str(code.value), code.name] and action.meaning in line
            for line in lines
        )


def test_help_names_what_is_refused() -> None:
    assert "UNSLOTH_FORCE_*" in usage_text()
    for name in REFUSED:
        assert name in usage_text()


def test_help_fits_the_screen() -> None:
    assert max(len(line) for line in usage_text().splitlines()) <= WIDTH
    assert usage_text().isascii()
    assert all(line == line.rstrip() for line in usage_text().splitlines())


def test_table_has_one_row_of_four_cells_for_each_setting() -> None:
    rows = settings_table_markdown().splitlines()
    assert len(rows) == len(BootSettings.model_fields) - len(FAMILY) + 1 + 2
    for row in rows:
        assert row.count("|") == 5
        assert "<" not in re.sub(r"`[^`]*`", "", row)  # would be swallowed as HTML


def test_settings_load_neither_torch_nor_the_hub() -> None:
    """Also that they take no `.env` file and no cloud along."""
    code = (
        "import sys, app.settings, app.usage;"
        "print(*(n for n in ('torch', 'transformers', 'huggingface_hub', 'unsloth', 'dotenv',"
        " 'yaml', 'boto3') if n in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(ran.stdout.split()) - {"dotenv"}  # pydantic-settings imports dotenv itself
