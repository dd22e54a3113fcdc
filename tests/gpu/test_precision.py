"""A type that this card must not compute in is found wherever one tensor has it: exit 76."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from app.checks import precision
from app.exits import ExitCode
from app.facts.census import Census
from tests.gpu.models import Bare, adapted, bare
from tests.gpu.subject import Subject
from tests.gpu.verdicts import amiss, exits

pytestmark = pytest.mark.stack


def census(loaded: Bare) -> Census:
    from app.engine import census as engine

    return engine.take(loaded.model, loaded.checkpoint)


def _layer(model: Any) -> Any:
    from bitsandbytes.nn import Linear4bit

    return next(module for module in model.modules() if isinstance(module, Linear4bit))


def _compute_dtype(model: Any) -> tuple[Any, str]:
    return _layer(model), "compute_dtype"


def _quant_state(model: Any) -> tuple[Any, str]:
    return _layer(model).weight.quant_state, "dtype"


def _norm(model: Any) -> tuple[Any, str]:
    norms = (each for each in model.modules() if type(each).__name__.endswith("RMSNorm"))
    return next(each for each in norms if getattr(each, "weight", None) is not None), "weight"


def _buffer(model: Any) -> tuple[Any, str]:
    # Gemma has one of these for each kind of attention.
    found = ((each, name) for each in model.modules() for name in each._buffers)
    return next((each, name) for each, name in found if name.endswith("inv_freq"))


@contextmanager
def of_type(holder: Any, name: str, dtype: Any) -> Iterator[None]:
    """One value as another type, for the time of the block."""
    import torch

    before = getattr(holder, name)
    if isinstance(before, torch.nn.Parameter):
        setattr(holder, name, torch.nn.Parameter(before.to(dtype), requires_grad=False))
    else:
        setattr(holder, name, before.to(dtype) if isinstance(before, torch.Tensor) else dtype)
    try:
        yield
    finally:
        setattr(holder, name, before)


# What is of the wrong type, and the rule that names it.
WRONG: Mapping[str, tuple[Callable[[Any], tuple[Any, str]], str]] = {
    "a layer's compute dtype": (_compute_dtype, "precision.quant_dtypes"),
    "what a layer unpacks to": (_quant_state, "precision.quant_dtypes"),
    "a norm": (_norm, "precision.forbidden_dtypes"),
    "a buffer": (_buffer, "precision.forbidden_dtypes"),
}


@pytest.mark.parametrize("loaded", ["llama-nf4", "llama-bf16", "gemma3n-nf4"], indirect=True)
class TestTypes:
    """Packed in the file, packed here on the device, and the product's own family."""

    def test_a_model_in_the_profiles_types_passes(self, loaded: Bare) -> None:
        assert amiss(precision.CHECKS, census(loaded), loaded.plan) == {}

    @pytest.mark.parametrize("case", WRONG)
    def test_one_value_of_the_other_16_bit_type_is_found(
        self, loaded: Bare, subject: Subject, case: str
    ) -> None:
        import torch

        place, check = WRONG[case]
        with of_type(*place(loaded.model), getattr(torch, subject.other)):
            found = exits(precision.CHECKS, census(loaded), loaded.plan)
        assert found == {check: ExitCode.PRECISION}
        assert amiss(precision.CHECKS, census(loaded), loaded.plan) == {}


def test_all_of_a_model_in_the_other_16_bit_type_is_found(subject: Subject) -> None:
    """As where a notebook written for the other card is run on this one."""
    other = replace(subject.profile, compute_dtype=subject.other, quant_dtypes=(subject.other,))
    loaded = bare("llama-nf4", other)
    plan = replace(loaded.plan, profile=subject.profile)
    found = exits(precision.CHECKS, census(loaded), plan)
    assert set(found.values()) == {ExitCode.PRECISION}
    assert set(found) >= {"precision.forbidden_dtypes", "precision.quant_dtypes"}


def test_the_adapter_is_float32_on_the_device_of_its_base(subject: Subject) -> None:
    loaded = bare("qwen-nf4", subject.profile)
    loaded = replace(loaded, model=adapted(loaded))
    assert amiss(precision.CHECKS, census(loaded), loaded.plan) == {}
