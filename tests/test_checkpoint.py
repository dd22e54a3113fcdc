"""The checkpoint stage: what a folder must be for this boot to load and prove it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.checks.checkpoint import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.model_section import model_section
from app.outcome import Fault, Finding, Status
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import (
    NF4,
    PACKED,
    PLAIN,
    findings,
    model_files,
    plan_for,
    safetensors_bytes,
    write_model,
)


def judge(
    facts: CheckpointFacts, *, hardware: str = "h100", allow_pickle: bool = False, **plan: Any
) -> dict[str, Finding]:
    asked = replace(plan_for(hardware, **plan), allow_pickle=allow_pickle)
    return findings(CHECKS, facts, asked)


def failing(said: dict[str, Finding]) -> dict[str, ExitCode]:
    by_id = {check.id: check for check in CHECKS}
    return {
        check_id.removeprefix("checkpoint."): exit_code(finding.fault or by_id[check_id].fault)
        for check_id, finding in said.items()
        if finding.status.blocks
    }


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


@pytest.mark.parametrize(
    "files",
    [
        model_files(),
        model_files(PLAIN, n_shards=2),
        model_files(PACKED, quantization=NF4),
        model_files(PACKED, quantization=NF4, n_shards=3),
    ],
)
def test_good_folders_pass(tmp_path: Path, files: dict[str, bytes]) -> None:
    said = judge(read_checkpoint(write_model(tmp_path, files)))
    assert {finding.status for finding in said.values()} <= {Status.PASS, Status.SKIP}
    assert "adapter" not in said["checkpoint.config"].reason


def first_shard(files: dict[str, bytes]) -> str:
    return min(name for name in files if name.endswith(".safetensors"))


def truncated(files: dict[str, bytes]) -> dict[str, bytes]:
    return files | {first_shard(files): files[first_shard(files)][:-1]}


def other_index(files: dict[str, bytes], weight_map: Any) -> dict[str, bytes]:
    text = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return without(files, "model.safetensors") | {"model.safetensors.index.json": text}


SHARDED = model_files(PLAIN, n_shards=2)
SECOND = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("files", "failed", "named"),
    [
        (truncated(model_files()), "shards", "model.safetensors: cut off"),
        (truncated(SHARDED), "shards", "model-00001-of-00002.safetensors: cut off"),
        (without(SHARDED, SECOND), "shards", f"{SECOND}: missing"),
        (SHARDED | {SECOND: b"<html>"}, "shards", "HTML"),
        (
            SHARDED | {SECOND: safetensors_bytes({"other": ("F32", (1,))})},
            "index", "norm.weight",
        ),
        (SHARDED | {SECOND: safetensors_bytes(PLAIN)}, "tensors", "layer.weight"),
        (other_index(model_files(), {}), "index", "no weight_map"),
        (other_index(model_files(), {"a": "../b.safetensors"}), "index", "outside the folder"),
        (other_index(model_files(), {"a": 1}), "index", "no text"),
        (model_files() | {"config.json": b"<!doctype html>"}, "config", "HTML"),
        (model_files() | {"config.json": b"[]"}, "config", "JSON list"),
        (model_files() | {"config.json": b"[" * 200_000}, "config", "not JSON"),
        (model_files() | {"config.json": b"{}"}, "config", "no model_type"),
        (without(model_files(), "config.json"), "config", "No such file"),
        (
            {"adapter_config.json": b"{}", "adapter_model.safetensors": b""},
            "config", "LoRA adapter",
        ),
        (without(model_files(), "model.safetensors"), "shards", "no weights"),
        (
            without(model_files(), "model.safetensors") | {"pytorch_model.bin": b"PK"},
            "shards", "no weights",
        ),
        (without(model_files(), "tokenizer.json"), "tokenizer", "no tokenizer"),
        (
            model_files() | {"tokenizer.json": b"version https://git-lfs.github.com/spec/v1\n"},
            "tokenizer", "Git LFS",
        ),
        (model_files({"a": ("F64", (2,))}), "dtypes", "a (F64)"),
        (model_files({"a": ("NEW", (2,))}), "dtypes", "a (NEW)"),
    ],
)  # fmt: skip
def test_broken_folders_fail_with_65_and_name_the_offender(
    tmp_path: Path, files: dict[str, bytes], failed: str, named: str
) -> None:
    said = judge(read_checkpoint(write_model(tmp_path, files)))
    assert failing(said)[failed] == ExitCode.DATAERR
    assert named in said[f"checkpoint.{failed}"].reason


def test_pickles_are_refused_with_the_way_out(tmp_path: Path) -> None:
    files = without(model_files(), "model.safetensors") | {"pytorch_model.bin": b"PK"}
    finding = judge(read_checkpoint(write_model(tmp_path, files)))["checkpoint.shards"]
    assert finding.actual == "pytorch_model.bin"
    assert "save_pretrained" in finding.next_step


@pytest.mark.parametrize("item", [name for name in PACKED if name.startswith("layer.weight")])
def test_a_packed_weight_needs_each_of_its_items(tmp_path: Path, item: str) -> None:
    tensors = {name: value for name, value in PACKED.items() if name != item}
    files = model_files(tensors, quantization=NF4)
    said = judge(read_checkpoint(write_model(tmp_path, files)))
    assert failing(said)["quantization"] == ExitCode.DATAERR
    assert "layer.weight lacks" in said["checkpoint.quantization"].reason


def test_two_quant_states_of_one_weight_are_one_too_many(tmp_path: Path) -> None:
    tensors = dict(PACKED) | {"layer.weight.quant_state.bitsandbytes__fp4": ("U8", (9,))}
    said = judge(read_checkpoint(write_model(tmp_path, model_files(tensors, quantization=NF4))))
    assert "it has 2" in said["checkpoint.quantization"].reason


@pytest.mark.parametrize(
    ("quantization", "tensors", "four", "code"),
    [
        ({"quant_method": "gptq", "bits": 4}, PLAIN, True, ExitCode.DATAERR),
        ({"quant_method": "fp8"}, PLAIN, False, ExitCode.DATAERR),
        (NF4 | {"bnb_4bit_quant_type": "fp4"}, PACKED, True, ExitCode.DATAERR),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, PLAIN, True, ExitCode.DATAERR),
        (NF4, PACKED, False, ExitCode.CONFIG),
        (NF4 | {"quant_method": None}, PACKED, True, None),  # load_in_4bit tells it
        (NF4, PLAIN, True, ExitCode.DATAERR),
        (None, PACKED, True, ExitCode.DATAERR),
        ({}, PLAIN, True, ExitCode.DATAERR),
        ({"quant_method": ["\n"]}, PLAIN, True, ExitCode.DATAERR),
        (None, PLAIN, False, None),
        (None, PLAIN, True, None),
    ],
)
def test_quantisation_must_be_what_the_boot_asks_for(
    tmp_path: Path,
    quantization: dict[str, Any] | None,
    tensors: Any,
    four: bool,
    code: ExitCode | None,
) -> None:
    files = model_files(tensors, quantization=quantization)
    said = judge(read_checkpoint(write_model(tmp_path, files)), load_in_4bit=four)
    assert failing(said).get("quantization") == code


def test_the_single_file_comes_before_the_index_as_in_the_loader(tmp_path: Path) -> None:
    files = SHARDED | {
        "model.safetensors": safetensors_bytes(PLAIN),
        "consolidated.safetensors": b"",
    }
    facts = read_checkpoint(write_model(tmp_path, files))
    assert [shard.name for shard in facts.shards] == ["model.safetensors"]
    assert len(facts.spare_weights) == 3
    assert judge(facts)["checkpoint.index"].status is Status.WARN


def test_weights_that_the_config_names_come_first(tmp_path: Path) -> None:
    config = json.dumps({"model_type": "llama", "transformers_weights": "w.safetensors"}).encode()
    files = model_files() | {"config.json": config, "w.safetensors": safetensors_bytes(PLAIN)}
    facts = read_checkpoint(write_model(tmp_path, files))
    assert [shard.name for shard in facts.shards] == ["w.safetensors"]


@pytest.mark.parametrize("named", ["../w.safetensors", "w.bin", "", 3])
def test_a_config_that_names_other_weights_opens_nothing_else(tmp_path: Path, named: Any) -> None:
    config = json.dumps({"model_type": "llama", "transformers_weights": named}).encode()
    facts = read_checkpoint(write_model(tmp_path, model_files() | {"config.json": config}))
    assert bool(facts.index_problem) == isinstance(named, str)


def test_more_tensors_than_the_index_names_warn(tmp_path: Path) -> None:
    more = safetensors_bytes({"norm.weight": ("BF16", (4,)), "more": ("F32", (1,))})
    said = judge(read_checkpoint(write_model(tmp_path, SHARDED | {SECOND: more})))
    assert said["checkpoint.index"].status is Status.WARN


def test_a_model_that_sees_needs_a_processor(tmp_path: Path) -> None:
    config = json.dumps({"model_type": "gemma3n", "vision_config": {"a": 1}}).encode()
    facts = read_checkpoint(write_model(tmp_path, model_files() | {"config.json": config}))
    assert "vision_config" in judge(facts)["checkpoint.tokenizer"].reason


def raising(number: int) -> Callable[..., int]:
    def refuse(*_arguments: object, **_named: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(("number", "fault"), [
    (errno.EIO, Fault.READ_ERROR), (errno.ESTALE, Fault.READ_ERROR), (errno.EACCES, Fault.CONFIG),
    (errno.EPERM, Fault.CONFIG), (errno.ELOOP, None), (errno.EISDIR, None),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_not_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: Fault | None
) -> None:
    write_model(tmp_path, SHARDED)
    with monkeypatch.context() as patch:
        patch.setattr("app.probes.files.os.open", raising(number))
        facts = read_checkpoint(tmp_path)
    said = judge(facts)
    for check in ("config", "index", "tokenizer"):
        finding = said[f"checkpoint.{check}"]
        assert finding.fault is fault
        assert ("give uid" in finding.next_step) == (fault is Fault.CONFIG)
        assert ("delete" in finding.next_step) == (fault is None)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    facts = read_checkpoint(tmp_path / "absent")
    assert judge(facts)["checkpoint.config"].status is Status.FAIL


def test_the_reports_section_says_asked_resolved_and_found(tmp_path: Path) -> None:
    files = model_files(PACKED, quantization=NF4 | {"llm_int8_skip_modules": ["a"]})
    facts = read_checkpoint(write_model(tmp_path, files))
    cache = CacheFacts("org/asked", "org/resolved", "hub", "why", tmp_path, "a" * 40)
    plan = plan_for(model="org/asked")
    section = model_section(plan, cache, facts)
    assert (section.requested_id, section.resolved_id) == ("org/asked", "org/resolved")
    assert (section.model_type, section.architecture) == ("llama", "LlamaForCausalLM")
    assert (section.n_shards, section.n_tensors, section.n_packed) == (1, len(PACKED), 1)
    assert section.quantization == NF4
    assert model_section(plan, cache, replace(facts, config={})).model_type == ""
