"""The small files of a model folder: what is wrong with each, whose fault it is, the way out."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.outcome import Finding, Status
from app.probes.safetensors import read_checkpoint
from app.probes.weights import missing_weights, parsed
from tests.fakes_preflight import NF4, PACKED, PLAIN, model_files, write_model
from tests.rights import without_rights
from tests.test_checkpoint import failing, judge

VOCAB = {**{f"t{n}": n for n in range(7)}, "<end>": 7}
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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "chat_template.jinja",
            b"{% for m in messages %}\n{{ m",
            "broken at line 2: unexpected end",
        ),
        ("chat_template.jinja", b"{% if x %} \xff", "broken at line 1"),
        ("chat_template.jinja", b"{{ " + b"(" * 100_000, "nested beyond reason"),
        ("tokenizer_config.json", b'{"chat_template": "{% endif %}"}', "broken at line 1"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "b", "template": "{{"}, {"name": "a", "template": ""}]}',
            "broken at line 1",
        ),
        ("tokenizer_config.json", b'{"chat_template": {"default": "{% x %}"}}', "unknown tag 'x'"),
    ],
)
def test_a_chat_template_that_jinja_cannot_parse_warns(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    """A job on plain text never formats a chat."""
    finding = said_of(tmp_path, model_files() | {name: content})["checkpoint.tokenizer"]
    assert finding.status is Status.WARN
    assert finding.reason.startswith(f"{name}: its chat template is ")
    assert said in finding.reason
    assert f"correct the template in {name}" in finding.next_step


def test_a_page_in_a_templates_place_is_no_template(tmp_path: Path) -> None:
    """Jinja would take it for a text without any message in it."""
    found = said_of(tmp_path, model_files() | {"chat_template.jinja": PAGE})
    assert failing(found) == {"tokenizer": ExitCode.DATAERR}


@pytest.mark.parametrize(
    "text",
    [
        b"{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% endfor %}",
        b"{% for m in messages %}{% if m %}{% break %}{% endif %}{% endfor %}",
        b"{{ raise_exception('no') }}{{ strftime_now('%d') }}{{ x | tojson(indent=4) }}",
        b"\xff {# a text of another encoding #}",
    ],
)
def test_what_transformers_adds_to_jinja_is_known(tmp_path: Path, text: bytes) -> None:
    assert not failing(said_of(tmp_path, model_files() | {"chat_template.jinja": text}))


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
    ("tensors", "changes", "said", "step"),
    [
        (PLAIN, {"quantization_config": {}}, "quantization_config is empty", "remove"),
        (PLAIN, {"quantization_config": {"bits": 4}}, "names no quant_method", "remove"),
        (PLAIN, {"text_config": {"quantization_config": {}}}, "text_config.quantization_c", "rem"),
        (PACKED, {"quantization_config": {}}, "quantization_config is empty", "fetch config.json"),
        (
            {**PLAIN, "a.qweight": ("I32", (4, 4))},
            {"quantization_config": {}}, "quantization_config is empty", "fetch config.json",
        ),
    ],
)  # fmt: skip
def test_a_quantization_config_without_a_method_is_named(
    tmp_path: Path, tensors: Any, changes: dict[str, Any], said: str, step: str
) -> None:
    found = said_of(tmp_path, with_config(model_files(tensors), **changes))
    finding = found["checkpoint.quantization"]
    assert failing(found)["quantization"] == ExitCode.DATAERR
    assert said in finding.reason
    assert finding.next_step.startswith(step)
    assert "bitsandbytes" not in finding.reason


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


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("base_model.model.layer.weight", "PEFT"),
        ("layer.q_proj.base_layer.weight", "PEFT"),
        ("layer.q_proj.lora_A.default.weight", "PEFT"),
        ("_orig_mod.layer.weight", "torch.compile"),
        ("model._orig_mod.layer.weight", "torch.compile"),
        ("_fsdp_wrapped_module.layer.weight", "FSDP"),
        ("module.layer.weight", "a trainer's wrapper"),
        ("layer.module.weight", ""),
        ("base_layers.0.weight", ""),
    ],
)
def test_names_that_a_wrapper_left_are_found_by_no_loader(
    tmp_path: Path, name: str, who: str
) -> None:
    found = said_of(tmp_path, model_files({**PLAIN, name: ("BF16", (4, 4))}))
    assert failing(found) == ({"tensors": ExitCode.DATAERR} if who else {})
    if who:
        reason = found["checkpoint.tensors"].reason
        assert reason.startswith(f"1 tensor(s) have the name that {who} gave them")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("layer.qweight", "GPTQ or AWQ"),
        ("layer.weight_packed", "compressed-tensors"),
        ("layer.SCB", "bitsandbytes in 8 bits"),
        ("layer.experts.gate_up_proj_blocks", "MXFP4"),
    ],
)
def test_another_packing_that_config_does_not_tell_of_is_named(
    tmp_path: Path, name: str, method: str
) -> None:
    found = said_of(tmp_path, model_files({**PLAIN, name: ("I32", (4, 4))}))
    assert failing(found) == {"quantization": ExitCode.DATAERR}
    assert f"1 weight(s) are packed by {method}" in found["checkpoint.quantization"].reason


@pytest.mark.parametrize(
    ("settings", "rows", "status"),
    [
        ({"eos_token": "<|im_end|>"}, 8, Status.FAIL),
        ({"eos_token": {"content": "<|im_end|>"}}, 8, Status.FAIL),
        ({"bos_token": "<s>"}, 8, Status.WARN),
        ({"eos_token": "t0"}, 8, Status.PASS),
        ({"eos_token": "<|im_end|>"}, 9, Status.PASS),  # a row is to spare
        (
            {"eos_token": "<e>", "added_tokens_decoder": {"7": {"content": "<e>"}}},
            8, Status.PASS,
        ),
    ],
)  # fmt: skip
def test_a_token_that_the_load_adds_needs_a_row(
    tmp_path: Path, settings: dict[str, Any], rows: int, status: Status
) -> None:
    model = {"type": "BPE", "vocab": {f"t{n}": n for n in range(8)}}
    files = model_files({**PLAIN, "model.embed_tokens.weight": ("BF16", (rows, 4))})
    files["tokenizer.json"] = json.dumps({"model": model}).encode()
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    finding = said_of(tmp_path, files)["checkpoint.vocabulary"]
    assert finding.status is status
    if status is not Status.PASS:
        assert "is not in tokenizer.json and gets the id 8" in finding.reason


def test_a_folder_that_may_not_be_entered_is_passed_over(outside: Path) -> None:
    """Every disk has one: lost+found, root's own."""
    write_model(outside / "model", model_files())
    (outside / "lost+found").mkdir(mode=0)
    with without_rights():
        facts = read_checkpoint(outside)
    assert judge(facts)["checkpoint.config"].reason == "the model is one folder deeper: model"


