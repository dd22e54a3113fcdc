"""Facts about the origin's interface, with FastModel doubled as users without a GPU do it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import app
from app.slippage import NoParametersError, tensors_of

DTYPES = {"v100": "torch.float16", "h100": "torch.bfloat16"}


class Parameter(SimpleNamespace):
    """Stands in for a tensor: the guards of a double read nothing but its dtype."""


class OnlyParameters:
    """A model that offers `parameters()` alone, and only once."""

    def __init__(self, *dtypes: str) -> None:
        self._iterator = iter([Parameter(dtype=dtype) for dtype in dtypes])

    def parameters(self) -> Iterator[Parameter]:
        iterator, self._iterator = self._iterator, None  # type: ignore[assignment]
        assert iterator is not None, "parameters() was called twice"
        return iterator


@pytest.fixture
def unsloth(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Doubles of unsloth and torch in `sys.modules`, for a CI runner that has neither."""
    torch = ModuleType("torch")
    torch.float16, torch.bfloat16 = "torch.float16", "torch.bfloat16"  # type: ignore[attr-defined]
    module = ModuleType("unsloth")
    module.FastModel = MagicMock()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "unsloth", module)
    return module


def loads(unsloth: Any, model: object) -> tuple[object, object]:
    tokenizer, adapted = object(), MagicMock()
    unsloth.FastModel.from_pretrained.return_value = (model, tokenizer)
    unsloth.FastModel.get_peft_model.return_value = adapted
    return adapted, tokenizer


@pytest.mark.parametrize("hardware", ["v100", "h100"])
def test_each_call_is_made_once_with_the_origins_arguments(unsloth: Any, hardware: Any) -> None:
    expected = loads(unsloth, OnlyParameters(DTYPES[hardware]))
    assert app.boot_gemma(app.BootConfig(hardware=hardware)) == expected
    load, adapt = unsloth.FastModel.from_pretrained, unsloth.FastModel.get_peft_model
    load.assert_called_once_with(
        "unsloth/gemma-3n-E2B-it", max_seq_length=4096, load_in_4bit=True, dtype=DTYPES[hardware]
    )
    adapt.assert_called_once()
    assert adapt.call_args.kwargs == {
        "r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "finetune_vision_layers": False,
        "finetune_language_layers": True,
        "finetune_attention_modules": True,
        "finetune_mlp_modules": True,
        "use_gradient_checkpointing": "unsloth",
        "random_state": 3407,
    }


def test_values_are_passed_through_as_given(unsloth: Any) -> None:
    loads(unsloth, OnlyParameters("torch.float16"))
    app.boot_gemma(
        app.BootConfig(base_model_id="my/model", max_seq_length=7, lora_r=3, lora_dropout=0.0)
    )
    load, adapt = unsloth.FastModel.from_pretrained, unsloth.FastModel.get_peft_model
    assert load.call_args.args == ("my/model",)
    assert load.call_args.kwargs["max_seq_length"] == 7
    assert (adapt.call_args.kwargs["r"], adapt.call_args.kwargs["lora_dropout"]) == (3, 0.0)


@pytest.mark.parametrize(
    ("hardware", "dtypes", "error", "words"),
    [
        ("v100", ["bfloat16"], app.BF16SlippageError, ["BF16 slipped through", "V100 unsafe"]),
        ("v100", ["float16", "bfloat16"], app.BF16SlippageError, ["parameter 1 is bfloat16"]),
        ("v100", ["float32"], app.BF16SlippageError, ["nothing is float16"]),
        ("v100", ["float16", "float64"], app.BF16SlippageError, ["parameter 1 is float64"]),
        ("v100", [], app.BF16SlippageError, ["no parameters"]),
        ("h100", ["float16"], app.FP16SlippageError, ["FP16 slipped through", "H100"]),
        ("h100", ["bfloat16", "float16"], app.FP16SlippageError, ["parameter 1 is float16"]),
        ("h100", ["float32"], app.FP16SlippageError, ["nothing is bfloat16"]),
        ("h100", [], app.FP16SlippageError, ["no parameters"]),
    ],
)
def test_slippage_raises_before_the_adapter(
    unsloth: Any,
    hardware: Any,
    dtypes: list[str],
    error: type[AssertionError],
    words: list[str],
) -> None:
    loads(unsloth, OnlyParameters(*(f"torch.{dtype}" for dtype in dtypes)))
    with pytest.raises(error) as caught:
        app.boot_gemma(app.BootConfig(hardware=hardware))
    assert all(word in str(caught.value) for word in [*words, "Halt training"])
    unsloth.FastModel.get_peft_model.assert_not_called()


