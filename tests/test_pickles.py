"""Pickled weights: read by their opcodes, never run; what they hold beyond tensors is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.exits import ExitCode
from app.outcome import Status
from app.probes.opcodes import PickleError, read_pickle
from app.probes.pickles import INDEX, SINGLE, read_file, read_pickles
from app.probes.safetensors import read_checkpoint, read_headers
from tests.fakes_preflight import PLAIN, model_files, write_model
from tests.test_checkpoint import failing, judge, without

WIDTHS = {"BFloat16Storage": 2, "FloatStorage": 4}
PROTOCOL = 2  # torch's default, and the only one that its loader of weights takes


class Named:
    """Pickles as the name of a function or class, which need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Called:
    """Pickles as a call."""

    def __init__(self, function: Named, arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments


class Storage:
    """Pickles as a persistent id, as torch writes the data of a tensor."""

    def __init__(self, kind: str, key: str, n_elements: int) -> None:
        self.record = ("storage", Named("torch", kind), key, "cpu", n_elements)


class Writer(pickle._Pickler):
    """Python's own pickler, which writes names without looking them up."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def persistent_id(self, obj: object) -> object:
        return obj.record if isinstance(obj, Storage) else None

    def save_named(self, obj: Named) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())  # type: ignore[attr-defined]

    def save_called(self, obj: Called) -> None:
        self.save(obj.function)  # type: ignore[attr-defined]
        self.save(obj.arguments)  # type: ignore[attr-defined]
        self.write(pickle.REDUCE)  # type: ignore[attr-defined]

    dispatch[Named] = save_named
    dispatch[Called] = save_called


REBUILD = Named("torch._utils", "_rebuild_tensor_v2")


def tensor(key: str, *shape: int, kind: str = "BFloat16Storage", offset: int = 0) -> Called:
    n_elements = 1
    stride: list[int] = []
    for side in reversed(shape):
        stride.insert(0, n_elements)
        n_elements *= side
    held = Storage(kind, key, n_elements)
    return Called(REBUILD, (held, offset, tuple(shape), tuple(stride), False, OrderedDict()))


def pickled(value: object, protocol: int = PROTOCOL) -> bytes:
    out = io.BytesIO()
    Writer(out, protocol).dump(value)
    return out.getvalue()


def archive(
    value: object, records: Mapping[str, int], protocol: int = PROTOCOL, prefix: str = "archive"
) -> bytes:
    """torch's zip file: the program, and one record of so many bytes for each storage."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr(f"{prefix}/data.pkl", pickled(value, protocol))
        made.writestr(f"{prefix}/version", b"3\n")
        for key, n_bytes in records.items():
            made.writestr(f"{prefix}/data/{key}", bytes(n_bytes))
    return out.getvalue()


def older(value: object, sizes: Mapping[str, int]) -> bytes:
    """The format before zip files; `sizes`: key -> bytes of its storage."""
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    head = magic + pickled(1001) + pickled({"little_endian": True})
    body = b"".join(struct.pack("<Q", n) + bytes(n) for n in sizes.values())
    return head + pickled(value) + pickled(list(sizes)) + body


GOOD: dict[str, Any] = {"layer.weight": tensor("0", 4, 4), "norm.weight": tensor("1", 4)}
ROOM = {"0": 32, "1": 8}


def read(folder: Path, content: bytes) -> tuple[str, tuple[str, ...], list[Any]]:
    (folder / SINGLE).write_bytes(content)
    file, tensors, number = read_file(folder, SINGLE)
    assert number is None
    assert "\n" not in file.problem
    return file.problem, file.code, [(t.name, t.dtype, t.shape, t.n_bytes) for t in tensors]


@pytest.mark.parametrize("content", [archive(GOOD, ROOM), older(GOOD, ROOM)], ids=["zip", "older"])
def test_both_formats_tell_their_tensors(tmp_path: Path, content: bytes) -> None:
    problem, code, tensors = read(tmp_path, content)
    assert (problem, code) == ("", ())
    assert tensors == [("layer.weight", "BF16", (4, 4), 32), ("norm.weight", "BF16", (4,), 8)]


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.made = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.made


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, __import__], ids=str)
def test_code_is_named_and_not_run(
    tmp_path: Path, protocol: int, function: Callable[..., object]
) -> None:
    mark = tmp_path / "ran"
    command = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w')"
    value = {"layer.weight": Evil(function, command)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps(value, protocol))
    problem, code, _ = read(tmp_path, out.getvalue())
    assert not mark.exists()
    name = function.__name__
    # Protocols 0 and 1 write a call in opcodes that no weights need.
    assert any(each.endswith(f".{name}") for each in code) or (protocol < PROTOCOL and problem)


