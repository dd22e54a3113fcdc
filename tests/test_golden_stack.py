"""The NF4 proof on real tiny models and on single layers, healthy and broken on purpose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from app.checks.golden import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.checkpoint import CheckpointFacts
from app.facts.golden import GoldenFacts, Product, Unpacked
from app.outcome import Status
from app.probes.safetensors import read_checkpoint
from app.profiles import V100
from tests.broken_models import float16_model
from tests.stack_models import adapted, failing, load, plan_for
from tests.tiny_models import Kind, tiny_model

if TYPE_CHECKING:
    import torch

    from app.engine.nf4_layers import Layer

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parent.parent
PLAN = plan_for("gemma3n-nf4")
GPU = replace(PLAN, profile=V100)  # no evidence has been committed for it
NAME = "model.language_model.layers.1.mlp.up_proj.weight"  # not the first of its kind


@pytest.fixture(scope="module")
def gemma() -> tuple[Any, CheckpointFacts]:
    return adapted(PLAN)[0], read_checkpoint(tiny_model("gemma3n-nf4"))


def prove(model: Any, checkpoint: CheckpointFacts | None = None) -> GoldenFacts:
    from app.engine import golden

    return golden.prove(model, checkpoint, PLAN)


def caught(facts: GoldenFacts, plan: Any = PLAN) -> dict[str, ExitCode | Status]:
    """Exit codes of the checks that fail, and the status of those that do less."""
    faults = {check.id: check.fault for check in CHECKS}
    return {
        name: exit_code(each.fault or faults[name]) if each.status is Status.FAIL else each.status
        for name, each in failing(CHECKS, facts, plan).items()
    }


@contextmanager
def put(holder: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, kept)


def test_a_healthy_model_is_proven_with_every_scale(gemma: tuple[Any, CheckpointFacts]) -> None:
    from app.engine.nf4_layers import layers

    model, checkpoint = gemma
    facts = prove(model, checkpoint)
    assert caught(facts) == {}
    assert sum(each.n_layers for each in facts.unpacked) == len(list(layers(model))) == 47
    assert len({(each.shape, each.dtype) for each in facts.unpacked}) == len(facts.unpacked) == 5
    assert all(each.n_compared == each.shape[0] * each.shape[1] for each in facts.unpacked)
    assert [(each.rows, each.of) for each in facts.products] == [
        *((1, "output"), (64, "output"), (64, "input gradient"))
    ] * 5
    assert facts.n_scales == 5 * 47  # absmax, its own, two tables, offset
    assert {each.by for each in facts.unpacked} == {"bitsandbytes"}  # a GPU's has Unsloth's too


def test_the_adapter_does_not_matter(gemma: tuple[Any, CheckpointFacts]) -> None:
    model, checkpoint = gemma
    alone, with_adapter = prove(load(PLAN)[0], checkpoint), prove(model, checkpoint)
    assert replace(alone, seconds=0) == replace(with_adapter, seconds=0)


def test_nothing_is_changed_or_drawn(gemma: tuple[Any, CheckpointFacts]) -> None:
    from app.engine.preserve import condition, differing
    from app.engine.weights import digest

    model, checkpoint = gemma
    trained = [each for each in model.parameters() if each.requires_grad]
    before, weights = condition(model, trained), digest(model)
    prove(model, checkpoint)
    assert (differing(before, condition(model, trained)), digest(model)) == ((), weights)


@pytest.mark.parametrize(
    "kind", ["llama-nf4", "qwen-nf4", "gemma3-nf4", "phi3-nf4", "gemma3n-bf16", "qwen3moe-bf16"]
)
def test_other_families_are_proven_without_special_cases(kind: Kind) -> None:
    plan = plan_for(kind)
    checkpoint = read_checkpoint(tiny_model(kind))
    facts = prove(load(plan)[0], checkpoint)
    on_load = {} if checkpoint.packed else {"numerics.scales_as_in_file": Status.SKIP}
    assert caught(facts, plan) == on_load
    assert facts.unpacked
    assert facts.products


def test_a_model_that_is_not_packed_is_skipped_with_the_reason() -> None:
    plan = plan_for("llama-bf16", load_in_4bit=False)
    facts = prove(load(plan)[0], read_checkpoint(tiny_model("llama-bf16")))
    assert facts.reason == "no weight of the model is packed as NF4"
    assert set(caught(facts, plan).values()) == {Status.SKIP}


def test_a_v100s_float16_is_proven(gemma: tuple[Any, CheckpointFacts]) -> None:
    facts = prove(float16_model(tiny_model("gemma3n-nf4")), gemma[1])
    assert caught(facts, GPU) == {}
    assert {each.dtype for each in facts.unpacked} == {"float16"}
    assert {each.dtype for each in facts.products} == {"float16"}
    assert max(each.error for each in facts.products) < 2.0**-11


# Scales in memory that are not the file's.


def weight_of(model: Any) -> Any:
    return model.get_base_model().get_parameter(NAME.replace(".weight", ".base_layer.weight"))


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("absmax", lambda tensor: tensor.bitwise_xor(1)),
        ("absmax", lambda tensor: tensor.flip(0)),
        ("state2.absmax", lambda tensor: tensor * 1.000001),
        ("state2.absmax", lambda tensor: tensor * float("nan")),
        ("state2.code", lambda tensor: tensor.flip(0)),
        ("code", lambda tensor: tensor.flip(0)),
        ("offset", lambda tensor: tensor * 1.000001),
        ("offset", lambda tensor: tensor * float("nan")),
    ],
)
def test_a_scale_that_is_not_the_files_is_named(
    gemma: tuple[Any, CheckpointFacts],
    part: str,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model, checkpoint = gemma
    *inner, field = part.split(".")
    holder = weight_of(model).quant_state
    holder = getattr(holder, inner[0]) if inner else holder
    with put(holder, field, change(getattr(holder, field))):
        facts = prove(model, checkpoint)
    assert facts.changed == (f"{NAME}.quant_state.{part}",)
    assert caught(facts) == {"numerics.scales_as_in_file": ExitCode.NUMERICS}
    assert caught(facts, GPU) == {"numerics.scales_as_in_file": ExitCode.NUMERICS}
    assert prove(model, checkpoint).changed == ()


def test_one_flipped_bit_of_one_scale_is_seen(gemma: tuple[Any, CheckpointFacts]) -> None:
    import torch

    model, checkpoint = gemma
    for tensor in (weight_of(model).absmax, weight_of(model).nested_absmax):
        raw = tensor.view(-1).view(torch.uint8)
        raw[-1] ^= 1
        try:
            assert len(prove(model, checkpoint).changed) == 1
        finally:
            raw[-1] ^= 1


def test_an_offset_that_is_a_plain_number_is_compared(
    gemma: tuple[Any, CheckpointFacts],
) -> None:
    model, checkpoint = gemma
    state = weight_of(model).quant_state
    with put(state, "offset", state.offset.item()):
        assert prove(model, checkpoint).changed == ()
    with put(state, "offset", state.offset.item() * 1.001):
        assert prove(model, checkpoint).changed == (f"{NAME}.quant_state.offset",)


# One layer, whole or large, and what unpacks it wrongly.


def linear(n: int = 64, k: int = 128, *, dtype: str = "bfloat16", **options: Any) -> Any:
    """A packed Linear of seeded weights."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    module = Linear4bit(k, n, bias=False, compute_dtype=kind, quant_type="nf4")
    weights = (torch.randn(n, k) * 0.02).to(kind)
    module.weight = Params4bit(weights, quant_type="nf4", module=module, **options)
    return module.to("cpu")


