"""The small files of a model folder: what is wrong with each, whose fault it is, the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.outcome import Finding, Status
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import NF4, PACKED, PLAIN, model_files, write_model
from tests.test_checkpoint import failing, judge

VOCAB = {f"t{n}": n for n in range(8)}
EMBEDDED = {**PLAIN, "model.embed_tokens.weight": ("BF16", (8, 4))}


def said_of(folder: Path, files: dict[str, bytes], **plan: Any) -> dict[str, Finding]:
    return judge(read_checkpoint(write_model(folder, files)), **plan)


def with_config(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    config = json.loads(files["config.json"]) | changes
    return files | {"config.json": json.dumps(config).encode()}


def with_tokens(
    files: dict[str, bytes], vocab: Any, added: Any = (), template: str = ""
) -> dict[str, bytes]:
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": list(added)}
    settings = {"eos_token": {"content": "<end>"}, "chat_template": template}
    return files | {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b'{"model": {', "tokenizer.json: not JSON"),
        ("tokenizer.json", b"{}", "tokenizer.json: it holds no tokenizer model"),
        ("tokenizer.json", b'{"model": {"vocab": {}}}', "tokenizer.json: its vocabulary is empty"),
        ("tokenizer.json", b"[]", "tokenizer.json: a JSON list"),
        ("tokenizer_config.json", b'{"a":', "tokenizer_config.json: not JSON"),
        ("special_tokens_map.json", b"1", "special_tokens_map.json: a JSON int"),
        ("generation_config.json", b"{", "generation_config.json: not JSON"),
        (
            "generation_config.json", b'{"max_new_tokens": "x"}',
            "generation_config.json: max_new_tokens is no whole number",
        ),
        ("processor_config.json", b"", "processor_config.json: empty"),
    ],
)  # fmt: skip
def test_a_small_file_that_the_load_would_die_on_is_named(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    found = said_of(tmp_path, model_files() | {name: content})
    assert failing(found) == {"tokenizer": ExitCode.DATAERR}
    finding = found["checkpoint.tokenizer"]
    assert finding.reason.startswith(said)
    assert finding.next_step.startswith(f"delete {name} and fetch it again")


def test_chat_templates_are_not_judged(tmp_path: Path) -> None:
    found = said_of(tmp_path, model_files() | {"chat_template.jinja": b"{% for %} \xff"})
    assert not failing(found)


def test_an_adapter_beside_a_model_is_refused(tmp_path: Path) -> None:
    """Unsloth would load the base that the adapter names."""
    found = said_of(tmp_path, model_files() | {"adapter_config.json": b"{}"})
    assert failing(found) == {"config": ExitCode.DATAERR}
    assert "move the adapter" in found["checkpoint.config"].next_step


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": []}])
def test_an_index_without_metadata_dies_in_the_load(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    files = model_files(n_shards=2)
    index = json.loads(files["model.safetensors.index.json"])
    del index["metadata"]
    files["model.safetensors.index.json"] = json.dumps(index | metadata).encode()
    found = said_of(tmp_path, files)
    assert failing(found)["index"] == ExitCode.DATAERR
    assert "model.safetensors.index.json: its metadata" in found["checkpoint.index"].reason


@pytest.mark.parametrize(
    ("quantization", "said"),
    [("nf4", "is no object"), (NF4 | {"load_in_8bit": True}, "in 4 and in 8 bits")],
)
def test_a_contradictory_quantization_config_is_refused(
    tmp_path: Path, quantization: Any, said: str
) -> None:
    files = with_config(model_files(PACKED), quantization_config=quantization)
    found = said_of(tmp_path, files)
    assert failing(found) == {"quantization": ExitCode.DATAERR}
    assert said in found["checkpoint.quantization"].reason


def test_what_is_absent_is_fetched_and_nothing_is_deleted(tmp_path: Path) -> None:
    files = model_files(n_shards=2)
    del files["config.json"], files["model-00002-of-00002.safetensors"]
    found = said_of(tmp_path, files)
    for check in ("config", "shards"):
        assert found[f"checkpoint.{check}"].next_step.startswith("fetch ")


def test_a_pointer_of_git_lfs_is_pulled(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    found = said_of(tmp_path, model_files() | {"model.safetensors": pointer})
    assert "`git lfs pull`" in found["checkpoint.shards"].next_step
    assert "delete" not in found["checkpoint.shards"].next_step


@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_something_else_in_a_files_place_is_wrong_on_every_node(tmp_path: Path, kind: str) -> None:
    files = model_files()
    del files["model.safetensors"]
    write_model(tmp_path, files)
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        import os

        os.mkfifo(path)
    assert failing(judge(read_checkpoint(tmp_path)))["shards"] == ExitCode.DATAERR


@pytest.mark.parametrize(
    ("dtype", "name", "shape", "fails"),
    [
        *((dtype, "layer.weight", (4, 4), True) for dtype in ("I8", "I16", "I32", "I64", "BOOL")),
        ("I8", "norm.weight", (4,), True),
        ("I64", "layer.bias", (4,), True),
        ("BOOL", "h.0.attn.bias", (1, 1, 4, 4), False),  # the causal mask of GPT-2
        ("I64", "position_ids", (1, 4), False),
    ],
)
def test_a_weight_of_whole_numbers_is_no_weight(
    tmp_path: Path, dtype: str, name: str, shape: tuple[int, ...], fails: bool
) -> None:
    found = said_of(tmp_path, model_files({**PLAIN, name: (dtype, shape)}))
    assert failing(found) == ({"dtypes": ExitCode.DATAERR} if fails else {})


SPECIAL = {"id": 8, "content": "<image>", "special": True}


@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        (with_tokens({}, VOCAB), Status.PASS, ""),
        (with_tokens({}, [["a", 0.0]] * 8), Status.PASS, ""),
        (with_tokens({}, VOCAB | {"x": 8}), Status.FAIL, "goes up to id 8"),
        (with_tokens({}, [["a", 0.0]] * 9), Status.FAIL, "goes up to id 8"),
        (with_tokens({}, VOCAB, [SPECIAL | {"special": False}]), Status.FAIL, "<image> has the id"),
        (with_tokens({}, VOCAB, [SPECIAL], "a<image>b"), Status.FAIL, "<image> has the id"),
        (with_tokens({}, VOCAB, [SPECIAL | {"content": "<end>"}]), Status.FAIL, "<end> has the id"),
        # Gemma 3 1B: no text has that token.
        (with_tokens({}, VOCAB, [SPECIAL]), Status.WARN, "<image> (8)"),
        (with_tokens({}, {"a": "b"}, [3, {"id": "x"}]), Status.PASS, ""),
        ({"generation_config.json": b'{"eos_token_id": [1, 8]}'}, Status.FAIL, "eos_token_id is 8"),
    ],
)
def test_an_id_without_a_row_is_found_before_the_training(
    tmp_path: Path, files: dict[str, bytes], status: Status, said: str
) -> None:
    finding = said_of(tmp_path, model_files(EMBEDDED) | files)["checkpoint.vocabulary"]
    assert finding.status is status
    assert said in finding.reason


@pytest.mark.parametrize(
    ("changes", "tensors", "status"),
    [
        ({"vocab_size": 4}, EMBEDDED, Status.PASS),  # the weights know it better
        ({"vocab_size": 8}, PLAIN, Status.PASS),
        ({"vocab_size": 7}, PLAIN, Status.FAIL),
        ({"vocab_size": 4, "text_config": {"vocab_size": 8}}, PLAIN, Status.PASS),
        ({"text_config": {"vocab_size": 7}}, PLAIN, Status.FAIL),
        ({"vocab_size": "8"}, PLAIN, Status.SKIP),
        ({"vocab_size": 8, "pad_token_id": 8}, PLAIN, Status.FAIL),
        ({"vocab_size": 8, "pad_token_id": -1}, PLAIN, Status.PASS),
        ({"text_config": {"vocab_size": 8, "eos_token_id": [9]}}, PLAIN, Status.FAIL),
    ],
)
def test_rows_come_from_the_weights_or_the_text_models_config(
    tmp_path: Path, changes: dict[str, Any], tensors: Any, status: Status
) -> None:
    files = with_config(with_tokens(model_files(tensors), VOCAB), **changes)
    assert said_of(tmp_path, files)["checkpoint.vocabulary"].status is status


def test_a_packed_rehearsal_model_names_the_way_out(tmp_path: Path) -> None:
    files = model_files(PACKED, quantization=NF4)
    finding = said_of(tmp_path, files, load_in_4bit=False)["checkpoint.quantization"]
    assert finding.reason.startswith("the rehearsal model rehearsal:gemma3n is packed")
    assert "BOOT_BASE_MODEL_ID" in finding.next_step
    finding = said_of(tmp_path, files, load_in_4bit=False, model="/m")["checkpoint.quantization"]
    assert finding.reason.startswith("the folder is packed")
