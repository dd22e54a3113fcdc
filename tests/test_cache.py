"""The cache stage: names, folders, and the real hub client against a hub on this machine."""

from __future__ import annotations

import errno
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from huggingface_hub import errors as hub_errors

from app import rehearsal
from app.exits import ExitCode, exit_code
from app.facts.surroundings import offline_variable
from app.outcome import Fault, Status
from app.probes.hub_errors import cause_of, fault_of
from app.probes.hub_steps import finding_of
from app.probes.names import read_tables, unsloth_models_folder
from tests.cache_stage import Asked, refused
from tests.fake_hub import COMMIT, Hub, serving
from tests.fakes_preflight import PLAIN, TOKEN, model_files, write_model


def test_a_repository_is_downloaded_once_and_then_comes_from_the_cache(tmp_path: Path) -> None:
    files = model_files(PLAIN, n_shards=2) | {"pytorch_model.bin": b"x", "README.md": b"x"}
    with serving(Hub(files)) as hub:
        first = Asked(tmp_path, hub.url)
        n_requests = len(hub.requests)
        again = Asked(tmp_path, hub.url)
        assert len(hub.requests) == n_requests
    facts = first.facts
    assert (facts.revision, facts.downloaded, again.facts.downloaded) == (COMMIT, True, False)
    assert first.code is again.code is None
    assert not any("pytorch_model.bin" in request for request in hub.requests)
    assert {entry.name for entry in facts.files} == set(files) - {"pytorch_model.bin", "README.md"}
    assert f"Bearer {TOKEN}" in hub.tokens
    assert facts.resolved is not None
    assert facts.resolved.folder.name == COMMIT
    assert TOKEN not in repr(facts) + repr(again.facts)
    # Nothing but the cache from here on.
    assert Asked(tmp_path, download="never").facts.revision == COMMIT
    assert Asked(tmp_path, download="never", revision=COMMIT).facts.revision == COMMIT
    assert Asked(tmp_path, download="never", revision="v2").code == ExitCode.NOINPUT


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {}, ExitCode.NOPERM),
        (401, {"X-Error-Code": "RepoNotFound"}, ExitCode.NOINPUT),
        (401, {"X-Error-Code": "GatedRepo"}, ExitCode.NOPERM),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, ExitCode.NOPERM),
        (403, {"X-Error-Code": "GatedRepo"}, ExitCode.NOPERM),
        (403, {}, ExitCode.NOPERM),
        (404, {"X-Error-Code": "RepoNotFound"}, ExitCode.NOINPUT),
        (404, {"X-Error-Code": "RevisionNotFound"}, ExitCode.NOINPUT),
        (404, {}, ExitCode.NOINPUT),
        (410, {}, ExitCode.NOINPUT),
        (451, {}, ExitCode.NOINPUT),
        (407, {}, ExitCode.CONFIG),
        (408, {}, ExitCode.TEMPFAIL),
        (425, {}, ExitCode.TEMPFAIL),
        (400, {}, ExitCode.CONFIG),
        (429, {}, ExitCode.TEMPFAIL),
        (500, {}, ExitCode.TEMPFAIL),
        (503, {}, ExitCode.TEMPFAIL),
    ],
)
def test_what_the_hub_says_becomes_a_code(
    status: int, headers: dict[str, str], code: ExitCode
) -> None:
    with serving(Hub({}, always=(status, headers))) as hub:
        cause = refused(hub)
    finding = finding_of(cause, what="x", expected="y", has_token=True)
    assert exit_code(cause.fault) == code
    assert f"HTTP {status}" in finding.reason
    assert ("rate limit" in finding.next_step) == (status == 429)
    assert TOKEN not in repr(finding)


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_stays_busy_is_asked_five_times_in_all(tmp_path: Path, status: int) -> None:
    with serving(Hub({}, always=(status, {}))) as hub:
        asked = Asked(tmp_path, hub.url)
    assert (asked.code, len(asked.waits)) == (ExitCode.TEMPFAIL, 4)


def test_a_hub_that_recovers_is_asked_again(tmp_path: Path) -> None:
    with serving(Hub(model_files(), answers=[(429, {}), (500, {})])) as hub:
        facts = Asked(tmp_path, hub.url).facts
    assert (facts.revision, facts.downloaded) == (COMMIT, True)