def only(module: Any) -> Layer:
    from app.engine.nf4_layers import layers

    (found,) = layers(module)
    return found


@cache
def layer() -> Layer:
    return only(linear())


def compared(unpack: Callable[..., Any], of: Layer | None = None) -> Unpacked:
    from app.engine import golden

    return golden.compare(of or layer(), "bitsandbytes", unpack)


def right(packed: Any, state: Any) -> Any:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(packed, state)


def swapped_table(packed: Any, state: Any) -> Any:
    """FP4's table, where a library mixes the two up."""
    import copy

    other = copy.copy(state)
    other.quant_type = "fp4"
    return right(packed, other)


def one_unit_off(packed: Any, state: Any) -> Any:
    import torch

    found = right(packed, state)
    found.view(torch.int16)[3, 5] += 1
    return found


def fused_scales(packed: Any, state: Any) -> Any:
    """Scales as a device computes them that contracts their product and sum into one rounding."""
    import copy

    inner = state.state2
    outer = inner.absmax.double().repeat_interleave(inner.blocksize)[: state.absmax.numel()]
    exact = inner.code.double()[state.absmax.long()] * outer + state.offset.double()
    other = copy.copy(state)
    other.absmax, other.nested, other.state2 = exact.float(), False, None
    return right(packed, other)


