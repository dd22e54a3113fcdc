"""What this device unpacks and multiplies is bit for bit what NF4 says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from app.checks import cast, golden
from app.exits import ExitCode
from app.facts.golden import GoldenFacts
from tests.gpu.models import Bare
from tests.gpu.subject import Subject
from tests.gpu.verdicts import amiss, exits

pytestmark = pytest.mark.stack

# Of bitsandbytes' CUDA kernels; an odd side leaves half a byte, and a block that is not full.
BLOCKSIZES = (64, 128, 256, 512, 1024, 2048, 4096)
SHAPES = ((64, 64), (37, 129), (1, 4097), (512, 640))


def _right_on_a_cpu(shape: tuple[int, int], blocksize: int) -> bool:
    """bitsandbytes 0.50.2 unpacks rows of no whole blocks wrongly where a CPU knows bfloat16.

    An odd side takes another way there, and so does a block of 2048.
    """
    return shape[1] % blocksize == 0 or shape[1] % 2 == 1 or blocksize >= 2048


def prove(loaded: Bare) -> GoldenFacts:
    from app.engine import golden as engine

    return engine.prove(loaded.model, loaded.checkpoint, loaded.plan)


@pytest.mark.parametrize("loaded", ["gemma3n-nf4", "llama-nf4", "llama-bf16"], indirect=True)
def test_every_kind_of_layer_is_unpacked_bit_for_bit(loaded: Bare, told: list[str]) -> None:
    facts = prove(loaded)
    assert facts.reason == ""
    assert facts.unpacked
    assert facts.products
    assert amiss(golden.CHECKS, facts, loaded.plan) == {}
    worst = max(facts.products, key=lambda each: each.error / each.tolerance)
    told.append(
        f"NF4: {len(facts.unpacked)} kinds exact; worst product {worst.error:.2e} of "
        f"{worst.tolerance:.2e} ({worst.rows} rows, {worst.dtype}); {facts.seconds:.3f} s"
    )


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("blocksize", BLOCKSIZES)
def test_every_block_size_is_unpacked_bit_for_bit(
    blocksize: int, nested: bool, subject: Subject, loaded: Bare
) -> None:
    """Layers quantised here, beside those that a file has."""
    shapes = [
        each for each in SHAPES if subject.profile.needs_gpu or _right_on_a_cpu(each, blocksize)
    ]
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    device = subject.profile.device
    dtype = getattr(torch, subject.profile.compute_dtype)
    torch.manual_seed(blocksize)
    model = torch.nn.Module()
    for index, (rows, columns) in enumerate(shapes):
        layer = Linear4bit(columns, rows, bias=False, compute_dtype=dtype, quant_type="nf4")
        layer.weight = Params4bit(
            torch.randn(rows, columns, dtype=dtype) * 0.02,
            requires_grad=False,
            blocksize=blocksize,
            compress_statistics=nested,
            quant_type="nf4",
        )
        model.add_module(f"layer{index}", layer.to(device))
    from app.engine import golden as engine

    facts = engine.prove(model, None, loaded.plan)
    assert {(each.shape, each.blocksize) for each in facts.unpacked} == {
        (shape, blocksize) for shape in shapes
    }
    assert "numerics.nf4_exact" not in amiss(golden.CHECKS, facts, loaded.plan)


def _state(model: Any) -> Any:
    return model.model.layers[0].mlp.up_proj.weight.quant_state


@contextmanager
def changed(tensor: Any) -> Iterator[None]:
    """Its first value is another one, finite and near."""
    before = tensor.flatten()[0].clone()
    tensor.view(-1)[0] = before + 1 if not tensor.is_floating_point() else before * 1.01 + 1e-3
    try:
        yield
    finally:
        tensor.view(-1)[0] = before


SCALES: Mapping[str, Callable[[Any], Any]] = {
    "scales": lambda model: _state(model).absmax,
    "scales of scales": lambda model: _state(model).state2.absmax,
    "their table": lambda model: _state(model).state2.code,
    "their offset": lambda model: _state(model).offset,
}


@pytest.mark.parametrize("case", SCALES)
def test_scales_that_are_not_the_files_are_named(case: str, loaded: Bare) -> None:
    """As where a bit flips on the way to the device: finite, and no norm or loss tells."""
    with changed(SCALES[case](loaded.model)):
        facts = prove(loaded)
    found = exits(golden.CHECKS, facts, loaded.plan)
    assert found == {"numerics.scales_as_in_file": ExitCode.NUMERICS}
    assert any("layers.0.mlp.up_proj" in name for name in facts.changed)
    assert amiss(golden.CHECKS, prove(loaded), loaded.plan) == {}


def test_a_dequantisation_that_is_off_by_one_bit_is_named(
    loaded: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from bitsandbytes import functional

    usual = functional.dequantize_4bit

    def off(*arguments: Any, **options: Any) -> Any:
        weight = usual(*arguments, **options)
        weight.view(-1).view(torch.uint8)[0] ^= 1
        return weight

    monkeypatch.setattr(functional, "dequantize_4bit", off)
    facts = prove(loaded)
    found = exits(golden.CHECKS, facts, loaded.plan)
    assert found == {"numerics.nf4_exact": ExitCode.NUMERICS}
    assert any(each.n_different for each in facts.unpacked)


@pytest.mark.parametrize("loaded", ["gemma3n-nf4", "llama-bf16"], indirect=True)
def test_the_cast_of_the_file_loses_nothing_that_matters(loaded: Bare, told: list[str]) -> None:
    from app.engine import cast as engine

    facts = engine.measure(loaded.model, loaded.checkpoint, loaded.plan)
    assert facts.reason == ""
    assert facts.tensors or facts.n_exact
    assert amiss(cast.CHECKS, facts, loaded.plan) == {}
    told.append(f"cast: {facts.n_bytes} bytes read in {facts.seconds:.3f} s")