def test_a_pickle_of_a_whole_model_is_code(tmp_path: Path) -> None:
    value = Called(Named("torch.nn.modules.linear", "Linear"), ())
    _, code, tensors = read(tmp_path, archive({"a": value}, {}))
    assert code == ("torch.nn.modules.linear.Linear",)
    assert not tensors


def test_a_newer_protocol_is_refused_as_torch_refuses_it(tmp_path: Path) -> None:
    problem, code, _ = read(tmp_path, archive(GOOD, ROOM, protocol=4))
    assert "which torch refuses in weights" in problem
    assert not code


def compressed() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", pickled(GOOD))
    return out.getvalue()


def script() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("m/data.pkl", pickled({}))
        made.writestr("m/code/__torch__.py", "x")
    return out.getvalue()


WHOLE = archive(GOOD, ROOM)
DEEP = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"<html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\0" * 64, "only zero bytes"),
        (b"abc", "neither torch's archive"),
        (pickled({"a": 1}), "neither torch's archive"),
        (WHOLE[:-1], "a broken archive"),
        (WHOLE[: len(WHOLE) // 2], "a broken archive"),
        (older(GOOD, ROOM)[:-1], "cut off: 55 bytes of tensor data, its program says 56"),
        (older(GOOD, ROOM)[:60], "no valid pickle"),
        (archive(GOOD, {"0": 32}), "norm.weight: its storage has no record in the archive"),
        (archive(GOOD, {"0": 31, "1": 8}), "has 31 bytes in the archive, and needs 32"),
        (archive({"state_dict": GOOD}, ROOM), "state_dict is no tensor: the weights may lie one"),
        (archive([1, 2], {}), "holds no table of tensors"),
        (archive({}, {}), "holds no table of tensors"),
        (archive({"a": tensor("0", 4, offset=1)}, {"0": 8}), "a reaches beyond its storage of 4"),
        (archive({"a": Called(REBUILD, (1, 0, (2,), (1,)))}, {}), "a lies in no storage"),
        (archive({"a": Called(REBUILD, (1,))}, {}), "without a storage, an offset and a shape"),
        (archive({"a": tensor("../x", 4)}, {}), "a storage of an unknown kind"),
        (archive({"a": tensor("0", 4, kind="OddStorage")}, {"0": 8}), ""),
        (archive({"a\n": 3}, {}), r"a\u000a is no tensor"),
        (script(), "a TorchScript program"),
        (compressed(), "is compressed"),
        (archive(GOOD, ROOM).replace(b"data.pkl", b"datb.pkl"), "without torch's data.pkl"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    problem, code, tensors = read(tmp_path, content)
    assert said in problem
    assert problem or code
    assert not tensors


@pytest.mark.parametrize("raw", [b".", b"\x80\x02.", b"}s.", b"]a.", b"0.", b"Rb."])
def test_a_machine_that_is_misused_says_so(raw: bytes) -> None:
    with pytest.raises(PickleError) as caught:
        read_pickle(io.BytesIO(raw))
    assert len(str(caught.value)) < 300


def test_depth_costs_no_recursion() -> None:
    value, _ = read_pickle(io.BytesIO(DEEP))
    assert isinstance(value, tuple)


def test_laughs_by_the_billion_cost_no_memory(tmp_path: Path) -> None:
    """A tuple of two references to the one before, 200 times over."""
    body = b"(tq\x00" + b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(200))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02" + body + b".")
    problem, _, _ = read(tmp_path, out.getvalue())
    assert problem == "it holds no table of tensors"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    with suppress(PickleError):
        read_pickle(io.BytesIO(raw))


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_no_changed_byte_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("pickle")
    changed = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    (folder / SINGLE).write_bytes(changed)
    file, tensors, _ = read_file(folder, SINGLE)
    assert file.problem or file.code or len(tensors) == len(GOOD)


def test_pipes_and_folders_are_no_weights(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SINGLE)
    assert read_file(tmp_path, SINGLE)[0].problem == "not a regular file"
    assert read_file(tmp_path, "absent")[0].problem == "missing"


def index(table: object) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": table}).encode()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": "../b.bin"}, "a is in files outside the folder"), ({"a": 1}, "a is in files that"),
        ({}, "no weight_map with tensors in it"), (3, "no weight_map with tensors in it"),
        ({"a": "b.safetensors"}, "a is in files that are no .bin: b.safetensors"),
    ],
)  # fmt: skip
def test_an_index_opens_nothing_outside_of_the_folder(
    tmp_path: Path, table: object, said: str
) -> None:
    (tmp_path / INDEX).write_bytes(index(table))
    found, tensors = read_pickles(tmp_path, (INDEX,))
    assert said in found.index_problem
    assert not tensors
    assert not found.files