def swapped_halves(packed: Any, state: Any) -> Any:
    return right((packed << 4) | (packed >> 4), state)


def late_scales(packed: Any, state: Any) -> Any:
    import copy

    other = copy.copy(state)
    other.absmax = state.absmax.roll(1)
    return right(packed, other)


@pytest.mark.parametrize(
    "unpack", [swapped_table, one_unit_off, fused_scales, swapped_halves, late_scales]
)
def test_a_wrong_dequantisation_is_caught(unpack: Callable[..., Any]) -> None:
    of = only(linear(dtype="float32")) if unpack is fused_scales else layer()
    facts = compared(unpack, of)
    assert (facts.n_compared, facts.n_different > 0) == (64 * 128, True)
    assert facts.first.startswith("value ")
    for plan in (PLAN, GPU):
        assert caught(GoldenFacts(unpacked=(facts,), n_scales=1), plan)["numerics.nf4_exact"] == 80


def test_a_wrong_dequantisation_of_unsloths_is_told_as_its_own() -> None:
    from app.engine import golden

    facts = GoldenFacts((golden.compare(layer(), "unsloth", one_unit_off),), n_scales=1)
    assert caught(facts, GPU)["numerics.nf4_exact"] is ExitCode.NUMERICS
    found = failing(CHECKS, facts, GPU)["numerics.nf4_exact"]
    assert found.reason.startswith("unsloth unpacks packed weights wrongly")


def test_the_first_difference_is_told() -> None:
    facts = compared(one_unit_off)
    assert facts.n_different == 1
    value = float(right(layer().packed, layer().state)[3, 5])
    assert facts.first.startswith(f"value {3 * 128 + 5} must be {value!r} and is ")


def refuses(packed: Any, state: Any) -> Any:
    del packed, state
    raise NotImplementedError("no kernel\nfor this")


@pytest.mark.parametrize(
    ("unpack", "problem"),
    [
        (refuses, r"NotImplementedError: no kernel\u000afor this"),
        (lambda packed, state: right(packed, state).float(), "8192 values of float32 came out"),
        (lambda packed, state: right(packed, state)[1:], "8064 values of bfloat16 came out"),
    ],
)
def test_what_cannot_be_compared_fails_with_its_reason(
    unpack: Callable[..., Any], problem: str
) -> None:
    facts = compared(unpack)
    assert (facts.n_compared, facts.problem) == (0, problem)
    assert caught(GoldenFacts((facts,), n_scales=1))["numerics.nf4_exact"] is ExitCode.NUMERICS


def test_what_the_device_says_goes_on() -> None:
    import torch

    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: lost")):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match="CUDA"):
            compared(fail)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_layers_of_every_packing_are_proven(dtype: str, nested: bool) -> None:
    import torch

    for options in ({"blocksize": 128}, {"quant_storage": torch.bfloat16}):
        facts = prove(linear(dtype=dtype, compress_statistics=nested, **options))
        (kind,) = facts.unpacked
        assert caught(facts) == {"numerics.scales_as_in_file": Status.SKIP}
        assert (kind.dtype, kind.nested_blocksize) == (dtype, 256 if nested else None)


def test_fused_experts_are_unpacked_and_not_multiplied() -> None:
    import torch
    from bitsandbytes.nn import Params4bit

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            weights = torch.randn(4, 64, 128, dtype=torch.bfloat16)
            self.gate_up_proj = Params4bit(weights, quant_type="nf4").to("cpu")

    facts = prove(Experts())
    (kind,) = facts.unpacked
    assert (kind.name, kind.shape, kind.n_compared) == ("gate_up_proj", (4, 64, 128), 4 * 64 * 128)
    assert (kind.n_different, facts.products) == (0, ())


