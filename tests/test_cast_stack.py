"""The cast as it is counted on real files, against torch's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checks.cast import CHECKS
from app.facts.cast import CastFacts, TensorCast
from app.facts.checkpoint import CheckpointFacts
from app.outcome import Fault, Finding, Status
from app.probes.safetensors import read_headers
from app.profiles import CPU, H100, Profile
from tests.broken_models import float16_model
from tests.fakes_preflight import safetensors_bytes
from tests.judge_models import V100_ON_CPU, plan_for
from tests.stack_models import adapted, load
from tests.stack_models import plan_for as rehearsal_of
from tests.tiny_models import Kind, tiny_model

pytestmark = pytest.mark.stack

WIDE = ("bfloat16", "float16", "float32")


def torch_of(name: str) -> Any:
    import torch

    return getattr(torch, name)


def written(folder: Path, tensors: Mapping[str, Any], file: str = "model.safetensors") -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def measured(folder: Path, model: Any = None, profile: Profile = V100_ON_CPU) -> CastFacts:
    import torch

    from app.engine.cast import measure

    module = torch.nn.Module() if model is None else model
    return measure(module, read_headers(folder), plan_for(folder, profile))


def finding(facts: CastFacts, folder: Path, profile: Profile = V100_ON_CPU) -> Finding:
    (check,) = CHECKS
    found = check.judge(facts, plan_for(folder, profile))
    return replace(found, fault=found.fault or check.fault) if found.status.blocks else found


@pytest.mark.parametrize("kind", ["llama-nf4", "gemma3-bf16", "qwen3moe-bf16"])
def test_every_tensor_of_the_file_is_found_in_the_model(kind: Kind) -> None:
    """Packed, packed on the fly, or fused with others into one; under PEFT's names too.

    First of all tests here: it imports Unsloth, which wants to come before transformers.
    """
    from app.engine.cast import measure

    plan = rehearsal_of(kind)
    assert plan.resolved is not None
    model, _ = load(plan) if kind == "qwen3moe-bf16" else adapted(plan)
    facts = measure(model, read_headers(plan.resolved.folder), plan)
    assert {each.target for each in facts.tensors} == {"float16"}
    assert [each.name for each in facts.tensors if not each.held] == []
    assert finding(facts, plan.resolved.folder, CPU).status is Status.PASS


def counts(entry: TensorCast) -> tuple[int, int, int, int]:
    return entry.n_overflow, entry.n_zero, entry.n_subnormal, entry.n_not_finite


def by_torch(values: Any, target: str) -> tuple[int, int, int, int]:
    """The same counts by casting, which is what the loader does."""
    import torch

    cast = values.to(torch_of(target))
    finite = torch.isfinite(values)
    tiny = torch.finfo(torch_of(target)).tiny
    small = (cast.double().abs() < tiny) & (cast != 0)
    return (
        int((finite & torch.isinf(cast)).sum()),
        int(((values != 0) & (cast == 0)).sum()),
        int(small.sum()),
        int((~finite).sum()),
    )


def by_us(values: Any, target: str) -> TensorCast:
    """One tensor's counts, without a file."""
    import numpy as np
    import torch

    from app.engine import cast
    from app.facts.checkpoint import TensorHeader

    name = str(values.dtype).removeprefix("torch.")
    file_name, kind = next((n, k) for n, k in cast._KINDS.items() if k.dtype == name)
    raw = values.view(torch.uint8).numpy().tobytes()
    header = TensorHeader("w", file_name, tuple(values.shape), len(raw), "f")
    pieces = [np.frombuffer(bytearray(raw), kind.bits) & kind.bits(kind.unsigned)]
    (found,) = cast._casts(header, pieces, "", {target: cast._ENDS[name, target]})
    return found


def every_16_bits(name: str) -> Any:
    import torch

    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch_of(name))


def of_bits(name: str, bits: list[int]) -> Any:
    """Floats with these bits, where the highest one is the sign."""
    import numpy as np
    import torch

    width = torch_of(name).itemsize
    number = np.array(bits, dtype=f"u{width}").view(f"i{width}")
    return torch.from_numpy(number).view(torch_of(name))


def test_every_bfloat16_becomes_in_float16_what_is_counted() -> None:
    """In small pieces too, so that no two errors make up for each other."""
    values = every_16_bits("bfloat16")
    whole = by_us(values, "float16")
    assert counts(whole) == by_torch(values, "float16")
    assert whole.largest == pytest.approx(3.3895314e38)
    for value in values.split(64):
        assert counts(by_us(value, "float16")) == by_torch(value, "float16")