def test_a_mock_that_answers_everything_is_judged_by_its_parameters_alone(unsloth: Any) -> None:
    model = MagicMock()
    model.parameters = MagicMock(return_value=iter([Parameter(dtype="torch.float16")]))
    expected = loads(unsloth, model)
    assert app.boot_gemma() == expected
    model.parameters.assert_called_once()


def test_other_hardware_is_refused_with_the_valid_names(unsloth: Any) -> None:
    with pytest.raises(ValueError, match="v100, h100"):
        app.boot_gemma(app.BootConfig(hardware="cpu"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="v100, h100"):
        app.assert_dtype_for_hardware(OnlyParameters(), "a100")  # type: ignore[arg-type]
    unsloth.FastModel.from_pretrained.assert_not_called()


def test_a_model_without_parameters_proves_nothing_on_either_card() -> None:
    with pytest.raises(NoParametersError):
        app.assert_fp16_dtype(OnlyParameters())
    assert issubclass(NoParametersError, app.BF16SlippageError | app.FP16SlippageError)
    assert issubclass(app.BF16SlippageError, AssertionError)
    assert issubclass(app.FP16SlippageError, AssertionError)


def test_the_first_offenders_are_named_and_the_rest_counted() -> None:
    with pytest.raises(app.BF16SlippageError, match=r"parameter 9 is bfloat16 and 15 more\."):
        app.assert_fp16_dtype(OnlyParameters(*["torch.bfloat16"] * 25))


def test_packed_bytes_count_as_neither() -> None:
    app.assert_fp16_dtype(OnlyParameters("torch.uint8", "torch.float16", "torch.float32"))


def test_the_constants_and_the_config_are_the_origins() -> None:
    config = app.BootConfig()
    assert [(one.name, getattr(config, one.name)) for one in fields(config)] == [
        ("base_model_id", "unsloth/gemma-3n-E2B-it"),
        ("max_seq_length", 4096),
        ("load_in_4bit", True),
        ("lora_r", 16),
        ("lora_alpha", 32),
        ("lora_dropout", 0.05),
        ("lora_random_state", 3407),
        ("finetune_vision_layers", False),
        ("finetune_language_layers", True),
        ("finetune_attention_modules", True),
        ("finetune_mlp_modules", True),
        ("use_gradient_checkpointing", "unsloth"),
        ("hardware", "v100"),
    ]
    assert app.ALLOWED_HARDWARE == ("v100", "h100")
    with pytest.raises(FrozenInstanceError):
        config.lora_r = 1  # type: ignore[misc]


@pytest.mark.stack
def test_a_real_module_is_judged_by_every_parameter_buffer_and_quant_state() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).half()
    app.assert_fp16_dtype(model)
    model[1].register_buffer("late", torch.zeros(1, dtype=torch.bfloat16), persistent=False)
    with pytest.raises(app.BF16SlippageError, match=r"1\.late is bfloat16"):
        app.assert_fp16_dtype(model)
    model[1].register_buffer("late", None)
    model[0].weight.__dict__["quant_state"] = SimpleNamespace(dtype=torch.bfloat16)
    with pytest.raises(app.BF16SlippageError, match=r"0\.weight\.quant_state is bfloat16"):
        app.assert_fp16_dtype(model)
    assert ("0.bias", "float16") in list(tensors_of(model))