def test_rows_that_are_no_whole_blocks_are_unpacked_wrongly_on_some_cpus_and_that_is_named() -> (
    None
):
    """A real fault: bitsandbytes 0.50.2 takes other rows' scales on CPUs with AVX512-BF16."""
    from bitsandbytes.functional import has_avx512bf16

    facts = prove(linear(64, 96))
    wrong = caught(facts).get("numerics.nf4_exact") is ExitCode.NUMERICS
    assert wrong == bool(has_avx512bf16())


def test_tied_weights_are_one_and_those_on_meta_none() -> None:
    import torch
    from bitsandbytes.nn import Linear4bit

    tied: Any = torch.nn.Module()
    tied.one, tied.two = linear(), linear()
    tied.two.weight = tied.one.weight
    with torch.device("meta"):
        hollow = Linear4bit(64, 64, quant_type="nf4")
    hollow.weight.quant_state = tied.one.weight.quant_state
    tied.three = hollow
    facts = prove(tied)
    assert [each.n_layers for each in facts.unpacked] == [1]
    assert prove(torch.nn.Module()).reason == prove(hollow).reason != ""


def test_of_a_large_layer_both_ends_and_places_between_are_compared() -> None:
    of = only(linear(1040, 1088))
    facts = compared(right, of)
    assert (facts.n_compared, facts.n_different) == (16 * 2**16, 0)
    for place in (0, 2**16 - 1, 1040 * 1088 - 1):

        def wrong(packed: Any, state: Any, place: int = place) -> Any:
            found = right(packed, state)
            found.view(-1)[place] += 1
            return found

        found = compared(wrong, of)
        assert (found.n_different, f"value {place} " in found.first) == (1, True)


@pytest.mark.parametrize("blocksize", [32, 64, 4096])
@pytest.mark.parametrize("beyond", [1, 31, 64, 65537, 2**22 + 3])
def test_pieces_start_with_a_block_and_count_no_value_twice(beyond: int, blocksize: int) -> None:
    from app.engine import golden

    n = 2**20 + beyond
    pieces = golden._pieces(n, blocksize)
    assert (pieces[0][0], pieces[-1][1], len(pieces)) == (0, n, 16)
    assert all(start % blocksize == 0 for start, _ in pieces)
    assert all(before <= start for (_, before), (start, _) in pairwise(pieces))
    assert 2**20 <= sum(stop - start for start, stop in pieces) < 2**20 + blocksize
    assert golden._pieces(2**20, blocksize) == [(0, 2**20)]


# Products.


def multiplied(multiply: Callable[..., Any], dtype: str = "bfloat16") -> list[Product]:
    """The products of the forward pass alone."""
    from app.engine.nf4_products import products

    found = products(only(linear(dtype=dtype)), PLAN, multiply)
    return [each for each in found if each.of == "output"]


