"""Facts about the origin's interface, with FastModel doubled as users without a GPU do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import app
from app.engine.double import why_double

ROOT = Path(__file__).resolve().parent.parent
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


class Fakes(ModuleType):
    """`unsloth` as written by hand: functions whose names claim the real one's module."""

    def __init__(self, model: object, **attributes: object) -> None:
        super().__init__("unsloth")
        vars(self).update(attributes)
        calls: list[str] = []

        class FastModel:
            @staticmethod
            def from_pretrained(_name: str, **_options: object) -> tuple[object, str]:
                calls.append("from_pretrained")
                return model, "tokenizer"

            @staticmethod
            def get_peft_model(_model: object, **_options: object) -> str:
                calls.append("get_peft_model")
                return "adapted"

        for function in (FastModel.from_pretrained, FastModel.get_peft_model):
            function.__module__ = "unsloth_fakes"
        self.FastModel, self.calls = FastModel, calls


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"DEVICE_TYPE": "cuda"},
        {"DEVICE_TYPE": "cuda", "__file__": "/stubs/unsloth/__init__.py"},
        {"DEVICE_TYPE": MagicMock(), "__file__": MagicMock()},
    ],
    ids=["plain", "with a device", "with a file", "of mocks"],
)
def test_fakes_written_by_hand_are_doubles(
    monkeypatch: pytest.MonkeyPatch, unsloth: Any, attributes: dict[str, object]
) -> None:
    fakes = Fakes(OnlyParameters("torch.float16"), **attributes)
    monkeypatch.setitem(sys.modules, "unsloth", fakes)
    assert unsloth is not sys.modules["unsloth"]
    assert app.boot_gemma() == ("adapted", "tokenizer")
    assert fakes.calls == ["from_pretrained", "get_peft_model"]


def test_the_whole_of_unsloth_and_of_torch_may_be_mocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, unsloth = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "unsloth", unsloth)
    model = MagicMock()
    model.parameters.return_value = [MagicMock(dtype=torch.bfloat16)]
    adapted, tokenizer = loads(unsloth, model)
    assert app.boot_gemma(app.BootConfig(hardware="h100")) == (adapted, tokenizer)
    assert unsloth.FastModel.from_pretrained.call_args.kwargs["dtype"] is torch.bfloat16
    unsloth.FastModel.get_peft_model.reset_mock()
    model.parameters.return_value = [MagicMock(dtype=torch.float16)]
    with pytest.raises(app.FP16SlippageError, match="parameter 0 is float16"):
        app.boot_gemma(app.BootConfig(hardware="h100"))
    unsloth.FastModel.get_peft_model.assert_not_called()


def test_a_double_is_said_to_be_one(unsloth: Any, caplog: pytest.LogCaptureFixture) -> None:
    loads(unsloth, OnlyParameters("torch.float16"))
    app.boot_gemma()
    assert "judges dtypes only" in caplog.text
    assert "no DEVICE_TYPE" in caplog.text


def test_a_double_leaves_the_environment_alone(unsloth: Any) -> None:
    before = dict(os.environ)
    loads(unsloth, OnlyParameters("torch.float16"))
    app.boot_gemma()
    assert dict(os.environ) == before


def child(tmp_path: Path, code: str) -> Any:
    """The JSON on the last line that code prints, in a process with `tmp_path` before all else."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


STUB_TORCH = "float16, bfloat16 = object(), object()"
STUB_UNSLOTH = """
import torch
class Parameter: dtype = torch.float16
class Model:
    def parameters(self): yield Parameter
class FastModel:
    @staticmethod
    def from_pretrained(name, **options): return Model(), name
    @staticmethod
    def get_peft_model(model, **options): return "adapted"