BARE = without(model_files(), "model.safetensors")
PARTS = {
    "a.bin": archive({"layer.weight": tensor("0", 4, 4)}, {"0": 32}),
    "b.bin": archive({"norm.weight": tensor("0", 4)}, {"0": 8}),
}


@pytest.mark.parametrize(
    ("files", "failed", "said"),
    [
        ({SINGLE: WHOLE}, {}, "2 tensors in 1 pickle(s) that hold nothing else"),
        (
            {INDEX: index({"layer.weight": "a.bin", "norm.weight": "b.bin"}), **PARTS},
            {}, "2 tensors in 2 pickle(s)",
        ),
        (
            {INDEX: index({"layer.weight": "a.bin", "more": "b.bin"}), **PARTS},
            {"pickles": ExitCode.DATAERR}, "1 tensor(s) of the index are not in their file: more",
        ),
        (
            {INDEX: index({"layer.weight": "a.bin", "norm.weight": "c.bin"}), **PARTS},
            {"pickles": ExitCode.DATAERR}, "c.bin: missing",
        ),
        ({INDEX: b"<html>"}, {"pickles": ExitCode.DATAERR}, f"{INDEX}: an HTML"),
        ({SINGLE: WHOLE[:-1]}, {"pickles": ExitCode.DATAERR}, "a broken archive"),
    ],
)  # fmt: skip
def test_pickles_that_are_asked_for_are_judged(
    tmp_path: Path, files: dict[str, bytes], failed: dict[str, ExitCode], said: str
) -> None:
    facts = read_checkpoint(write_model(tmp_path, BARE | files))
    found = judge(facts, allow_pickle=True)
    assert failing(found) == failed
    assert said in found["checkpoint.pickles"].reason
    assert found["checkpoint.shards"].status is Status.SKIP


def test_pickles_that_are_not_asked_for_are_refused(tmp_path: Path) -> None:
    found = judge(read_checkpoint(write_model(tmp_path, BARE | {SINGLE: WHOLE})))
    assert failing(found) == {"shards": ExitCode.DATAERR}
    assert found["checkpoint.shards"].next_step.endswith("or set BOOT_ALLOW_PICKLE=true")


@pytest.mark.parametrize("allowed", [False, True])
def test_code_is_refused_whether_asked_for_or_not(tmp_path: Path, *, allowed: bool) -> None:
    evil = archive({"a": Called(Named("os", "system"), ("x",))}, {})
    facts = read_checkpoint(write_model(tmp_path, BARE | {SINGLE: evil}))
    found = judge(facts, allow_pickle=allowed)
    assert failing(found)["pickles"] == ExitCode.DATAERR
    assert found["checkpoint.pickles"].reason == f"{SINGLE} holds code: os.system"
    assert "BOOT_ALLOW_PICKLE" not in found["checkpoint.shards"].next_step


def test_code_is_found_in_a_pickle_that_is_not_torchs(tmp_path: Path) -> None:
    _, code, tensors = read(tmp_path, pickled(Called(Named("os", "system"), ("x",))))
    assert code == ("os.system",)
    assert not tensors


def test_a_broken_pickle_is_not_to_be_asked_for(tmp_path: Path) -> None:
    found = judge(read_checkpoint(write_model(tmp_path, BARE | {SINGLE: WHOLE[:-1]})))
    assert failing(found) == {"shards": ExitCode.DATAERR}
    assert "BOOT_ALLOW_PICKLE" not in found["checkpoint.shards"].next_step


def test_safetensors_come_first_and_pickles_beside_them_are_not_read(tmp_path: Path) -> None:
    facts = read_checkpoint(write_model(tmp_path, model_files() | {SINGLE: b"anything"}))
    found = judge(facts, allow_pickle=True)
    assert not failing(found)
    assert found["checkpoint.pickles"].reason == f"not read: {SINGLE}"
    assert len(facts.tensors) == len(PLAIN)


def test_later_stages_know_the_tensors_of_pickles(tmp_path: Path) -> None:
    write_model(tmp_path, BARE | {SINGLE: WHOLE})
    whole, headers = read_checkpoint(tmp_path), read_headers(tmp_path)
    assert whole.tensors == headers.tensors
    assert [header.file for header in headers.tensors] == [SINGLE, SINGLE]


def test_a_pickle_that_cannot_be_read_is_not_called_broken(tmp_path: Path) -> None:
    facts = read_checkpoint(write_model(tmp_path, BARE | {SINGLE: WHOLE}))
    file = replace(facts.pickled.files[0], problem="Input/output error")
    broken = replace(facts, pickled=replace(facts.pickled, files=(file,)), errnos={SINGLE: 5})
    assert failing(judge(broken, allow_pickle=True)) == {"pickles": ExitCode.IOERR}
