"""The reader of weight files against made-up bytes, beside the library that the load uses.

Three kinds of bytes: any, a good file with a few of them changed, and headers of JSON that are
nearly right. A file in memory counts what is asked of it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.facts.checkpoint import QuantData, TensorHeader
from app.probes.headers import BITS, HeaderError
from app.probes.safetensors import read_tensors
from app.probes.sniff import SNIFF, sniff_weights
from app.probes.tokenizer_file import _by_json, read_large
from app.probes.tokens import _largest
from tests.fakes_preflight import PACKED, safetensors_bytes
from tests.test_safetensors import ODD, WRONG

GOOD = safetensors_bytes({"a": ("F32", (2, 2)), "b": ("BF16", (3,)), "empty": ("F32", (0, 7))})
PACKED_FILE = safetensors_bytes(PACKED)
# Where we refuse what the library takes; each is argued for in `app.probes.headers`.
STRICTER = (
    *("the header names no tensor", "the header names something twice", "its entry is no object"),
    *("the header is nested beyond reason", "is of no format", "the header is no JSON object"),
    *("dtype, shape or data_offsets are not", "more than any model has"),
    "-0 is no whole number",  # in a field that the format does not know
    # A text or a pickle whose first bytes are a fair length, with blanks behind them.
    *("not the file itself", "a pickled PyTorch file"),
)


@dataclass
class Bytes:
    """A file in memory; `reads` are the lengths asked for. It may be shorter than it says."""

    content: bytes
    missing: int = 0
    reads: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.content) + self.missing

    def read(self, length: int, offset: int) -> bytes:
        assert length >= 0
        assert offset >= 0
        self.reads.append(length)
        return self.content[offset : offset + length]


def ours(content: bytes, missing: int = 0) -> tuple[str, list[TensorHeader]]:
    """What is wrong, and the tensors; whatever the bytes are, little is asked of the file."""
    file = Bytes(content, missing)
    quant = QuantData()
    try:
        tensors = read_tensors(file, "f.safetensors", quant)
        said = ""
    except HeaderError as error:
        tensors, said = [], str(error)
        assert said
        assert said.isprintable()
        assert len(said) < 700
    (length,) = struct.unpack("<Q", content[:8].ljust(8, b"\0"))
    first, header, *others = [*file.reads, 0, 0]
    assert (first, header) in {(SNIFF, length), (SNIFF, 0), (0, 0)}
    assert header <= len(content) + missing
    assert sum(others) <= file.size
    return said, tensors


def library(content: bytes) -> str:
    """Why the library refuses it, empty where it does not."""
    try:
        safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        return str(error)
    return ""


def agree(content: bytes) -> None:
    """Whatever the library refuses is refused here, and seldom more.

    A dtype that it does not know is for the judge of dtypes.
    """
    said, tensors = ours(content)
    refused = library(content)
    if refused:
        assert said or any(header.dtype not in BITS for header in tensors), refused
    elif said:
        assert any(words in said for words in STRICTER), said
    if not said:
        start = 8 + struct.unpack("<Q", content[:8])[0]
        assert start + sum(header.n_bytes for header in tensors) == len(content)
        places = [(header.begin, header.begin + header.n_bytes) for header in tensors]
        assert all(start <= begin <= end <= len(content) for begin, end in places)


def with_header(raw: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(raw)) + raw + data


@pytest.mark.parametrize("content", [content for content, _ in WRONG])
def test_crafted_files_are_judged_as_the_library_does(content: bytes) -> None:
    agree(content)


@pytest.mark.parametrize("content", ODD)
def test_what_is_odd_and_read_here_the_library_reads_too(content: bytes) -> None:
    assert not library(content)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\0" * 8)
@example(b"\xff" * 16)
@example(struct.pack("<Q", 2**63) + b"{}")
@example(struct.pack("<Q", 2) + b"{}")
def test_no_bytes_crash_the_reader_or_make_it_read_on(raw: bytes) -> None:
    for content in (raw, with_header(raw), with_header(b"{" + raw + b"}", raw)):
        agree(content)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from((GOOD, PACKED_FILE)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
    st.one_of(st.none(), st.floats(0, 1)),
    st.binary(max_size=4),
)
def test_a_few_changed_bytes_are_judged_as_the_library_does(
    good: bytes, changes: list[tuple[float, int]], cut: float | None, more: bytes
) -> None:
    content = bytearray(good)
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    agree(bytes(content if cut is None else content[: int(cut * len(content))]) + more)


NUMBER = st.integers(-1, 12) | st.sampled_from((2**63, 2**64 - 1, 2**64, 10**400, -0.0, 4.0))
LEAF = st.none() | st.booleans() | NUMBER | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)
NAME = st.text(max_size=4) | st.sampled_from(("__metadata__", "\ud800", "a\n", "a:-0"))
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(("F32", "U8", "F4", "F6_E2M3", "BF16", "C64", "f32", "X")) | JSON,
        "shape": st.lists(NUMBER, max_size=3) | JSON,
        "data_offsets": st.lists(NUMBER, min_size=1, max_size=3) | JSON,
    },
    optional={"more": JSON},
)


@st.composite
def fitting(draw: st.DrawFn) -> dict[str, Any]:
    """A table whose spans follow each other, now and then with one number changed."""
    table: dict[str, Any] = draw(st.sampled_from(({}, {"__metadata__": {"format": "pt"}})))
    table, position = dict(table), 0
    for name in draw(st.lists(st.text(max_size=3), unique=True, max_size=4)):
        dtype = draw(st.sampled_from(("U8", "BF16", "F32", "F4", "C64")))
        sides = draw(st.lists(st.integers(0, 3), max_size=2))
        n_elements = 1
        for side in sides:
            n_elements *= side
        end = position + n_elements * BITS[dtype] // 8 + draw(st.sampled_from((0, 0, 0, 0, 1, -1)))
        table[name] = {"dtype": dtype, "shape": sides, "data_offsets": [position, end]}
        position = max(0, end + draw(st.sampled_from((0, 0, 0, 0, 1, -1))))
    return table


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(NAME, ENTRY | JSON, max_size=4) | fitting(), st.integers(0, 40), st.booleans()
)
def test_headers_that_are_nearly_right_are_judged_as_the_library_does(
    table: dict[str, Any], n_bytes: int, exact: bool
) -> None:
    if exact:
        ends = [v["data_offsets"][-1:] for v in table.values() if _has_offsets(v)]
        whole = [end[0] for end in ends if end and type(end[0]) is int and 0 <= end[0] < 100]
        n_bytes = max(whole, default=0)
    agree(with_header(json.dumps(table).encode(), bytes(n_bytes)))


def _has_offsets(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("data_offsets"), list)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]:,"\\ud800-019.eaNfI \n', max_size=60))
def test_pieces_of_json_are_judged_as_the_library_does(text: str) -> None:
    agree(with_header(text.encode("utf-8", "surrogatepass")))
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":' + text + "}"
    agree(with_header(('{"a":' + entry + "}").encode(), b"1"))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from((GOOD, PACKED_FILE)), st.floats(0, 1))
def test_a_file_that_shrinks_while_it_is_read_is_cut_off(good: bytes, kept: float) -> None:
    """Its size was asked for when it was opened."""
    left = good[: int(kept * (len(good) - 1))]
    said, tensors = ours(left, missing=len(good) - len(left))
    # What is behind the small tensors is no business of this reader.
    assert "cut off" in said or tensors


@pytest.mark.parametrize("n_tensors", [1, 100])
def test_what_shrinks_away_below_the_quant_states_is_found(n_tensors: int) -> None:
    names = [f"{n}.weight.quant_state.bitsandbytes__nf4" for n in range(n_tensors)]
    whole = safetensors_bytes(dict.fromkeys(names, ("U8", (50000,))))
    said, _ = ours(whole[:-1], missing=1)
    assert said == "cut off while it was read"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=SNIFF))
def test_first_bytes_are_named_in_one_short_line(head: bytes) -> None:
    said = sniff_weights(head)
    assert len(said) < 130
    assert said.isprintable()


VOCABULARY = (
    st.dictionaries(st.text(max_size=4), st.integers(-1, 9) | LEAF, max_size=5)
    | st.lists(st.tuples(st.text(max_size=3), st.floats(allow_nan=False)), max_size=4)
    | JSON
)
TOKENIZER = st.fixed_dictionaries(
    {},
    optional={
        "version": JSON,
        "model": JSON
        | st.fixed_dictionaries({}, optional={"vocab": VOCABULARY, "type": JSON, "merges": JSON}),
        "added_tokens": JSON,
    },
)


@settings(max_examples=300, deadline=None)
@given(TOKENIZER | JSON, st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255))))
def test_the_fast_reading_of_a_tokenizer_tells_what_json_tells(
    value: Any, escaped: bool, changes: list[tuple[float, int]]
) -> None:
    """Damaged ones too: what the fast parser skips it checks."""
    text = bytearray(json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))
    for place, byte in changes:
        text[int(place * (len(text) - 1))] = byte
    fast, plain = read_large(bytes(text)), _by_json(bytes(text))
    assert fast.problem == plain.problem
    assert told(fast.data) == told(plain.data)


def told(data: Any) -> tuple[object, ...]:
    """The facts that are made of it; NaN is equal to nothing, so texts are compared."""
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    kept = (type(model) is dict, bool(vocab), _largest(vocab))
    return (*kept, json.dumps(data.get("added_tokens"), sort_keys=True))
