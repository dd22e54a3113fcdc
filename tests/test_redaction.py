"""Facts about keeping secrets out of every output."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.known_secrets import known_secrets
from app.redaction import Redactor, redacted
from app.report import Report
from app.settings_secrets import without_hub_tokens
from app.stages import STAGES

SECRET = "s3cret-value"
LONG = "aZ9/k+Lm'Q\"w\\x4t%7=&y é"
NONE = Redactor({}, None)
A40 = "aB3dE5fG7h" * 4

LETTERS = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])
SECRETS = st.text(LETTERS, min_size=8, max_size=60).filter(
    lambda text: (
        text.strip() == text
        and set(text) - {"*"}
        and text in known_secrets({"A_TOKEN": text}, None)
    )
)
# Text that is made of what secrets and their surroundings are made of.
PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *("***", "//", "@", ":", "=", "?token=", "Bearer ", "Authorization: ", "https://"),
                *("hf_", "sk-", "eyJ", ".", A40, "PASSWORD=", "api_key: '", " ", "\n", "%2F%2F"),
                *("%40", "Cookie: ", "-----BEGIN PRIVATE KEY-----", '"', "'", "x-api-key:"),
            ]
        ),
        st.text(LETTERS, max_size=12),
    ),
    max_size=12,
).map("".join)
UNHURRIED = settings(deadline=None, max_examples=150)


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"),
        *("my_password", "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSH_PASSPHRASE", "REDIS_AUTH"),
        *("GITHUB_PAT", "AZURE_STORAGE_KEY", "CLIENT_SECRET", "DOCKER_CREDENTIALS", "APIKEY"),
    ],
)
def test_a_secret_of_the_environment_is_hidden_wherever_it_stands(name: str) -> None:
    redactor = Redactor({name: SECRET}, None)
    data = {"a": [f"x{SECRET}y", 1, None, {"b": SECRET}], f"k{SECRET}": True}
    assert redactor.data(data) == {"a": ["x***y", 1, None, {"b": "***"}], "k***": True}


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "KEYBOARD", "HOME", "SECRETARY", "PWD", "OLDPWD", "MONKEY"),
        *("HF_TOKEN_PATH", "AWS_WEB_IDENTITY_TOKEN_FILE", "SSH_AUTH_SOCK", "SECRET_NAME"),
    ],
)
def test_other_variables_are_no_secrets(name: str) -> None:
    assert Redactor({name: "/a/long/value"}, None).text("/a/long/value") == "/a/long/value"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD", "short"),
        ("PASSWORD", "complete"),
        ("DB_PASSWORD", STAGES[7]),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/key.json"),
        ("TOKEN", "2026-11-30T10:00:00"),
        ("TOKEN", "*********"),
    ],
)
def test_what_would_garble_innocent_text_is_no_secret(name: str, value: str) -> None:
    assert Redactor({name: value}, None).text(f"x {value} y") == f"x {value} y"


def test_files_of_secrets_are_hidden_but_not_settings_in_them(tmp_path: Path) -> None:
    (tmp_path / "hf_token").write_text(SECRET + "\n")
    (tmp_path / "db").write_text("another-value")
    (tmp_path / "BOOT_BASE_MODEL_ID").write_text("org/some-model")
    (tmp_path / "binary").write_bytes(b"\xff" * 20)
    (tmp_path / "folder").mkdir()
    told = Redactor({}, tmp_path).text(f"<{SECRET}> <another-value> <org/some-model>")
    assert told == "<***> <***> <org/some-model>"


def test_a_folder_that_is_none_holds_no_secrets(tmp_path: Path) -> None:
    assert known_secrets({}, tmp_path / "absent") == frozenset()


def test_the_password_of_an_address_is_known_in_other_forms_too() -> None:
    redactor = Redactor({"HTTPS_PROXY": "http://me:p%40ssw0rd1@proxy:3128"}, None)
    basic = base64.b64encode(b"me:p@ssw0rd1").decode()
    for text in ("p@ssw0rd1", "p%40ssw0rd1"):
        assert text not in redactor.text(f"it is {text}")
    assert basic[5:-3] not in redactor.text(f"sent {basic}")


@pytest.mark.parametrize(
    "form",
    [
        LONG,
        quote(LONG),
        quote(LONG, safe=""),
        quote_plus(LONG),
        json.dumps(LONG),
        json.dumps({"a": json.dumps(LONG)}),
        json.dumps(LONG, ensure_ascii=False),
        repr(LONG),
        repr(LONG.encode()),
        repr([repr(LONG)]),
        ascii(LONG),
        base64.b64encode(LONG.encode()).decode(),
        base64.b64encode(b"me:" + LONG.encode()).decode(),
        base64.urlsafe_b64encode(b"u:" + LONG.encode() + b"!").decode(),
    ],
)
def test_a_known_secret_is_found_in_other_forms(form: str) -> None:
    told = Redactor({"DB_PASSWORD": LONG}, None).text(f"before {form} after")
    assert "***" in told
    assert len(told) < len("before *** after") + 16


def test_a_large_part_of_a_known_secret_is_hidden() -> None:
    """Cut at the end of a line, or by whoever shortened the text."""
    redactor = Redactor({"HF_TOKEN": f"hf_{A40}"}, None)
    assert redactor.text(f"it is hf_{A40[:20]}...") == "it is ***..."
    assert redactor.text(f"{A40[-15:]} it was") == "*** it was"
    assert redactor.text("a folder hf_aB3dE") == "a folder hf_aB3dE"


def test_the_lines_of_a_known_key_are_hidden_one_by_one() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "aB" * 32, "cD" * 32, "-----END PRIVATE KEY-----"]
    redactor = Redactor({"SSH_KEY": "\n".join(lines)}, None)
    assert redactor.text(f"  {lines[2]}") == "  ***"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"x hf_{A40} y", "x *** y"),
        (f"hf_oauth_eyJ{A40}.eyJ{A40}.{A40}", "***"),
        (f"ghp_{A40} github_pat_{A40}", "*** ***"),
        (f"sk-proj-{A40}_x", "***"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id ***."),
        (f"xoxb-123-{A40}", "***"),
        (f"eyJ{A40}.eyJ{A40}.", "***"),
        ("a https://me:pa/ss@host/x", "a https://***@host/x"),
        (r"https:\/\/me:pass@host", r"https:\/\/***@host"),
        ("to=http%3A%2F%2Fme%3Apass%40host", "to=http%3A%2F%2F***%40host"),
        ("http://h/x?a=1&token=abc&b=2", "http://h/x?a=1&token=***&b=2"),
        ("http://h/x?X-Amz-Signature=0123456789abcdef", "http://h/x?X-Amz-Signature=***"),
        ("http://h/x?se=1&sig=a%2Bb%3D", "http://h/x?se=1&sig=***"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer ***"),
        ("[(b'authorization', b'Basic dXNlcjpwYXNz')]", "[(b'authorization', b'Basic ***')]"),
        ("Bearer 0123456789abcdef0123", "Bearer ***"),
        ("Set-Cookie: id=abc; path=/", "Set-Cookie: ***; path=/"),
        ("{'x-api-key': 'abcdef'}", "{'x-api-key': '***'}"),
        (f"WANDB_API_KEY={'0f' * 20}", "WANDB_API_KEY=***"),
        ("connect(password='abcdef12345')", "connect(password='***')"),
        ('{"access_token": "abcdefgh12"}', '{"access_token": "***"}'),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, hidden: str) -> None:
    assert NONE.text(text) == redacted(text) == hidden
    assert redacted(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "GPU-8f3c1a2e-0b7d-4c55-9a1e-2f6b7c8d9e0f",
        "models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567/config.json",
        "sha256:" + "0f" * 32,
        "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit at main",
        "/home/you/hf_checkpoints/run-7/task-sk-learn-something-long",
        "https://hub.example/org/model/resolve/main/config.json?download=true",
        "http://proxy:3128/a@b and https://host:443/org/model@v2",
        "HF_TOKEN must be one line of printable ASCII, and is something else (not shown)",
        "set HF_TOKEN to a token of that account that may read it",
        "pad_token='<|finetune_right_pad_id|>', eos_token: '<end_of_turn>', max_new_tokens=128",
        "TOKENIZERS_PARALLELISM=false, tokens=123456789, key=value, monkey=12345678901",
        "the bearer of bad news; basic implementation; authorization failed",
        "// see me at a line",
        "language_model.layers.0.self_attn.q_proj.weight: torch.bfloat16",
        "3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "slurm-123_45 boot-h100-7d9f8b6c5d-x2x4z 5f1d7a84-db00-41f5-b8a9-1f2a3b4c5d6e",
    ],
)
def test_innocent_text_is_left_alone(text: str) -> None:
    redactor = Redactor({"HF_TOKEN": f"hf_{A40}", "DB_PASSWORD": LONG}, None)
    assert redactor.text(text) == redacted(text) == text


def test_the_reports_schema_and_the_readme_hold_no_secret() -> None:
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
    schema = Report.model_json_schema()
    assert NONE.data(schema) == schema
    for line in readme.splitlines():
        assert NONE.text(line) == line


@given(SECRETS, PIECES, PIECES)
@UNHURRIED
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    redactor = Redactor({"HF_TOKEN": secret}, None)
    told = redactor.text(before + secret + after)
    assert secret not in told
    assert redactor.data({before + secret: [secret + after]}) is not None
    assert secret not in redactor.text(json.dumps(redactor.data([before + secret])))


@given(SECRETS, PIECES)
@UNHURRIED
def test_redacting_twice_is_redacting_once(secret: str, text: str) -> None:
    redactor = Redactor({"HF_TOKEN": secret}, None)
    once = redactor.text(text + secret + text)
    assert redactor.text(once) == once


@given(st.lists(SECRETS, min_size=2, max_size=4), PIECES)
@UNHURRIED
def test_several_secrets_that_overlap(secrets: list[str], text: str) -> None:
    """Also where one is a part of another, or begins as another ends."""
    secrets += [secrets[0] + secrets[1], secrets[0][:8] + secrets[1]]
    known = {f"A{n}_TOKEN": one for n, one in enumerate(secrets)}
    told = Redactor(known, None).text(text.join(secrets))
    assert not [one for one in known_secrets(known, None) if one in told]


@given(st.text(st.sampled_from("abcdefXYZ_0123 ./-:"), max_size=200))
@UNHURRIED
def test_plain_text_without_a_secret_is_unchanged(text: str) -> None:
    assert Redactor({"HF_TOKEN": f"hf_{A40}"}, None).text(text) == text


def test_a_hostile_line_costs_no_more_than_a_flood_can_bear() -> None:
    """Shapes that begin again and again and never end: milliseconds, not minutes."""
    redactor = Redactor({f"A{n}_TOKEN": f"{n}{A40}" for n in range(20)}, None)
    starts = [
        *("://a:", "//", "-sk-", "-eyJ", "%2F%2F", "&token", "bearer ", "x-", "gh", "_token:'"),
        *("password=", "authorization: ", "-----BEGIN PRIVATE KEY-----", "cookie:", "://a:@"),
    ]
    for start in starts:
        began = time.process_time()
        redactor.text(start * (4000 // len(start)))
        assert time.process_time() - began < 0.5, start


def test_the_hubs_tokens_can_be_left_out_of_an_environment() -> None:
    given_to_us = {"HF_TOKEN": "a", "HUGGING_FACE_HUB_TOKEN": "b", "HF_HOME": "c"}
    assert without_hub_tokens(given_to_us) == {"HF_HOME": "c"}
