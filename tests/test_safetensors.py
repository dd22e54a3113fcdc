"""The header reader against crafted and hostile bytes: a line of what is wrong, never a crash."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.facts.checkpoint import QuantData
from app.probes.headers import BITS
from app.probes.safetensors import read_checkpoint, read_headers, read_shard
from app.probes.sniff import SNIFF
from tests.fakes_preflight import PACKED, model_files, safetensors_bytes, write_model

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
    assert bool(shard.problem) != bool(tensors)
    assert "\n" not in shard.problem
    return shard.problem


def test_a_good_file_gives_its_tensors_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    shard, tensors, number = read_shard(tmp_path, "x.safetensors")
    assert (shard.problem, shard.n_bytes, number) == ("", len(GOOD), None)
    assert [(t.name, t.dtype, t.shape, t.n_bytes) for t in tensors if t.n_bytes] == [
        ("a", "F32", (2, 2), 16), ("b", "BF16", (3,), 6),
    ]  # fmt: skip


WRONG: Sequence[tuple[bytes, str]] = (
    (b"", "empty"),
    (b"\x03\xfe\x00", "only 3 bytes"),
    (b"Not Found", "text, not the file itself: Not Found"),
    (b'{"error": "gated"}', 'JSON text, not the file itself: {"error": "gated"}'),
    (b"GGUF\x03\0\0\0{" + b"\0" * 60, "a GGUF file"),
    (b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
    (b"\x1f\x8b\x08" + b"\0" * 60, "a gzip archive"),
    (b"\x80\x02\x8a\nl\xfc\x9cF", "a pickled PyTorch file"),
    (b"a.bin".ljust(257, b"\0") + b"ustar\x0000" + b"\0" * 300, "a tar archive"),
    (b"\xff\xfe<\0h\0t\0m\0l\0>\0", "text in UTF-16"),
    (b"PK\x03\x04\0\0\0\0{", "cut off inside the header"),  # a length of 67 MB
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
    (with_header({}), "names no tensor"),
    (with_header({"__metadata__": {"format": "pt"}}), "names no tensor"),
    (with_header({"__metadata__": {"a": 1}, "a": entry()}, b"1234"), "no table of texts"),
    (with_header({"__metadata__": [], "a": entry()}, b"1234"), "no table of texts"),
    (with_header({"__metadata__": entry(), "a": entry()}, b"1234"), "no table of texts"),
    (with_header({"a": entry() | {"more": [1]}}, b"1234"), "its field more is of no format"),
    (with_header({"a": entry() | {"more": float("nan")}}, b"1234"), "no valid JSON: NaN"),
    (with_header(b'{"a": {"x": 1e999}}'), "no valid JSON: a number out of range"),
    (with_header(b'{"a": {"x": ' + b"9" * 5000 + b".0}}"), "a number out of range"),
    (with_header(b'{"a": {"x": ' + b"9" * 5000 + b"}}"), "no valid JSON"),
    (with_header(b'{"a": {"dtype": "U8", "shape": [-0], "data_offsets": [0, 0]}}'), "-0 is no"),
    (with_header(b'{"a": [' + b"[]," * 100_000 + b"[]]}"), "nested beyond reason"),
    (with_header(json.dumps({"a": entry()}).encode() + b"\0", b"1234"), "no valid JSON"),
    (with_header(b" " + json.dumps({"a": entry()}).encode(), b"1234"), "no JSON object"),
    (with_header(b"\xef\xbb\xbf" + json.dumps({"a": entry()}).encode()), "no JSON object"),
    (with_header({"a": entry("F4", [7])}, b"1234"), "F4 of shape [7] is not 4 bytes"),
    (with_header({"a": entry("F6_E2M3", [5])}, b"1234"), "F6_E2M3 of shape [5]"),
    (
        with_header({"a": entry(), "z": entry(shape=[0], offsets=[2, 2])}, b"1234"),
        "begins at 2",
    ),
    (with_header({"a": entry("F32", [1 << 63, 4], [0, 0])}), "larger than any file"),
    (with_header({"a": entry("F64", [1 << 62], [0, 0])}), "is not 0 bytes"),
    (with_header({"\x1b[31m\n": 1}), r"\u001b[31m\u000a"),
)


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in problem(tmp_path, content)


ODD: Sequence[bytes] = (
    with_header(json.dumps({"a": entry()}).encode() + b"  \n", b"1234"),
    with_header({"a": entry("F4", [8])}, b"1234"),
    with_header({"a": entry("F6_E2M3", [4], [0, 3])}, b"123"),
    with_header({"a": entry(shape=[], offsets=[0, 1])}, b"1"),
    with_header({"a": entry(shape=[0, 1 << 63, 1 << 63], offsets=[0, 0])}),
    with_header({"a": entry(), "z": entry(shape=[0], offsets=[4, 4])}, b"1234"),
    # Data at any place: torch reads it, by a copy.
    with_header({"a": entry("U8", [1], [0, 1]), "b": entry("F32", [1], [1, 5])}, b"12345"),
    with_header({"__metadata__": None, "a": entry()}, b"1234"),
    with_header({"a": entry() | {"more": 1.5, "text": "-0", "none": None}}, b"1234"),
    with_header({"a:-0": entry()}, b"1234"),
    with_header(b'{"\\ud83d\\ude00": ' + json.dumps(entry()).encode() + b"}", b"1234"),
)


@pytest.mark.parametrize("content", ODD)
def test_odd_and_legal_is_read(tmp_path: Path, content: bytes) -> None:
    assert problem(tmp_path, content) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


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


def test_what_is_no_file_is_no_weights(tmp_path: Path) -> None:
    """A device is not even opened: that alone can do things."""
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.safetensors"))
    said = {path.stem: read_shard(tmp_path, path.name)[0].problem for path in tmp_path.iterdir()}
    assert said == {
        "pipe": "not a regular file", "device": "not a regular file",
        "socket": "not a regular file", "folder": "Is a directory",
        "loop": "Too many levels of symbolic links", "link": "missing",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a\0b.safetensors", "\ud800.safetensors", "x" * 300])
def test_a_name_that_no_file_can_have_is_said(tmp_path: Path, name: str) -> None:
    shard, _, _ = read_shard(tmp_path, name)
    assert shard.problem


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each reading call on a weight file gave."""
    found: list[int] = []
    read = os.pread

    def counted(handle: int, length: int, offset: int) -> bytes:
        raw = read(handle, length, offset)
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".safetensors":
            found.append(len(raw))
        return raw

    monkeypatch.setattr("app.probes.files.os.pread", counted)
    return found


