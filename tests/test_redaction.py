"""Facts about keeping secrets out of every output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.redaction import Redactor

SECRET = "s3cret-value"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "my_password"],
)
def test_a_secret_of_the_environment_is_hidden_wherever_it_stands(name: str) -> None:
    redactor = Redactor({name: SECRET}, None)
    data = {"a": [f"x{SECRET}y", 1, None, {"b": SECRET}]}
    assert redactor.data(data) == {"a": ["x***y", 1, None, {"b": "***"}]}


def test_a_secret_of_a_file_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "hf_token").write_text(SECRET + "\n")
    assert Redactor({}, tmp_path).text(f"<{SECRET}>") == "<***>"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "HOME", "SECRETARY"])
def test_other_variables_are_no_secrets(name: str) -> None:
    assert Redactor({name: "a long value"}, None).text("a long value") == "a long value"


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters=" "), min_size=8))
def test_no_secret_survives(secret: str) -> None:
    redacted = Redactor({"HF_TOKEN": secret}, None).text(f"before {secret} after")
    if secret.strip() == secret and secret not in "before *** after":
        assert secret not in redacted
