"""Facts about the dtype guards alone, on mocks, on stubs of torch and on real modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

import app
from app.profiles import H100, V100
from app.slippage import NoParametersError, dtype_name, judge, parameters_of

NAMES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8")


class Model:
    """Offers `parameters()` alone, and counts its calls."""

    def __init__(self, *dtypes: object, form: Callable[[Any], Any] = iter) -> None:
        self.calls = 0
        self._given = form([SimpleNamespace(dtype=dtype) for dtype in dtypes])

    def parameters(self) -> Any:
        self.calls += 1
        return self._given


def stub(kind: str) -> Any:
    """A stand-in for torch, as CI without it has one."""
    torch: Any = ModuleType("torch")
    if kind == "mock":
        return MagicMock(name="torch")
    for name in NAMES:
        made = {"object": object(), "namespace": SimpleNamespace(), "text": f"torch.{name}"}
        setattr(torch, name, made[kind])
    return torch


@pytest.fixture(params=["object", "namespace", "text", "mock"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = stub(request.param)
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def test_a_stub_of_torch_has_any_objects_for_dtypes(torch: Any) -> None:
    app.assert_fp16_dtype(Model(torch.float16, torch.float32, torch.uint8))
    app.assert_dtype_for_hardware(Model(torch.uint8, torch.bfloat16, torch.float32), "h100")
    with pytest.raises(app.BF16SlippageError, match="parameter 1 is bfloat16"):
        app.assert_fp16_dtype(Model(torch.float16, torch.bfloat16))
    with pytest.raises(app.FP16SlippageError, match="parameter 0 is float16"):
        app.assert_dtype_for_hardware(Model(torch.float16), "h100")
    with pytest.raises(app.BF16SlippageError, match="parameter 1 is float64"):
        app.assert_fp16_dtype(Model(torch.float16, torch.float64))


def test_an_alias_of_a_mocked_torch_is_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = MagicMock()
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert dtype_name(torch.half) == "float16"
    assert dtype_name(torch.double) == "float64"


def test_a_name_is_enough_where_torch_does_not_know_the_object(torch: Any) -> None:
    assert torch is sys.modules["torch"]
    app.assert_fp16_dtype(Model("float16", "torch.float32"))


@pytest.mark.parametrize("form", [iter, list, tuple, lambda given: (one for one in given)])
def test_parameters_come_in_any_form_and_are_asked_for_once(form: Callable[[Any], Any]) -> None:
    model = Model("torch.float16", "torch.float32", form=form)
    app.assert_fp16_dtype(model)
    assert model.calls == 1


def test_a_stub_of_torch_may_have_a_module_class_that_offers_nothing(torch: Any) -> None:
    torch.nn = SimpleNamespace(Module=type("Module", (), {}))

    class Net(torch.nn.Module):  # type: ignore[misc]
        def parameters(self) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(dtype=torch.float16)

    app.assert_fp16_dtype(Net())


@pytest.mark.parametrize(
    ("hardware", "lead", "wanted"),
    [
        ("v100", "BF16 slipped through: V100 unsafe", "float16"),
        ("h100", "FP16 slipped through: H100 would lose gradients", "bfloat16"),
    ],
)
def test_a_model_of_integers_alone_is_told_so(hardware: Any, lead: str, wanted: str) -> None:
    with pytest.raises(AssertionError) as caught:
        app.assert_dtype_for_hardware(Model("torch.int8", "torch.uint8"), hardware)
    assert str(caught.value).startswith(
        f"{lead}. nothing is {wanted}, nor any other floating-point type: parameter 0 is int8, "
        f"parameter 1 is uint8. Expected {wanted}"
    )


def test_a_model_without_parameters_proves_nothing_on_either_card() -> None:
    for profile in (V100, H100):
        with pytest.raises(NoParametersError, match=r"no parameters.*Halt training"):
            judge(Model(), profile)
    assert issubclass(NoParametersError, app.BF16SlippageError | app.FP16SlippageError)
    assert issubclass(app.BF16SlippageError, AssertionError)
    assert issubclass(app.FP16SlippageError, AssertionError)


def test_the_first_offenders_are_named_and_the_rest_counted() -> None:
    with pytest.raises(app.BF16SlippageError, match=r"parameter 9 is bfloat16 and 15 more\."):
        app.assert_fp16_dtype(Model(*["torch.bfloat16"] * 25))


def test_packed_bytes_count_as_neither() -> None:
    app.assert_fp16_dtype(Model("torch.uint8", "torch.float16", "torch.float32"))


@pytest.mark.stack
def test_a_real_module_is_judged_by_every_parameter_buffer_and_quant_state() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).half()
    app.assert_fp16_dtype(model)
    model[1].register_buffer("late", torch.zeros(1, dtype=torch.bfloat16), persistent=False)
    with pytest.raises(app.BF16SlippageError, match=r"1\.late is bfloat16"):
        app.assert_fp16_dtype(model)
    model[1].register_buffer("late", None)
    vars(model[0].weight)["quant_state"] = SimpleNamespace(dtype=torch.bfloat16)
    with pytest.raises(app.BF16SlippageError, match=r"0\.weight\.quant_state is bfloat16"):
        app.assert_fp16_dtype(model)
    assert [name for name, _ in parameters_of(model)][:2] == ["0.weight", "0.bias"]


@pytest.mark.stack
def test_what_an_overridden_parameters_gives_is_judged_too() -> None:
    """An optimizer gets it; `named_parameters` does not show it."""
    import torch

    extra = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))

    class Net(torch.nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.shown = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
            self.hidden = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))

        def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:  # noqa: ARG002, FBT002 - torch's own
            self.calls += 1
            return iter([self.shown, extra])

    model = Net()
    with pytest.raises(app.BF16SlippageError, match=r"unsafe\. parameter 1 is bfloat16\. "):
        app.assert_fp16_dtype(model)
    assert model.calls == 1
    assert [name for name, _ in parameters_of(model)] == ["shown", "parameter 1", "hidden"]
    extra.data = extra.data.half()
    app.assert_fp16_dtype(model)
    model.hidden.data = model.hidden.data.bfloat16()
    with pytest.raises(app.BF16SlippageError, match=r"unsafe\. hidden is bfloat16\. "):
        app.assert_fp16_dtype(model)


@pytest.mark.stack
def test_buffers_alone_are_no_parameters() -> None:
    import torch

    model = torch.nn.Module()
    model.register_buffer("only", torch.zeros(1, dtype=torch.float16))
    with pytest.raises(NoParametersError):
        app.assert_fp16_dtype(model)


@pytest.mark.stack
@pytest.mark.parametrize("kind", [Mock, MagicMock])
def test_a_mock_with_the_spec_of_a_module_is_a_mock(kind: type[Mock]) -> None:
    import torch

    model = kind(spec=torch.nn.Module)
    model.parameters.return_value = iter([torch.zeros(1, dtype=torch.float16)])
    app.assert_fp16_dtype(model)
    model.parameters.assert_called_once_with()
    model.parameters.return_value = iter([MagicMock(dtype=torch.bfloat16)])
    with pytest.raises(app.BF16SlippageError, match="parameter 0 is bfloat16"):
        app.assert_fp16_dtype(model)
