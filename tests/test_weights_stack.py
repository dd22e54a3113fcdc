"""The scan of what is in memory, on real packed models and on small modules."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from app.checks.numerics import CHECKS
from app.facts.numerics import NumericsFacts, WeightFacts
from app.outcome import Fault, Finding
from app.probes.safetensors import read_checkpoint
from tests.stack_models import failing, load, plan_for

pytestmark = pytest.mark.stack


def finding(weights: WeightFacts) -> Finding:
    plan = plan_for("llama-nf4")
    return failing(CHECKS, NumericsFacts(weights, None, "not tried"), plan)[
        "numerics.weights_finite"
    ]


def tensor_of(model: Any, what: str) -> Any:
    """A tensor of the rehearsal model by what it is."""
    base = model.model
    packed = base.language_model.layers[0].mlp.up_proj.weight.quant_state
    return {
        "model.language_model.norm.weight": base.language_model.norm.weight,
        "model.language_model.layers.0.mlp.up_proj.weight.quant_state.state2.absmax":
            packed.state2.absmax,
        "model.language_model.layers.0.mlp.up_proj.weight.quant_state.offset": packed.offset,
        "model.vision_tower.timm_model.bn1.running_var":
            base.vision_tower.timm_model.bn1.running_var,
        "model.audio_tower.conformer.0.lconv1d.linear_start.weight":
            base.audio_tower.conformer[0].lconv1d.linear_start.weight,
    }[what]  # fmt: skip


@pytest.mark.parametrize("value", [inf, -inf, float("nan")])
@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.norm.weight",
        "model.language_model.layers.0.mlp.up_proj.weight.quant_state.state2.absmax",
        "model.language_model.layers.0.mlp.up_proj.weight.quant_state.offset",
        "model.vision_tower.timm_model.bn1.running_var",
        "model.audio_tower.conformer.0.lconv1d.linear_start.weight",
    ],
)
def test_one_value_that_is_no_number_is_found_by_name(
    gemma: tuple[Any, Any], name: str, value: float
) -> None:
    model, checkpoint = gemma
    import torch

    from app.engine.weights import scan

    tensor = tensor_of(model, name)
    flat = tensor.detach().reshape(-1)
    kept = flat[0].clone()
    with torch.no_grad():
        flat[0] = value
    try:
        facts = scan(model, checkpoint)
    finally:
        with torch.no_grad():
            flat[0] = kept
    assert [entry.name for entry in facts.not_finite] == [name]
    assert facts.not_finite[0].n_nan + facts.not_finite[0].n_inf == 1
    # The file's value is finite: the device, or what read it, is to blame.
    assert finding(facts).fault in (None, Fault.NUMERICS)
    assert scan(model, checkpoint).not_finite == ()


@pytest.fixture(scope="module")
def gemma() -> tuple[Any, Any]:
    plan = plan_for("gemma3n-nf4")
    assert plan.resolved is not None
    return load(plan)[0], read_checkpoint(plan.resolved.folder)


def test_the_scan_sees_every_floating_tensor_once(gemma: tuple[Any, Any]) -> None:
    model, _ = gemma
    from app.engine.weights import scan

    facts = scan(model)
    floating = [p for p in model.parameters() if p.is_floating_point()]
    packed = [p for p in model.parameters() if getattr(p, "quant_state", None) is not None]
    assert packed
    # Nested states have a floating absmax and an offset each; the outer absmax is bytes.
    assert facts.n_scanned >= len(floating) + 2 * len(packed)
    assert (facts.not_finite, facts.on_meta) == ((), ())
    assert facts.largest_magnitude is not None


def test_clamps_that_float16_cannot_hold_are_listed_and_not_judged(gemma: tuple[Any, Any]) -> None:
    model, _ = gemma
    from app.engine.weights import scan

    conformer = model.model.audio_tower.conformer[0].attention
    kept = conformer.gradient_clipping
    conformer._buffers["gradient_clipping"] = kept.half()
    try:
        facts = scan(model)
    finally:
        conformer._buffers["gradient_clipping"] = kept
    assert facts.not_judged == ("model.audio_tower.conformer.0.attention.gradient_clipping",)
    assert facts.not_finite == ()


@pytest.mark.parametrize(
    ("in_file", "fault"),
    [(1e5, Fault.PRECISION), (3.0, Fault.NUMERICS), (inf, Fault.DATA_INVALID)],
)
def test_an_inf_after_a_cast_is_judged_by_the_file(
    tmp_path: Path, in_file: float, fault: Fault
) -> None:
    """A bf16 weight above 65504 turns into inf silently in `.to(float16)`."""
    import torch
    from safetensors.torch import save_file

    from app.engine.weights import scan

    stored = torch.full((4, 4), in_file, dtype=torch.bfloat16)
    save_file({"weight": stored}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    model = torch.nn.Linear(4, 4, bias=False).half()
    with torch.no_grad():
        model.weight.copy_(stored if in_file != 3.0 else torch.full((4, 4), inf))
    facts = scan(model, read_checkpoint(tmp_path))
    found = finding(facts)
    assert (found.fault, "weight" in found.reason) == (fault, True)
    assert facts.not_finite[0].n_inf == 16


def test_checksums_see_any_one_byte() -> None:
    import torch

    from app.engine.weights import checksums

    for dtype, size in (
        (torch.float32, 8),
        (torch.bfloat16, 7),
        (torch.uint8, 13),
        (torch.int8, 1),
    ):
        module = torch.nn.Module()
        weight = torch.nn.Parameter(torch.zeros(size).to(dtype), requires_grad=False)
        module.register_parameter("weight", weight)
        before = checksums(module, frozenset())
        raw = weight.data.view(torch.uint8)
        for place in range(raw.numel()):
            raw[place] ^= 1
            assert checksums(module, frozenset()) != before
            raw[place] ^= 1
        assert checksums(module, frozenset()) == before


def table_sum(words: Any) -> int:
    from app.engine.weights import byte_sum

    return int(byte_sum(words))


@pytest.mark.parametrize("n_bytes", [1, 9, 8 * 16381 - 1, 8 * 16381, 8 * 16381 + 1, 500_003])
def test_a_sum_sees_each_bit_at_each_end_of_its_table(n_bytes: int) -> None:
    import torch

    raw = torch.arange(n_bytes, dtype=torch.int64).to(torch.uint8)
    before = table_sum(raw)
    for place in {0, n_bytes // 2, min(8 * 16381 - 1, n_bytes - 1), n_bytes - 1}:
        for bit in range(8):
            raw[place] ^= 1 << bit
            assert table_sum(raw) != before
            raw[place] ^= 1 << bit
    assert table_sum(raw) == before


@pytest.mark.parametrize("n_rows", [2, 64])
@pytest.mark.parametrize("width", [1, 64, 4096])
def test_a_sum_sees_exchanged_rows(n_rows: int, width: int) -> None:
    import torch

    rows = torch.randn(n_rows, width, generator=torch.Generator().manual_seed(0))
    before = table_sum(rows)
    for other in range(1, n_rows):
        rows[[0, other]] = rows[[other, 0]]
        assert table_sum(rows) != before
        rows[[0, other]] = rows[[other, 0]]
    assert table_sum(rows) == before


def test_a_sum_depends_on_no_thread_count_layout_or_place_in_memory() -> None:
    import torch

    table = torch.randn(700, 1000, generator=torch.Generator().manual_seed(0))
    before = table_sum(table)
    torch.set_num_threads(2)
    try:
        assert table_sum(table) == before
    finally:
        torch.set_num_threads(1)
    assert table_sum(table.T.contiguous().T) == before
    aside = torch.empty(table.numel() + 1)[1:]  # its bytes begin between two words
    assert table_sum(aside.copy_(table.reshape(-1))) == before


def test_what_is_skipped_by_identity_is_not_summed() -> None:
    import torch

    from app.engine.weights import checksums

    model = torch.nn.Linear(2, 2)
    assert set(checksums(model, frozenset({id(model.bias)}))) == {"weight"}


SIDES = [".nested_absmax", ".quant_map", ".nested_quant_map", "offset"]


def break_side(folder: Path, weight: str, side: str) -> None:
    """Puts a NaN where the file holds a part of one weight's quant state."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    if side == "offset":
        key = f"{weight}.quant_state.bitsandbytes__nf4"
        state = json.loads(bytes(tensors[key].tolist())) | {"nested_offset": float("nan")}
        tensors[key] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    else:
        tensors[f"{weight}{side}"].reshape(-1)[0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("side", SIDES)
def test_scales_that_are_broken_in_the_file_are_the_files_fault(tmp_path: Path, side: str) -> None:
    """transformers maps every side tensor onto its weight; else each node would be quarantined."""
    from app.engine.weights import scan

    plan = plan_for("llama-nf4")
    assert plan.resolved is not None
    folder = tmp_path / "model"
    shutil.copytree(plan.resolved.folder, folder)
    weight = "model.layers.0.mlp.up_proj.weight"
    break_side(folder, weight, side)
    plan = replace(plan, resolved=replace(plan.resolved, folder=folder),
                   request=replace(plan.request, base_model_id=str(folder)))  # fmt: skip
    facts = scan(load(plan)[0], read_checkpoint(folder))
    assert all(entry.name.startswith(weight) for entry in facts.not_finite)
    found = finding(facts)
    assert (found.fault, weight in found.reason) == (Fault.DATA_INVALID, True)


def test_a_side_tensor_is_told_from_its_weight() -> None:
    from app.engine.file_tensors import _split

    packed = frozenset({"a.weight"})
    assert _split("a.weight", packed) == ("a.weight", "")
    assert _split("a.weight.absmax", packed) == ("a.weight", ".absmax")
    state = "a.weight.quant_state.bitsandbytes__nf4"
    assert _split(state, packed) == ("a.weight", ".quant_state.bitsandbytes__nf4")
    assert _split("b.weight.absmax", packed) == ("b.weight.absmax", "")