def test_a_folder_that_may_be_listed_and_not_entered_is_a_matter_of_rights(outside: Path) -> None:
    folder = write_model(outside / "model", model_files())
    folder.chmod(0o444)
    with without_rights():
        facts = read_checkpoint(folder)
    folder.chmod(0o755)
    assert failing(judge(facts))["config"] == ExitCode.CONFIG
    assert judge(facts)["checkpoint.config"].next_step.startswith("give uid ")


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
        # StarCoder was published with GPT-2's first and last token.
        ({"generation_config.json": b'{"eos_token_id": [1, 8]}'}, Status.WARN, "eos_token_id is 8"),
        ({"generation_config.json": b'{"pad_token_id": 8}'}, Status.FAIL, "pad_token_id is 8"),
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
        ({"text_config": {"vocab_size": 8, "eos_token_id": [9]}}, PLAIN, Status.WARN),
        ({"text_config": {"vocab_size": 8, "pad_token_id": 9}}, PLAIN, Status.FAIL),
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


PAGE = b"<!DOCTYPE html>\n<html><body>Sign in</body></html>"
IN_ITS_PLACE = (
    (PAGE, "an HTML or XML page"),
    (b"\xef\xbb\xbf" + PAGE, "an HTML or XML page"),
    (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML or XML page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
    (b"PK\x03\x04" + b"\x14\0" * 40, "a zip archive"),
    (gzip.compress(b"{}"), "a gzip archive"),
    (b"%PDF-1.7\n", "a PDF document"),
    (b"GGUF\x03\0\0\0", "a GGUF file"),
    (b"\0" * 700, "only zero bytes"),
    ('{"model_type": "llama"}'.encode("utf-16"), "text in UTF-16"),
    (b"\xef\xbb\xbf{}", "not JSON: it begins with a byte order mark"),
    (b'{"model_type": "llama"}\0', "not JSON: Extra data"),
    (b"Entry not found", "not JSON: Expecting value"),
    (b'{"error": "Repository not found"}', "an error message in JSON, not the file itself: Repos"),
    (b'{"message": "Not Found", "status": "404"}', "an error message in JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "not JSON: Exceeds the limit"),
    (b"", "empty"),
    (b" \n", "empty"),
)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json"])
@pytest.mark.parametrize(("content", "said"), IN_ITS_PLACE)
def test_what_was_saved_in_a_files_place_is_named(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    found = said_of(tmp_path, model_files(n_shards=2) | {name: content})
    check = {"config.json": "config", "tokenizer.json": "tokenizer"}.get(name, "index")
    assert failing(found)[check] == ExitCode.DATAERR
    assert f"{name}: {said}" in found[f"checkpoint.{check}"].reason


def test_an_object_with_more_than_an_error_is_a_file(tmp_path: Path) -> None:
    config = json.loads(model_files()["config.json"]) | {"error": "x"}
    found = said_of(tmp_path, model_files() | {"config.json": json.dumps(config).encode()})
    assert not failing(found)


def test_brackets_that_would_fill_the_memory_are_not_parsed() -> None:
    """Python's lists take 20 times the bytes of these."""
    assert parsed(b'{"a": [' + b"[]," * (6 * 1024 * 1024) + b"[]]}").problem.endswith("brackets")


def test_texts_that_no_load_reads_are_not_judged(tmp_path: Path) -> None:
    others = {"notes.txt": b"", "trainer_state.json": b"{", "LICENSE.txt": PAGE}
    assert not failing(said_of(tmp_path, model_files() | others))


def test_a_vocabulary_or_a_template_may_begin_with_a_tag(tmp_path: Path) -> None:
    files = model_files() | {"vocab.txt": b"<pad>\n<s>\n", "chat_template.jinja": b"<bos>{{ x }}"}
    assert not failing(said_of(tmp_path, files))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("call", ["pathlib.Path.iterdir", "pathlib.Path.lstat"])
def test_a_folder_on_a_disk_that_fails_is_called_neither_empty_nor_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """74 alone: one 65 beside it would keep the job from another node."""
    write_model(tmp_path, model_files(n_shards=2))

    def failing_call(_path: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(call, failing_call)
        facts = read_checkpoint(tmp_path)
    codes = failing(judge(facts))
    assert codes
    assert set(codes.values()) == {ExitCode.IOERR}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_every_file_on_a_disk_that_fails_is_74(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_model(tmp_path, model_files(n_shards=2))

    def failing_read(_handle: int, _length: int, _offset: int) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("app.probes.files.os.pread", failing_read)
        facts = read_checkpoint(tmp_path)
    assert set(failing(judge(facts)).values()) == {ExitCode.IOERR}


@pytest.mark.parametrize("linked", [False, True])
def test_the_loaders_order_holds_for_links(tmp_path: Path, linked: bool) -> None:
    """transformers takes the index where `model.safetensors` is no file that can be opened."""
    write_model(tmp_path, model_files(n_shards=2))
    target = "model-00001-of-00002.safetensors" if linked else "nowhere"
    (tmp_path / "model.safetensors").symlink_to(target)
    expected = "model.safetensors" if linked else "model-00001-of-00002.safetensors"
    assert read_checkpoint(tmp_path).shards[0].name == expected


@pytest.mark.parametrize(
    ("name", "missing"),
    [("nowhere", True), ("loop", True), ("x" * 300, True), ("a\0", True), ("file", False)],
)
def test_a_named_file_is_missing_where_nothing_can_be_opened(
    tmp_path: Path, name: str, missing: bool
) -> None:
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "file.safetensors").write_bytes(b"")
    config = {"transformers_weights": f"{name}.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    # A name with a NUL byte is refused before.
    assert bool(missing_weights(tmp_path)) == (missing and "\0" not in name)


def test_a_large_tokenizer_is_read_for_its_ids_and_its_damage(tmp_path: Path) -> None:
    """Larger than what json is asked about; its merges are not built, and checked all the same."""
    vocab = {f"\u2581word{n}": n for n in range(100_000)}
    merges = [["\u2581", f"word{n}"] for n in range(30_000)]
    added = [{"id": 100_000, "content": "<image>", "special": False}]
    whole = {"model": {"type": "BPE", "vocab": vocab, "merges": merges}, "added_tokens": added}
    text = json.dumps(whole, ensure_ascii=False).encode()
    assert len(text) > 2 * 1024 * 1024
    facts = read_checkpoint(write_model(tmp_path, model_files() | {"tokenizer.json": text}))
    assert facts.tokens.largest == 99_999
    assert facts.tokens.added == ((100_000, "<image>", True),)
    for place in (len(text) // 2, len(text) - 200):
        for damage in (text[:place], text[:place] + b"\0" + text[place + 1 :], text[:-9] + b"\xff"):
            (tmp_path / "tokenizer.json").write_bytes(damage)
            assert read_checkpoint(tmp_path).broken_files["tokenizer.json"].startswith("not JSON")


def test_a_byte_order_mark_is_saved_away_and_nothing_is_deleted(tmp_path: Path) -> None:
    files = model_files()
    found = said_of(tmp_path, files | {"config.json": b"\xef\xbb\xbf" + files["config.json"]})
    assert found["checkpoint.config"].next_step == (
        "save config.json as plain UTF-8, without the byte order mark"
    )


def test_what_a_header_names_twice_is_said(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}'
    content = len(header).to_bytes(8, "little") + header + b"\0"
    finding = said_of(tmp_path, model_files() | {"model.safetensors": content})["checkpoint.shards"]
    assert finding.reason.endswith("the header names something twice: a")