@pytest.mark.parametrize(
    ("source", "target"),
    [(source, target) for source in ("float32", "float64") for target in WIDE if source != target],
)
def test_each_outcome_of_a_cast_ends_where_torchs_does(source: str, target: str) -> None:
    from app.engine.cast import _ENDS

    ends = _ENDS[source, target]
    sign = 1 << (8 * torch_of(source).itemsize - 1)
    for end in (ends.zero, ends.subnormal, ends.infinite):
        for bits in (end - 1, end, end + 1):
            values = of_bits(source, [bits, bits | sign])
            assert counts(by_us(values, target)) == by_torch(values, target), hex(bits)


@pytest.mark.parametrize(
    ("source", "target"),
    [(source, target) for source in ("float32", "float64") for target in WIDE if source != target],
)
@settings(max_examples=200)
@given(data=st.data())
def test_any_bits_become_what_is_counted(source: str, target: str, data: st.DataObject) -> None:
    width = torch_of(source).itemsize
    near = st.integers(0, 2 ** (8 * width) - 1) | st.floats(-1e5, 1e5, width=32).map(
        lambda value: int(of_value(source, value))
    )
    values = of_bits(source, data.draw(st.lists(near, min_size=1, max_size=20)))
    assert counts(by_us(values, target)) == by_torch(values, target)


def of_value(name: str, value: float) -> int:
    import numpy as np

    width = torch_of(name).itemsize
    return int(np.array(value, dtype=f"f{width}").view(f"u{width}"))


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", WIDE)
def test_pairs_that_are_not_read_harm_no_value(source: str, target: str) -> None:
    from app.engine.cast import _ENDS

    n_overflow, n_zero, *_ = by_torch(every_16_bits(source), target)
    assert ((source, target) in _ENDS) == bool(n_overflow or n_zero)


def test_tensors_of_all_forms_are_counted_to_their_last_value(tmp_path: Path) -> None:
    import torch

    long = torch.full((3, 100_001), 0.5, dtype=torch.bfloat16)  # several buffers
    long[-1, -1] = -1e5
    tensors = {
        "long": long,
        "empty": torch.empty(0, 4, dtype=torch.bfloat16),
        "scalar": torch.tensor(7e4, dtype=torch.float32),
        "zeros": torch.zeros(5, dtype=torch.float32),
        "half": torch.ones(3, dtype=torch.float16),
        "small": torch.ones(4).to(torch.float8_e4m3fn),
        "bytes": torch.ones(4, dtype=torch.uint8),
        "whole": torch.ones(4, dtype=torch.int64),
    }
    facts = measured(written(tmp_path, tensors))
    found = {each.name: each for each in facts.tensors}
    assert set(found) == {"long", "empty", "scalar", "zeros"}
    assert counts(found["long"]) == (1, 0, 0, 0)
    assert (found["long"].n, found["long"].largest) == (300_003, 99840.0)
    assert (found["empty"].n, counts(found["empty"])) == (0, (0, 0, 0, 0))
    assert (counts(found["scalar"]), found["scalar"].largest) == ((1, 0, 0, 0), 7e4)
    assert counts(found["zeros"]) == (0, 0, 0, 0)
    assert facts.n_exact == 1  # of the float16; float8 and integers are no part of it
    assert facts.n_bytes == long.nbytes + 4 + 20


def test_one_read_serves_both_targets_of_a_rehearsal(tmp_path: Path) -> None:
    import torch

    values = torch.tensor([1e5, 3.4e38, 1e-39, 1e-41, float("inf"), float("nan")])
    facts = measured(written(tmp_path, {"w": values}), profile=CPU)
    assert {each.target: counts(each) for each in facts.tensors} == {
        target: by_torch(values, target) for target in ("bfloat16", "float16")
    }
    assert [each.n_overflow for each in facts.tensors] == [1, 2]
    assert facts.n_bytes == values.nbytes


def test_data_may_begin_at_an_odd_byte(tmp_path: Path) -> None:
    import torch

    values = torch.tensor([1e5, 1.0, 1e-9], dtype=torch.bfloat16)
    raw = values.view(torch.uint8).numpy().tobytes()
    shapes = {"odd": ("U8", (3,)), "w": ("BF16", (3,))}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(shapes, {"w": raw}))
    (tmp_path / "config.json").write_text("{}")
    (header,) = (each for each in read_headers(tmp_path).tensors if each.name == "w")
    assert header.begin % 2
    (found,) = measured(tmp_path).tensors
    assert counts(found) == by_torch(values, "float16") == (1, 1, 0, 0)