def test_nobody_at_the_address_is_temporary(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    assert asked.code == ExitCode.TEMPFAIL
    assert "ConnectError" in asked.first.actual
    for word in ("network", "proxy", "HF_ENDPOINT"):
        assert word in asked.first.next_step
    assert "HF_TOKEN" not in asked.first.next_step


def test_a_relative_folder_that_is_not_there_is_told_from_a_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Asked(tmp_path, model="m/trunc", download="never").first
    assert f"m/trunc is taken for a name of the hub: there is no folder {tmp_path}/m/trunc" in (
        found.reason
    )
    assert "its whole path in BOOT_BASE_MODEL_ID" in found.next_step


def test_an_address_without_a_scheme_is_a_mistake(tmp_path: Path) -> None:
    assert Asked(tmp_path, "localhost").code == ExitCode.CONFIG


def test_a_page_instead_of_the_hubs_json_is_temporary() -> None:
    with serving(Hub({}, always=(200, {"Content-Type": "text/html"}), page=b"<html>")) as hub:
        assert refused(hub).is_temporary


def test_a_cut_off_cache_is_completed_or_named(tmp_path: Path) -> None:
    with serving(Hub(model_files(PLAIN, n_shards=2))) as hub:
        folder = Asked(tmp_path, hub.url).facts.folder
        assert folder is not None
        (folder / "model-00002-of-00002.safetensors").unlink()
        assert Asked(tmp_path, hub.url, download="never").code == ExitCode.NOINPUT
        assert Asked(tmp_path, hub.url).code is None


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_means_the_cache_only_and_says_which_variable(
    tmp_path: Path, variable: str
) -> None:
    asked = Asked(tmp_path, environ={variable: "1"})
    assert asked.code == ExitCode.NOINPUT
    assert variable in asked.first.reason
    assert variable in asked.first.next_step


def test_only_what_the_client_takes_for_true_is_offline() -> None:
    assert offline_variable({"HF_HUB_OFFLINE": "2"}) is None
    assert offline_variable({"HF_HUB_OFFLINE": "yes"}) == "HF_HUB_OFFLINE"


@pytest.mark.parametrize("model", ["{}", "~/model", "$HOME/model"])
def test_a_local_folder_is_taken_as_it_is(tmp_path: Path, model: str) -> None:
    folder = write_model(tmp_path / "model", model_files())
    asked = Asked(tmp_path, model=model.format(folder), hardware="h100")
    assert (asked.facts.folder, asked.facts.origin, asked.code) == (folder, "folder", None)


ODD = b"odd\xff".decode(errors="surrogateescape")


@pytest.mark.parametrize("model", [rehearsal.MODEL_NAME, "org/tiny", "./model", "org/model"])
def test_a_path_that_utf8_cannot_carry_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """safetensors opens no such file: the working folder, and the caches below HOME."""
    here = tmp_path / ODD
    for name in ("model", "org/model"):
        write_model(here / name, model_files())
    monkeypatch.chdir(here)
    asked = Asked(here, model=model)
    assert asked.code == ExitCode.CONFIG
    assert f"{tmp_path}/odd\\udcff" in asked.first.reason
    assert "UTF-8" in asked.first.next_step
    repr(asked.first).encode()
    assert asked.facts.resolved is None


def test_a_relative_folder_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "org" / "tiny", model_files())
    assert Asked(tmp_path).facts.folder == tmp_path / "org" / "tiny"


def test_a_snapshot_of_the_hubs_cache_knows_its_commit(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--tiny" / "snapshots" / COMMIT
    write_model(folder, model_files())
    facts = Asked(tmp_path, model=str(folder), revision=COMMIT).facts
    assert (facts.revision, facts.ignored_revision) == (COMMIT, None)
    assert "org/tiny" in facts.reason


def test_a_revision_of_a_folder_warns(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", model_files())
    asked = Asked(tmp_path, model=str(folder), revision="v1")
    assert asked.findings["cache.resolved"].status is Status.WARN


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("/nowhere/model", ExitCode.NOINPUT),
        ("./nowhere", ExitCode.NOINPUT),
        ("~/nowhere", ExitCode.NOINPUT),
        ("$UNSET/model", ExitCode.NOINPUT),
        ("a/b/c", ExitCode.NOINPUT),
        ("models/", ExitCode.NOINPUT),
        ("a b", ExitCode.CONFIG),
        ("org/na--me", ExitCode.CONFIG),
        ("x" * 97, ExitCode.CONFIG),
        ("x" * 5000, ExitCode.NOINPUT),
        ("org/\0", ExitCode.NOINPUT),
    ],
)
def test_what_is_neither_folder_nor_name_is_refused(
    tmp_path: Path, model: str, code: ExitCode
) -> None:
    assert Asked(tmp_path, model=model).code == code