def sparse(path: Path, tensors: Sequence[tuple[str, str, int]]) -> int:
    """A file of tensors (name, dtype, number of elements) that is a hole behind its header.

    Returns the header's bytes, with the length before it.
    """
    table, position = {}, 0
    for name, dtype, n_elements in tensors:
        end = position + n_elements * BITS[dtype] // 8
        table[name] = entry(dtype, [n_elements], [position, end])
        position = end
    head = with_header(table)
    path.write_bytes(head)
    os.truncate(path, len(head) + position)
    return len(head)


def test_of_ten_gigabytes_only_the_headers_are_read(tmp_path: Path, reads: list[int]) -> None:
    files = model_files(n_shards=3)
    index = json.loads(files["model.safetensors.index.json"])
    index["weight_map"] = {}
    names = sorted(name for name in files if name.endswith(".safetensors"))
    write_model(tmp_path, files)
    headers = 0
    for part, name in enumerate(names):
        tensors = [(f"layer.{n}.weight", "BF16", 2_500_000) for n in range(part, 2000, 3)]
        headers += sparse(tmp_path / name, tensors)
        index["weight_map"] |= {tensor: name for tensor, *_ in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    facts = read_checkpoint(tmp_path)
    assert (len(facts.tensors), [shard.problem for shard in facts.shards]) == (2000, [""] * 3)
    assert sum(shard.n_bytes for shard in facts.shards) > 10**10
    assert sum(reads) == headers + 3 * (SNIFF - 8)


def test_of_plain_scales_only_samples_are_read(tmp_path: Path, reads: list[int]) -> None:
    """They take a sixteenth of all weights' bytes; the numeric stage sees every one of them."""
    names = [f"layer.{n}.weight.absmax" for n in range(20)]
    path = tmp_path / "x.safetensors"
    head = sparse(path, [(name, "F32", 10**7) for name in names])
    quant = QuantData()
    shard, tensors, _ = read_shard(tmp_path, "x.safetensors", quant)
    assert (shard.problem, set(quant.scales.values())) == ("", {""})  # not all seen, so not `zero`
    assert sum(reads) <= head + SNIFF + len(names) * 16 * 1024
    # One number at the end of the last: a sample ends there.
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(struct.pack("<f", float("nan")))
    quant = QuantData()
    read_shard(tmp_path, "x.safetensors", quant)
    assert [name for name, word in quant.scales.items() if word] == [tensors[-1].name]


def test_quant_states_that_fill_a_disk_are_not_read(tmp_path: Path, reads: list[int]) -> None:
    names = [f"layer.{n}.weight.quant_state.bitsandbytes__nf4" for n in range(2000)]
    head = sparse(tmp_path / "x.safetensors", [(name, "U8", 60_000) for name in names])
    quant = QuantData()
    read_shard(tmp_path, "x.safetensors", quant)
    assert "more than any model has" in str(quant.states[names[0]])
    assert (len(quant.states), sum(reads)) == (2000, head + SNIFF - 8)


def test_what_lies_near_is_read_at_once(tmp_path: Path, reads: list[int]) -> None:
    """On a mount every read is a round trip."""
    write_model(tmp_path, {"x.safetensors": safetensors_bytes(PACKED)})
    read_shard(tmp_path, "x.safetensors", QuantData())
    assert len(reads) == 3  # first bytes, header, everything beside the weight


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("failing_read", range(3))
def test_a_disk_that_fails_at_any_read_is_no_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, failing_read: int
) -> None:
    """The same bytes may be whole on another node: 74 and not 65."""
    write_model(tmp_path, {"x.safetensors": safetensors_bytes(PACKED)})
    read, calls = os.pread, []

    def failing(handle: int, length: int, offset: int) -> bytes:
        calls.append(offset)
        if len(calls) > failing_read:
            raise OSError(number, os.strerror(number))
        return read(handle, length, offset)

    monkeypatch.setattr("app.probes.files.os.pread", failing)
    shard, tensors, told = read_shard(tmp_path, "x.safetensors", QuantData())
    assert (shard.problem, tensors, told) == (os.strerror(number), [], number)
    assert len(calls) == failing_read + 1


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