@pytest.mark.parametrize("share", [0, 0.5, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_product_off_by_more_than_its_tolerance_is_judged_by_evidence(
    dtype: str, share: float
) -> None:
    """A relative error of a share of what is allowed, on top of the kernel's own."""
    from app.engine import nf4_products

    def off(inputs: Any, of: Layer) -> Any:
        allowed = nf4_products.tolerance(inputs.dtype, len(inputs), of.shape[1])
        exact = nf4_products.multiplied(inputs, of).double()
        return exact * (1 + share * allowed)

    facts = GoldenFacts(products=tuple(multiplied(off, dtype)), n_scales=1)
    assert {each.rows for each in facts.products} == {1, 64}
    if share < 1:
        assert caught(facts) == caught(facts, GPU) == {}
        return
    assert all(each.error > each.tolerance for each in facts.products)
    assert caught(facts) == {"numerics.nf4_products": ExitCode.NUMERICS}
    assert caught(facts, GPU) == {"numerics.nf4_products": Status.WARN}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("by", [1.0, 1.5, -1.0])
def test_a_wrong_backward_pass_is_named_though_the_forward_pass_is_right(
    dtype: str, by: float
) -> None:
    from app.engine import nf4_products

    def off(inputs: Any, of: Layer, back: Any) -> Any:
        return by * nf4_products.gradient(inputs, of, back)

    layer = only(linear(dtype=dtype))
    found = tuple(nf4_products.products(layer, PLAN, differentiate=off))
    facts = GoldenFacts(products=found, n_scales=1)
    if by == 1:
        assert caught(facts) == {}
        return
    assert [each.of for each in found if each.error > each.tolerance] == ["input gradient"]
    assert caught(facts) == {"numerics.nf4_products": ExitCode.NUMERICS}


@pytest.mark.parametrize(
    ("dtype", "coarser"), [("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16")]
)
def test_a_product_in_a_coarser_dtype_is_too_far(dtype: str, coarser: str) -> None:
    """What a device without units for the dtype, or a library that saves time, would compute."""
    import torch

    kind = getattr(torch, coarser)

    def rough(inputs: Any, of: Layer) -> Any:
        weight = right(of.packed, of.state).to(kind).float()
        return (inputs.to(kind).float() @ weight.T).to(kind)

    assert all(each.error > each.tolerance for each in multiplied(rough, dtype))


@pytest.mark.parametrize(
    "multiply",
    [
        lambda inputs, of: inputs.new_full((len(inputs), of.shape[0]), float("nan")),
        lambda inputs, of: inputs.new_full((len(inputs), of.shape[0]), float("inf")),
        refuses,
    ],
)
def test_a_product_that_is_no_number_or_is_refused_fails(multiply: Callable[..., Any]) -> None:
    facts = GoldenFacts(products=tuple(multiplied(multiply)), n_scales=1)
    for plan in (PLAN, GPU):
        assert caught(facts, plan) == {"numerics.nf4_products": ExitCode.NUMERICS}


def test_a_scale_that_is_no_number_makes_products_that_are_none() -> None:
    module = linear(compress_statistics=False)
    module.weight.quant_state.absmax[1] = float("nan")
    facts = prove(module)
    assert caught(facts)["numerics.nf4_products"] is ExitCode.NUMERICS
    assert "numerics.nf4_exact" not in caught(facts)  # it is unpacked as the reference does


def test_a_weight_of_zeros_has_exact_products() -> None:
    import torch
    from bitsandbytes.nn import Params4bit

    module = linear()
    zeros = torch.zeros(64, 128, dtype=torch.bfloat16)
    module.weight = Params4bit(zeros, quant_type="nf4", module=module).to("cpu")
    facts = prove(module)
    assert [each.error for each in facts.products] == [0, 0, 0]


def test_nested_scales_in_other_blocks_are_refused_by_the_product_and_named() -> None:
    module = linear()
    state = module.weight.quant_state
    state.state2.blocksize = 128
    state.state2.absmax = state.state2.absmax.repeat(2)
    facts = prove(module)
    assert caught(facts)["numerics.nf4_products"] is ExitCode.NUMERICS
    assert facts.products[0].problem.startswith("NotImplementedError: nested quantization")


def test_a_bitsandbytes_that_cannot_be_imported_is_left_to_the_stage_stack() -> None:
    """The worker's stages stand without it: `stack.packages` says what is wrong."""
    command = "import sys; sys.modules['bitsandbytes'] = None; import app.work"
    subprocess.run([sys.executable, "-c", command], cwd=ROOT, check=True, timeout=120)


def test_unsloths_dequantisation_is_compared_where_it_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule only: its kernels are for a GPU, where `tests/gpu` runs them."""
    import torch

    from app.engine import golden

    utils = SimpleNamespace(fast_dequantize=right)
    monkeypatch.setitem(sys.modules, "unsloth.kernels.utils", utils)

    def asked(dtype: torch.dtype, shape: tuple[int, ...], *, is_cuda: bool) -> list[str]:
        of: Any = SimpleNamespace(packed=SimpleNamespace(dtype=dtype, is_cuda=is_cuda), shape=shape)
        return [by for by, _ in golden.unpackers(of)]

    assert asked(torch.uint8, (2, 2), is_cuda=True) == ["bitsandbytes", "unsloth"]
    assert asked(torch.uint8, (2, 2), is_cuda=False) == ["bitsandbytes"]
    assert asked(torch.bfloat16, (2, 2), is_cuda=True) == ["bitsandbytes"]
    assert asked(torch.uint8, (2, 2, 2), is_cuda=True) == ["bitsandbytes"]