def test_a_file_and_an_empty_folder_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("file", "empty"):
        assert Asked(tmp_path, model=str(tmp_path / name)).code == ExitCode.NOINPUT


def test_an_incomplete_folder_is_left_to_the_checkpoint_stage(tmp_path: Path) -> None:
    files = model_files(PLAIN, n_shards=2)
    del files["model-00001-of-00002.safetensors"]
    asked = Asked(tmp_path, model=str(write_model(tmp_path / "m", files)))
    assert asked.facts.missing == ("model-00001-of-00002.safetensors",)
    assert asked.findings["cache.complete"].status is Status.SKIP


def test_the_rehearsal_is_built_below_bootguards_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(root: Path, environ: Mapping[str, str], *, timeout_s: float) -> Path:
        assert timeout_s > 60
        assert environ["HOME"] == str(tmp_path)
        return write_model(root / "tiny", model_files())

    monkeypatch.setattr(rehearsal, "ensure", build)
    asked = Asked(tmp_path, model=rehearsal.MODEL_NAME)
    assert asked.facts.folder == tmp_path / ".cache" / "bootguard" / "tiny"
    assert asked.code is None


def test_a_rehearsal_that_cannot_be_built_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "_BUILDER_MODULE", "tests.no_such_builder")
    asked = Asked(tmp_path, model=rehearsal.MODEL_NAME)
    assert asked.code == ExitCode.INTERNAL
    assert "No module named tests.no_such_builder" in asked.first.actual


@pytest.mark.parametrize(
    ("asked", "four", "resolved"),
    [
        ("unsloth/gemma-3n-E2B-it", True, "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit"),
        ("google/gemma-3n-E2B-it", True, "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit"),
        ("Google/Gemma-3n-E2B-it", True, "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit"),
        ("google/gemma-3n-E2B-it", False, "unsloth/gemma-3n-E2B-it"),
        ("unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit", False, "unsloth/gemma-3n-E2B-it"),
        (
            "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit", True,
            "unsloth/gemma-3n-E2B-it-unsloth-bnb-4bit",
        ),
        ("unsloth/Qwen3-32B", True, "unsloth/Qwen3-32B-bnb-4bit"),
        ("unsloth/Qwen3-32B-unsloth-bnb-4bit", True, "unsloth/Qwen3-32B-bnb-4bit"),
        ("org/tiny", True, "org/tiny"),
    ],
)  # fmt: skip
def test_names_map_as_in_the_installed_unsloth(asked: str, four: bool, resolved: str) -> None:
    tables = read_tables(unsloth_models_folder())
    assert tables.resolve(asked, load_in_4bit=four) == resolved


