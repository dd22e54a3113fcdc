"""The header reader against crafted and hostile bytes: a line of what is wrong, never a crash."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.probes.safetensors import read_checkpoint, read_headers, read_shard
from tests.fakes_preflight import model_files, safetensors_bytes, write_model

GOOD = safetensors_bytes({"a": ("F32", (2, 2)), "b": ("BF16", (3,)), "empty": ("F32", (0, 7))})


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def problem(folder: Path, content: bytes) -> str:
    """What the reader says about a file with this content."""
    (folder / "model.safetensors").write_bytes(content)
    shard, tensors, _ = read_shard(folder, "model.safetensors")
    assert bool(shard.problem) != bool(tensors) or not content[8:16].startswith(b'{"')
    assert "\n" not in shard.problem
    return shard.problem


def test_a_good_file_gives_its_tensors_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    shard, tensors, number = read_shard(tmp_path, "x.safetensors")
    assert (shard.problem, shard.n_bytes, number) == ("", len(GOOD), None)
    assert [(t.name, t.dtype, t.shape, t.n_bytes) for t in tensors if t.n_bytes] == [
        ("a", "F32", (2, 2), 16), ("b", "BF16", (3,), 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"abc", "only 3 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"\n <!DOCTYPE html><html>", "HTML"),
        (b"PK\x03\x04" + b"\0" * 50, "zip archive"),
        (b"\0" * 4096, "only zero bytes"),
        (struct.pack("<Q", 1 << 62) + b"{}", "it claims a header of"),
        (struct.pack("<Q", 100) + b"{}", "cut off inside the header"),
        (GOOD[:-1], "cut off: 21 bytes"),
        (GOOD + b"\0", "longer than its header says"),
        (with_header(b"[1]"), "no JSON object"),
        (with_header(b'{"a"'), "no valid JSON"),
        (with_header(b'{"a": "\xff"}'), "no valid JSON"),
        (with_header(b'{"a":' + b"[" * 100_000), "nested beyond reason"),
        (with_header(b'{"a": {}, "a": {}}'), "twice"),
        (with_header({"a": 1}), "no object"),
        (with_header({"a": entry(shape=[-4])}), "not what they must be"),
        (with_header({"a": entry(shape=[True])}, b"x"), "not what they must be"),
        (with_header({"a": entry(offsets=[0])}), "not what they must be"),
        (with_header({"a": entry(offsets=[4, 0])}, b"1234"), "ends before it begins"),
        (with_header({"a": entry(shape=[5])}, b"1234"), "is not 4 bytes"),
        (with_header({"a": entry(shape=[1 << 63] * 100_000)}, b"1234"), "larger than any file"),
        (with_header({"a": entry(offsets=[1, 5])}, b"12345"), "data begins at 1"),
        (with_header({"a": entry(), "b": entry()}, b"1234"), "data begins at 0, expected 4"),
        (with_header(b'{"\\ud800": {}}'), "not valid Unicode"),
        (with_header({"\x1b[31m\n": 1}), r"\u001b[31m\u000a"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    began = time.monotonic()
    assert said in problem(tmp_path, content)
    assert time.monotonic() - began < 2


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    for content in (raw, with_header(raw), with_header(b"{" + raw + b"}", raw)):
        (folder / "f.safetensors").write_bytes(content)
        read_shard(folder, "f.safetensors")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "U8", "F4", "X"]) | JSON, "shape": st.lists(
        st.integers(-1, 9), max_size=3) | JSON, "data_offsets": st.lists(
        st.integers(0, 40), min_size=2, max_size=2) | JSON}
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=4), st.binary(max_size=40))
def test_a_header_that_passes_covers_the_file_exactly(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any], data: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "g.safetensors").write_bytes(with_header(table, data))
    shard, tensors, _ = read_shard(folder, "g.safetensors")
    if not shard.problem:
        assert sum(tensor.n_bytes for tensor in tensors) == len(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_one_changed_or_missing_byte_is_no_crash(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, cut: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = GOOD[:place] if cut else GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    (folder / "h.safetensors").write_bytes(content)
    shard, _, _ = read_shard(folder, "h.safetensors")
    assert shard.problem or not cut


@settings(max_examples=150, deadline=None)
@given(JSON | st.binary(max_size=50), JSON | st.binary(max_size=50))
def test_no_config_and_no_index_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory,
    config: Any,
    index: Any,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile"
    folder.mkdir(exist_ok=True)
    table = index if isinstance(index, bytes) else {"metadata": {}, "weight_map": index}
    parts = {"config.json": config, "model.safetensors.index.json": table}
    for name, content in parts.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(raw)
    read_checkpoint(folder)


def test_a_pipe_a_folder_and_a_dangling_link_are_no_weights(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    names = ("pipe.safetensors", "folder.safetensors", "link.safetensors")
    said = [read_shard(tmp_path, name)[0].problem for name in names]
    assert said == ["not a regular file", "Is a directory", "missing"]


def test_two_thousand_tensors_in_ten_gigabytes_are_read_quickly(tmp_path: Path) -> None:
    n_bytes = 5_000_000
    table = {
        f"layer.{i}.weight": entry(shape=[n_bytes], offsets=[i * n_bytes, (i + 1) * n_bytes])
        for i in range(2000)
    }
    path = tmp_path / "model.safetensors"
    head = with_header(table)
    path.write_bytes(head)
    os.truncate(path, len(head) + 2000 * n_bytes)  # a sparse file
    began = time.monotonic()
    facts = read_checkpoint(tmp_path)
    assert time.monotonic() - began < 1.0
    assert (len(facts.tensors), facts.shards[0].problem) == (2000, "")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "", "a\\b.safetensors", "x.bin", "a/../../b"]
)
def test_an_index_that_leads_outside_opens_nothing(tmp_path: Path, name: str) -> None:
    index = json.dumps({"metadata": {}, "weight_map": {"a": name}}).encode()
    files = model_files() | {"model.safetensors.index.json": index}
    del files["model.safetensors"]
    facts = read_checkpoint(write_model(tmp_path, files))
    assert facts.index_problem
    assert not facts.shards


def test_the_headers_alone_are_those_of_the_whole_reading(tmp_path: Path) -> None:
    """The worker reads a folder again that the supervisor has judged, on the critical path."""
    write_model(tmp_path, model_files())
    whole, headers = read_checkpoint(tmp_path), read_headers(tmp_path)
    assert headers.tensors
    for name in ("folder", "config", "index", "shards", "tensors", "packed"):
        assert getattr(headers, name) == getattr(whole, name)