def sharded(folder: Path) -> Path:
    import torch

    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name, key in zip(names, "ab", strict=True):
        written(folder, {key: torch.full((64, 64), 1e5, dtype=torch.bfloat16)}, name)
    index = {"metadata": {}, "weight_map": dict(zip("ab", names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_every_shard_is_looked_at(tmp_path: Path) -> None:
    assert {each.name: each.n_overflow for each in measured(sharded(tmp_path)).tensors} == {
        "a": 4096, "b": 4096,
    }  # fmt: skip


def broken_after_its_header(folder: Path, how: str) -> CastFacts:
    import torch

    from app.engine.cast import measure

    sharded(folder)
    checkpoint: CheckpointFacts = read_headers(folder)
    first = folder / "model-00001-of-00002.safetensors"
    if how == "gone":
        first.unlink()
    else:
        with first.open("r+b") as file:
            file.truncate(first.stat().st_size - 1)
    return measure(torch.nn.Module(), checkpoint, plan_for(folder, V100_ON_CPU))


@pytest.mark.parametrize(
    ("how", "why"), [("gone", "No such file or directory"), ("cut", "cut off while it was read")]
)
def test_a_file_that_broke_since_is_named_and_the_others_are_read(
    tmp_path: Path, how: str, why: str
) -> None:
    facts = broken_after_its_header(tmp_path, how)
    assert facts.unread == (f"model-00001-of-00002.safetensors: {why}",)
    assert [each.name for each in facts.tensors] == ["b"]
    found = finding(facts, tmp_path)
    assert (found.status, found.fault) == (Status.ERROR, Fault.READ_ERROR)


def test_pickled_weights_are_not_looked_at(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    facts = measured(tmp_path)
    assert (facts.tensors, finding(facts, tmp_path).status) == ((), Status.SKIP)


def test_nothing_is_read_where_the_dtypes_alone_are_enough(tmp_path: Path) -> None:
    import torch

    written(tmp_path, {"w": torch.full((8,), 3e38, dtype=torch.bfloat16)})
    facts = measured(tmp_path, profile=H100)
    assert (facts.tensors, facts.n_exact, facts.n_bytes) == ((), 1, 0)
    assert finding(facts, tmp_path, H100).status is Status.PASS


@pytest.mark.parametrize(
    ("held", "fault"), [("float16", Fault.PRECISION), ("float32", None), ("absent", None)]
)
def test_only_what_is_held_in_the_target_was_cast(
    tmp_path: Path, held: str, fault: Fault | None
) -> None:
    import torch

    written(tmp_path, {"norm.weight": torch.full((8,), 1e5, dtype=torch.bfloat16)})
    model = torch.nn.Module()
    if held != "absent":
        model.norm = torch.nn.LayerNorm(8, bias=False).to(torch_of(held))
    found = finding(measured(tmp_path, model), tmp_path)
    assert (found.fault, "norm.weight" in found.reason) == (fault, True)
    assert found.status is (Status.FAIL if fault else Status.PASS)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("through", ["float16", "bfloat16"])
def test_a_weight_that_was_packed_went_through_the_dtype_it_was_packed_from(
    tmp_path: Path, through: str, *, nested: bool
) -> None:
    """Packed from float16 it is broken, packed from bfloat16 it is sound."""
    import torch
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit, Params4bit

    stored = torch.full((64, 64), 1e5, dtype=torch.bfloat16)
    written(tmp_path, {"proj.weight": stored})
    layer = Linear4bit(64, 64, bias=False, quant_type="nf4")
    layer.weight = Params4bit(
        stored.to(torch_of(through)), requires_grad=False, quant_type="nf4",
        compress_statistics=nested,
    ).to("cpu")  # fmt: skip
    unpacked = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    assert bool(torch.isfinite(unpacked).all()) == (through == "bfloat16")
    model = torch.nn.Module()
    model.proj = layer
    found = finding(measured(tmp_path, model), tmp_path)
    assert found.fault is (Fault.PRECISION if through == "float16" else None)


def with_one_value(kind: Kind, folder: Path, name: str, value: float) -> Path:
    """A copy of a tiny model whose file holds one other value."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model(kind), folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[0] = value
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_a_real_models_overflow_is_caught_by_name(tmp_path: Path) -> None:
    """As Unsloth's CUDA path leaves it on a V100; the sound one passes."""
    healthy = tiny_model("gemma3n-nf4")
    found = finding(measured(healthy, float16_model(healthy)), healthy)
    assert (found.status, found.reason) == (Status.PASS, "no value is beyond float16")
    name = "model.language_model.embed_tokens.weight"
    folder = with_one_value("gemma3n-nf4", tmp_path / "m", name, 1e5)
    facts = measured(folder, float16_model(folder))
    found = finding(facts, folder)
    assert (found.status, found.fault) == (Status.FAIL, Fault.PRECISION)
    assert found.reason == f"the cast to float16 made 1 tensor infinite: {name}"
    # Scales and code tables of packed weights stay as they are.
    assert not [each.name for each in facts.tensors if "absmax" in each.name or "map" in each.name]
