"""The reference for NF4 against bitsandbytes on a CPU, and its table against the normal curve."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.stack
DTYPES = ("float32", "float16", "bfloat16")


def unpacked(n: int, dtype: str, blocksize: int, scale: float, *, nested: bool) -> tuple[Any, Any]:
    """Bits of bitsandbytes and of the reference, for seeded weights in one row.

    In one row because the kernel for CPUs with bfloat16 instructions takes wrong scales for others
    (see `test_golden_stack`). Eagerly, because odd sizes go through code that is compiled.
    """
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    from app.engine import golden, nf4
    from app.engine.nf4_layers import Layer

    generator = torch.Generator().manual_seed(n)
    weight = (torch.randn(1, n, generator=generator) * scale).to(getattr(torch, dtype))
    with torch.compiler.set_stance("force_eager"):
        packed, state = quantize_4bit(
            weight, blocksize=blocksize, compress_statistics=nested, quant_type="nf4"
        )
        values = dequantize_4bit(packed.reshape(-1, 1), state)
    layer = Layer("w", torch.nn.Module(), packed.reshape(-1, 1), state)
    reference = golden._reference(layer, 0, n)
    return golden._bits(values.reshape(-1)), nf4.bits(reference, dtype)


@given(
    n=st.integers(2, 3000),
    dtype=st.sampled_from(DTYPES),
    blocksize=st.sampled_from([2**power for power in range(5, 13)]),
    power=st.integers(-40, 4),
    nested=st.booleans(),
)
@settings(max_examples=150)
def test_the_reference_has_the_bits_of_bitsandbytes(
    n: int, dtype: str, blocksize: int, power: int, nested: bool
) -> None:
    from app.engine import nf4

    actual, expected = unpacked(n, dtype, blocksize, 10.0**power, nested=nested)
    assert nf4.differing(actual, expected, dtype).size == 0


def test_the_table_is_quantiles_of_the_normal_distribution() -> None:
    """Eight positive and seven negative ones, evenly spaced in probability, and zero (QLoRA)."""
    from app.engine.nf4 import VALUES

    end = 0.9677083  # the outermost probability, of bitsandbytes' create_normal_map
    curve = NormalDist().inv_cdf
    above = [curve(end + (0.5 - end) * place / 8) for place in range(8)]
    below = [-curve(end + (0.5 - end) * place / 7) for place in range(7)]
    derived = sorted([*above, 0.0, *below])
    assert [value / derived[-1] for value in derived] == pytest.approx(VALUES.tolist(), abs=2e-7)


def test_a_fused_multiply_add_of_the_scales_is_another_result() -> None:
    """Exact in float64 and rounded once: what a device that contracts the two would compute."""
    import numpy as np

    from app.engine import nf4

    drawn = np.random.default_rng(0)
    codes = drawn.integers(0, 256, 4096, np.uint8)
    table = np.linspace(-1, 1, 256, dtype=np.float32)
    outer = drawn.random(16, np.float32)
    twice = nf4.scales(codes, table, outer, 0.7, blocksize=256, first=0)
    wide = table[codes].astype(np.float64) * np.repeat(outer, 256) + np.float32(0.7)
    assert 100 < np.count_nonzero(wide.astype(np.float32) != twice) < 4096
    assert np.allclose(wide, twice, rtol=1e-5, atol=1e-6)


def test_scales_from_the_middle_are_those_of_the_whole() -> None:
    import numpy as np

    from app.engine import nf4

    codes = np.arange(256, dtype=np.uint8).repeat(3)
    table = np.linspace(-1, 1, 256, dtype=np.float32)
    outer = np.array([1, 2, 3], np.float32)
    whole = nf4.scales(codes, table, outer, 0.5, blocksize=256, first=0)
    part = nf4.scales(codes[100:600], table, outer, 0.5, blocksize=256, first=100)
    assert (whole[100:600] == part).all()


def all_numbers() -> NDArray[Any]:
    """Every float32 whose low half is one of the hard cases of rounding to bfloat16."""
    import numpy as np

    high = np.arange(2**16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high[:, None] | low).reshape(-1).view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_torchs_own_for_every_number(dtype: str) -> None:
    import numpy as np
    import torch

    from app.engine import golden, nf4

    values = all_numbers()
    theirs = golden._bits(torch.from_numpy(values).to(getattr(torch, dtype)))
    ours = nf4.bits(values, dtype)
    number = ~np.isnan(values)
    assert (ours[number] == theirs[number]).all()
    assert np.isnan([nf4.number(int(each), dtype) for each in ours[~number]]).all()


@pytest.mark.parametrize(
    ("dtype", "actual", "expected", "equal"),
    [
        ("bfloat16", 0x3F80, 0x3F80, True),
        ("bfloat16", 0x3F80, 0x3F81, False),  # the last bit
        ("bfloat16", 0x0000, 0x8000, True),  # zeros
        ("bfloat16", 0xFFC1, 0x7FC0, True),  # NaN of any sign and payload
        ("bfloat16", 0x7F80, 0x7FC0, False),  # infinity is no NaN
        ("bfloat16", 0x7F80, 0xFF80, False),
        ("bfloat16", 0x8000, 0x007F, True),  # flushed
        ("bfloat16", 0x007F, 0x0000, False),  # made out of nothing
        ("bfloat16", 0x0000, 0x0081, False),  # a normal number lost
        ("float32", 0x00000000, 0x007FFFFF, True),
        ("float32", 0x00000000, 0x00800001, False),
        ("float16", 0x0000, 0x0001, False),  # its subnormal numbers are normal in float32
        ("float16", 0x7C00, 0x7BFF, False),
        ("float16", 0xFE00, 0x7E01, True),
    ],
)
def test_what_counts_as_different(dtype: str, actual: int, expected: int, equal: bool) -> None:
    import numpy as np

    from app.engine import nf4

    bits = np.uint32 if dtype == "float32" else np.uint16
    found = nf4.differing(np.array([actual], bits), np.array([expected], bits), dtype)
    assert (found.size == 0) == equal