"""


@pytest.mark.parametrize("first", ["", "import unsloth"], ids=["not imported", "imported"])
def test_a_stub_package_on_the_path_is_a_double(tmp_path: Path, first: str) -> None:
    for name, text in {"torch": STUB_TORCH, "unsloth": STUB_UNSLOTH}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text, encoding="utf-8")
    code = f"import json, app\n{first}\nprint(json.dumps(app.boot_gemma()))"
    assert child(tmp_path, code) == ["adapted", "unsloth/gemma-3n-E2B-it"]


def test_an_editable_install_is_no_double(tmp_path: Path) -> None:
    """Its files are those of the checkout that the metadata name (PEP 610)."""
    checkout, info = tmp_path / "checkout", tmp_path / "unsloth-1.dist-info"
    (checkout / "unsloth").mkdir(parents=True)
    text = f"DEVICE_TYPE = 'cuda'\n{STUB_UNSLOTH}"
    (checkout / "unsloth" / "__init__.py").write_text(text, encoding="utf-8")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unsloth\nVersion: 1\n")
    origin = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    (tmp_path / "torch.py").write_text(STUB_TORCH)
    code = (
        f"import sys, json; sys.path.insert(0, {str(checkout)!r})\n"
        "from app.engine.double import why_double\n"
        "before = why_double()\nimport unsloth\nprint(json.dumps([before, why_double()]))"
    )
    assert child(tmp_path, code) == [None, None]


def test_an_unsloth_that_is_missing_is_no_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine names what is missing; so it does where the import is forbidden."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    assert why_double() is None
    monkeypatch.setitem(sys.modules, "unsloth", None)
    assert why_double() is None


REAL = """
import functools, json
from contextlib import ExitStack
from unittest.mock import MagicMock, create_autospec, patch
import unsloth
from app.engine.double import why_double
import app, torch
FastModel = unsloth.FastModel
told = {"real": why_double()}
load, adapt = FastModel.from_pretrained, FastModel.get_peft_model

@functools.wraps(load)
def wrapped(*args, **kwargs): raise AssertionError

ways = {
    "class": patch.object(unsloth, "FastModel", MagicMock()),
    "autospec of the class": patch.object(unsloth, "FastModel", autospec=True),
    "loader": patch.object(FastModel, "from_pretrained", MagicMock()),
    "adapter": patch.object(FastModel, "get_peft_model", lambda model, **options: model),
    "wraps": patch.object(FastModel, "from_pretrained", staticmethod(wrapped)),
    "partial": patch.object(FastModel, "get_peft_model", functools.partial(adapt)),
    "autospec": patch.object(FastModel, "from_pretrained", autospec=True),
    "spy": patch.object(FastModel, "get_peft_model", wraps=adapt),
}
for name, way in ways.items():
    with way:
        told[name] = why_double()
told["real again"] = why_double()
with patch.object(unsloth, "FastModel", MagicMock()) as mocked:
    for made in (
        torch.nn.Linear(1, 1).half(),
        MagicMock(parameters=lambda one=iter([torch.zeros(1).half()]): one),
    ):
        mocked.from_pretrained.return_value = (made, "tokenizer")
        mocked.get_peft_model.return_value = made
        assert app.boot_gemma() == (made, "tokenizer")
    mocked.get_peft_model.reset_mock()
    mocked.from_pretrained.return_value = (torch.nn.Linear(1, 1).bfloat16(), "tokenizer")
    try:
        app.boot_gemma()
    except app.BF16SlippageError as error:
        told["raised"] = [str(error), mocked.get_peft_model.call_count]
    # A real module is judged after the adapter too.
    mocked.from_pretrained.return_value = (torch.nn.Linear(1, 1).half(), "tokenizer")
    mocked.get_peft_model.return_value = torch.nn.Linear(1, 1).bfloat16()
    try:
        app.boot_gemma()
    except app.BF16SlippageError:
        told["raised after"] = mocked.get_peft_model.call_count
print(json.dumps(told))
"""


@pytest.mark.stack
@pytest.mark.slow
def test_the_real_unsloth_is_real_until_something_is_replaced(tmp_path: Path) -> None:
    told = child(tmp_path, REAL)
    assert (told.pop("real"), told.pop("real again")) == (None, None)
    text, adapted = told.pop("raised")
    assert (text.split(".")[0], adapted) == ("BF16 slipped through: V100 unsafe", 0)
    assert "weight is bfloat16, bias is bfloat16" in text
    assert told.pop("raised after") == 1
    assert len(told) == 8
    assert all("FastModel." in why for why in told.values()), told


@pytest.mark.stack
def test_a_mock_of_unsloth_beside_the_real_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    unsloth = MagicMock()
    monkeypatch.setitem(sys.modules, "unsloth", unsloth)
    model = MagicMock()
    model.parameters = MagicMock(return_value=iter([torch.zeros(1).half()]))
    expected = loads(unsloth, model)
    assert app.boot_gemma() == expected
    assert unsloth.FastModel.from_pretrained.call_args.kwargs["dtype"] is torch.float16
    model.parameters.assert_called_once_with()