def test_a_folder_of_that_name_is_not_taken_for_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m app.boot` has the current folder on its path, by name or as the empty entry."""
    (tmp_path / "unsloth" / "models").mkdir(parents=True)
    (tmp_path / "unsloth" / "__init__.py").touch()
    (tmp_path / "unsloth" / "models" / "mapper.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    installed = unsloth_models_folder()
    for entry in ("", ".", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        assert unsloth_models_folder() == installed
    assert not installed.is_relative_to(tmp_path)


COMPARE = """
import json, os, sys
os.environ["UNSLOTH_DISABLE_STATISTICS"] = os.environ["HF_HUB_OFFLINE"] = "1"
import unsloth
from unsloth.models.loader_utils import BAD_MAPPINGS, get_model_name
from unsloth.models.mapper import FLOAT_TO_INT_MAPPER, INT_TO_FLOAT_MAPPER, MAP_TO_UNSLOTH_16bit
names = sorted({*FLOAT_TO_INT_MAPPER, *INT_TO_FLOAT_MAPPER, *MAP_TO_UNSLOTH_16bit, *BAD_MAPPINGS})
said = {n: [get_model_name(n, load_in_4bit=four) for four in (True, False)] for n in names}
json.dump(said, open(sys.argv[1], "w"))
"""


@pytest.mark.stack
def test_every_name_that_unsloth_knows_maps_as_unsloth_maps_it(tmp_path: Path) -> None:
    out = tmp_path / "said.json"
    subprocess.run([sys.executable, "-c", COMPARE, str(out)], cwd=tmp_path, check=True)
    tables = read_tables(unsloth_models_folder())
    said = json.loads(out.read_text())
    assert len(said) > 1000
    ours = {n: [tables.resolve(n, load_in_4bit=four) for four in (True, False)] for n in said}
    assert {n: (ours[n], said[n]) for n in said if ours[n] != said[n]} == {}


def test_the_mapping_is_of_gpu_profiles_only(tmp_path: Path) -> None:
    gemma = "unsloth/gemma-3n-E2B-it"
    mapped = Asked(tmp_path, model=gemma, hardware="h100", download="never")
    kept = Asked(tmp_path, model=gemma, hardware="cpu", download="never")
    named = (mapped.facts.model_id, kept.facts.model_id)
    assert named == (f"{gemma}-unsloth-bnb-4bit", gemma)
    assert mapped.code == kept.code == ExitCode.NOINPUT


def test_an_environment_without_unsloth_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    asked = Asked(tmp_path, hardware="h100")
    assert asked.code == ExitCode.INTERNAL
    assert "unsloth is not installed" in asked.findings["cache.resolved"].reason


@pytest.mark.parametrize(("model", "hardware"), [(".", "cpu"), ("org/tiny", "h100")])
def test_a_working_folder_that_was_removed_is_no_mistake_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, hardware: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    asked = Asked(tmp_path, model=model, hardware=hardware, download="never")
    assert asked.code == ExitCode.NOINPUT


def test_tables_of_another_shape_are_refused_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "mapper.py").write_text("FLOAT_TO_INT_MAPPER = {}")
    with pytest.raises(Exception, match="cannot be read"):
        read_tables(tmp_path)


def chained(outer: BaseException, cause: BaseException | None) -> BaseException:
    outer.__cause__ = cause
    return outer


def http(status: int) -> hub_errors.HfHubHTTPError:
    request = httpx.Request("GET", "https://huggingface.co/x")
    return hub_errors.HfHubHTTPError("no", response=httpx.Response(status, request=request))


def not_valid_yet() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code = 9
    return error


def not_cached(cause: BaseException | None) -> BaseException:
    """What the client says of whatever kept it from the hub."""
    return chained(hub_errors.LocalEntryNotFoundError("no"), cause)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (not_cached(http(429)), Fault.TEMPORARY),
        (not_cached(http(403)), Fault.ACCESS_DENIED),
        (not_cached(hub_errors.OfflineModeIsEnabled()), Fault.MODEL_ABSENT),
        (not_cached(httpx.ReadTimeout("late")), Fault.TEMPORARY),
        (not_cached(None), Fault.MODEL_ABSENT),
        (OSError(errno.ENOSPC, "full"), Fault.READ_ERROR),
        (PermissionError(errno.EACCES, "no"), Fault.CONFIG),
        (OSError("Consistency check failed"), Fault.TEMPORARY),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Fault.TEMPORARY),
        (httpx.LocalProtocolError(f"Illegal header value b'{TOKEN}'"), Fault.CONFIG),
        (chained(httpx.ConnectError("tls"), not_valid_yet()), Fault.NODE_UNFIT),
        (chained(httpx.ConnectError("tls"), ssl.SSLCertVerificationError("ca")), Fault.CONFIG),
        (ValueError("odd"), Fault.CONFIG),
        (RuntimeError("ours"), None),
    ],
)  # fmt: skip
def test_the_cause_decides_and_no_text_of_it_is_repeated(
    error: BaseException, fault: Fault | None
) -> None:
    assert fault_of(error) is fault
    finding = finding_of(cause_of(error), what="x", expected="y")
    assert finding.fault is (fault or Fault.INTERNAL)
    assert TOKEN not in repr(finding)


def test_a_ring_of_causes_ends() -> None:
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    assert fault_of(one) is None
