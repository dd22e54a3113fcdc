"""What stands beside packed weights: sizes, tables and scales, each changed by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.facts.nf4 import NF4 as NF4_TABLE
from app.outcome import Status
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import (
    CONTENT,
    NF4,
    PACKED,
    floats,
    model_files,
    state_bytes,
    write_model,
)
from tests.test_checkpoint import failing, judge

W = "layer.weight"
STATE = f"{W}.quant_state.bitsandbytes__nf4"
NAN, INF = float("nan"), float("inf")
PLAIN_SCALES = {
    f"{W}": ("U8", (64, 1)),
    f"{W}.absmax": ("F32", (2,)),
    f"{W}.quant_map": ("F32", (16,)),
    STATE: ("U8", (160,)),
}
SINGLE = NF4 | {"bnb_4bit_use_double_quant": False}


def refused(folder: Path, tensors: Any, content: Any, quantization: Any = NF4) -> str:
    """Why the weight is refused, empty when it is not."""
    files = model_files(tensors, quantization=quantization, content=dict(CONTENT) | content)
    said = judge(read_checkpoint(write_model(folder, files)))
    finding = said["checkpoint.quantization"]
    if finding.status is Status.PASS:
        return ""
    assert failing(said)["quantization"] == ExitCode.DATAERR
    assert W in finding.reason
    return finding.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": [8, 32]}, "64 bytes are not the shape [8, 32]"),
        ({"shape": None}, "has the shape None"),
        ({"shape": [-8, -16]}, "has the shape [-8, -16]"),
        ({"shape": [True, 128]}, "has the shape [True, 128]"),
        ({"blocksize": 128}, "absmax has 2 entries, and needs 1"),
        ({"blocksize": 7}, "the blocksize 7"),
        ({"blocksize": 64.0}, "the blocksize 64.0"),
        ({"quant_type": "fp4"}, "says fp4"),
        ({"dtype": None}, "the dtype None"),
        ({"dtype": []}, "the dtype []"),
        ({"nested_blocksize": 0}, "the nested_blocksize 0"),
        ({"nested_dtype": "x"}, "the nested_dtype x"),
        ({"nested_offset": NAN}, "the nested_offset nan"),
        ({"nested_offset": INF}, "the nested_offset inf"),
        ({"nested_offset": 1e30}, "the nested_offset 1e+30"),
        ({"nested_offset": "a"}, "the nested_offset a"),
        ({"nested_offset": 0.07}, ""),
    ],
)
def test_a_changed_quant_state_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    raw = state_bytes(**change)
    assert len(raw) == 160
    reason = refused(tmp_path, PACKED, {STATE: raw})
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.parametrize("raw", [b"{garbage", b"[1]", b"\xff", b"[" * 160, b"null"])
def test_a_quant_state_that_is_no_object_is_refused(tmp_path: Path, raw: bytes) -> None:
    assert "no JSON" in refused(tmp_path, PACKED, {STATE: raw.ljust(160)})


@pytest.mark.parametrize(
    ("item", "raw", "said"),
    [
        ("quant_map", floats(*NF4_TABLE[:3], NAN, *NF4_TABLE[4:]), "not NF4's"),
        ("quant_map", floats(*[0.0] * 16), "not NF4's"),
        ("quant_map", floats(*(n / 8 - 1 for n in range(16))), "not NF4's"),
        ("nested_quant_map", floats(NAN, *[1.0] * 255), "no code table"),
        ("nested_quant_map", floats(*[1.0] * 255, NAN), "no code table"),
        ("nested_quant_map", floats(*[0.0] * 256), "no code table"),
        ("nested_quant_map", floats(*[2.0] * 256), "no code table"),
        ("nested_absmax", floats(NAN), "no scale"),
        ("nested_absmax", floats(INF), "no scale"),
        ("nested_absmax", floats(-1.0), "no scale"),
        ("nested_absmax", floats(1e30), "no scale"),
        ("nested_absmax", floats(0.0), "all zeros"),
        ("nested_absmax", floats(65504.0), ""),
    ],
)
def test_tables_and_nested_scales_are_read(
    tmp_path: Path, item: str, raw: bytes, said: str
) -> None:
    reason = refused(tmp_path, PACKED, {f"{W}.{item}": raw})
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.parametrize(
    ("dtype", "numbers", "said"),
    [
        ("F32", (0.1, 0.2), ""),
        ("F32", (0.0, 0.0), ""),  # a weight of zeros is one
        ("F32", (0.1, NAN), "no scale"),
        ("F32", (INF, 0.1), "no scale"),
        ("F32", (-INF, 0.1), "no scale"),
        ("F32", (0.1, -0.1), "no scale"),
        ("F32", (0.1,), "absmax has 1 entries, and needs 2"),
        ("F32", (0.1,) * 3, "absmax has 3 entries, and needs 2"),
        ("F16", (0.1, 0.1), "absmax is F16, and must be F32"),
    ],
)
def test_plain_scales_are_read_whole(
    tmp_path: Path, dtype: str, numbers: tuple[float, ...], said: str
) -> None:
    tensors = PLAIN_SCALES | {f"{W}.absmax": (dtype, (len(numbers),))}
    reason = refused(tmp_path, tensors, {f"{W}.absmax": floats(*numbers)}, SINGLE)
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.parametrize(("item", "entries"), [
    ("absmax", 3), ("nested_absmax", 2), ("quant_map", 15), ("nested_quant_map", 255),
])  # fmt: skip
def test_every_table_has_its_length(tmp_path: Path, item: str, entries: int) -> None:
    tensors = dict(PACKED) | {f"{W}.{item}": (PACKED[f"{W}.{item}"][0], (entries,))}
    assert f"its {item} has {entries} entries" in refused(tmp_path, tensors, {})


def layers(*shapes: list[int], pattern: str = "layer.{}.weight") -> tuple[Any, Any]:
    """Layers with the packed weight's tensors, each with a shape of its own in its state."""
    tensors: dict[str, Any] = {}
    content: dict[str, bytes] = {}
    for number, shape in enumerate(shapes):
        base = pattern.format(number)
        for name, value in PACKED.items():
            tensors[name.replace(W, base)] = value
        content |= {name.replace(W, base): raw for name, raw in CONTENT.items()}
        content[f"{base}.quant_state.bitsandbytes__nf4"] = state_bytes(shape=shape)
    return tensors, content


def test_a_layer_that_is_shaped_unlike_its_likes_is_named(tmp_path: Path) -> None:
    tensors, content = layers([8, 16], [16, 8], [8, 16])
    files = model_files(tensors, quantization=NF4, content=content)
    finding = judge(read_checkpoint(write_model(tmp_path, files)))["checkpoint.quantization"]
    assert finding.actual.startswith("layer.1.weight: its quant state has the shape [16, 8]")
    assert "layer.0" not in finding.actual


def test_the_number_in_fc1_and_fc2_is_no_layers(tmp_path: Path) -> None:
    tensors, content = layers([8, 16], [16, 8], pattern="layer.fc{}.weight")
    files = model_files(tensors, quantization=NF4, content=content)
    assert not failing(judge(read_checkpoint(write_model(tmp_path, files))))
