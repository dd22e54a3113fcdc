"""How a failed load is typed: by class and by what transformers recorded, never by its text."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.engine import load_errors
from app.errors import BootError
from app.outcome import Fault
from app.profiles import GIB, H100
from tests import broken_files
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.stack


def fault_of(error: Exception, info: SimpleNamespace | None = None) -> Fault | None:
    found = load_errors.typed(error, info, H100)
    return found.finding.fault if found else None


def wrapped(cause: Exception) -> Exception:
    """As libraries mask things."""
    error = RuntimeError("something went wrong")
    error.__cause__ = cause
    return error


def info(**changes: object) -> SimpleNamespace:
    empty: dict[str, object] = {
        "mismatched_keys": set(),
        "conversion_errors": {},
        "error_msgs": [],
        "missing_keys": set(),
    }
    return SimpleNamespace(**(empty | changes))


@pytest.mark.parametrize(
    ("free", "reserved", "fault"),
    [
        (2, 77, Fault.HARDWARE_MISMATCH),  # all of it is ours
        (2, 30, Fault.TEMPORARY),  # 48 GiB are somebody else's
    ],
)
def test_out_of_device_memory_is_temporary_only_where_others_hold_it(
    monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, fault: Fault
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved * GIB)
    assert fault_of(wrapped(torch.OutOfMemoryError("CUDA out of memory"))) is fault


def test_classes_decide_however_deep_they_lie() -> None:
    from safetensors import SafetensorError

    assert fault_of(wrapped(OSError(errno.EIO, "Input/output error"))) is Fault.READ_ERROR
    assert fault_of(wrapped(MemoryError())) is Fault.HARDWARE_MISMATCH
    assert fault_of(SafetensorError("header too large")) is Fault.DATA_INVALID
    ours = BootError("known", fault=Fault.CONFIG)
    assert load_errors.typed(wrapped(ours), None, H100) is ours


@pytest.mark.parametrize(
    "changes",
    [
        {"mismatched_keys": {("w", (1, 2), (2, 2))}},
        {"conversion_errors": {"w": "Traceback\nValueError: no quant state\nError on w"}},
        {"error_msgs": ["w: size mismatch"]},
        {"missing_keys": {"w"}},
    ],
)
def test_what_transformers_recorded_makes_it_the_checkpoints_fault(
    changes: dict[str, object],
) -> None:
    found = load_errors.typed(RuntimeError("see the report above"), info(**changes), H100)
    assert found is not None
    assert found.finding.fault is Fault.DATA_INVALID
    assert "first w" in found.finding.reason


def test_what_nobody_foresaw_stays_as_it_is() -> None:
    assert fault_of(KeyError("x")) is None
    assert fault_of(OSError(errno.ENOENT, "No such file")) is None
    assert fault_of(ValueError("x"), info()) is None


def test_shapes_that_differ_stop_the_load_with_both() -> None:
    load_errors.refuse([])
    with pytest.raises(BootError, match="first w: ") as raised:
        load_errors.refuse(["w: (1, 2) in the file, (2, 2) in the model"])
    assert raised.value.finding.fault is Fault.DATA_INVALID


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("config.json", '{"model_type": "nonesuch"}', "config.json"),
        ("generation_config.json", "[]", "generation_config.json"),
        ("tokenizer.json", '{"version": ', "tokenizer"),
    ],
)
def test_a_file_that_transformers_refuses_is_named(
    tmp_path: Path, file: str, text: str, named: str
) -> None:
    folder = broken_files.copy(tiny_model("llama-bf16"), tmp_path / "model")
    load_errors.refuse_unreadable(folder)
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(BootError, match=f"cannot use {named}") as raised:
        load_errors.refuse_unreadable(folder)
    assert raised.value.finding.fault is Fault.DATA_INVALID
