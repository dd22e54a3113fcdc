"""What a failed load amounts to: by the exception's class and by what transformers recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app import blame
from app.engine import device
from app.errors import BootError, causes
from app.outcome import Fault
from app.profiles import Profile


def typed(error: Exception, info: Any, profile: Profile) -> BootError | None:
    """Our words for a failed load; None where neither class nor facts say what it is.

    `info` is transformers' LoadStateDictInfo, None where the load did not come that far.
    """
    from safetensors import SafetensorError

    known = next((cause for cause in causes(error) if isinstance(cause, BootError)), None)
    known = known or device.out_of_memory(error, least_bytes=profile.min_memory_bytes)
    if known is not None:
        return known
    found = blame.blamed(error)
    if found is not None:
        return BootError.of(found)
    for cause in causes(error):
        if isinstance(cause, SafetensorError):
            return _failure(
                "a weight file is not readable as safetensors",
                cause,
                Fault.DATA_INVALID,
                "delete the file from the cache and fetch it again",
            )
    return _unfit(error, info)


def _unfit(error: Exception, info: Any) -> BootError | None:
    """Weights that do not fit the model: transformers says so in its info and raises in words."""
    if info is None:
        return None
    found = [
        *(
            f"{name}: {tuple(there)} in the file, {tuple(here)} in the model"
            for name, there, here in sorted(info.mismatched_keys)
        ),
        *(f"{name}: {_last_line(text)}" for name, text in sorted(info.conversion_errors.items())),
        *info.error_msgs,
    ]
    # Unsloth raises a bare Exception out of the log line that names missing weights.
    found = found or [f"{name}: not in the checkpoint" for name in sorted(info.missing_keys)]
    if not found:
        return None
    return _misfit(found, error)


def refuse(misfits: Sequence[str]) -> None:
    """Stop a load whose tensors have other shapes than the model.

    Raises:
        BootError: where there are any.
    """
    if misfits:
        raise _misfit(misfits, ValueError("the shapes differ"))


def _misfit(found: Sequence[str], error: Exception) -> BootError:
    reason = f"{len(found)} weights of the checkpoint do not fit the model, first {found[0]}"
    return _failure(
        reason[:500],
        error,
        Fault.DATA_INVALID,
        "use the checkpoint's own configuration and a complete set of files",
    )


def refuse_unreadable(folder: Path) -> None:
    """Which file of the folder transformers cannot make anything of, asked after a failed load.

    Each file is given to its own reader once more: one that refuses it without any of Unsloth's
    doing has an invalid file before it. Healthy folders never come here.

    Raises:
        BootError: where one does.
    """
    import transformers

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("config.json", lambda: _built(folder)),
        (
            "generation_config.json",
            lambda: (
                (folder / "generation_config.json").exists()
                and transformers.GenerationConfig.from_pretrained(folder)
            ),
        ),
        ("tokenizer's files", lambda: transformers.AutoTokenizer.from_pretrained(folder)),
    )
    for name, read in steps:
        try:
            read()
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise _failure(
                f"transformers cannot use {name}: {type(error).__name__}: {text}",
                error,
                Fault.DATA_INVALID,
                f"fetch the {name} of the same revision again, or correct what it says",
            ) from error


def _built(folder: Path) -> None:
    """The configuration, what it says of the quantisation, and the model's shell on meta."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.quantizers.auto import AutoQuantizationConfig

    config = transformers.AutoConfig.from_pretrained(folder)
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        AutoQuantizationConfig.from_dict(dict(quantization))
    known = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    made = transformers.AutoModelForCausalLM if known else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        made.from_config(config)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-2] if len(lines) > 1 else "".join(lines)


def _failure(reason: str, error: BaseException, fault: Fault, next_step: str) -> BootError:
    return BootError(
        reason,
        fault=fault,
        expected="FastModel.from_pretrained loads the resolved folder",
        actual=blame.short(error),
        source="the class of the exception, transformers' loading info",
        next_step=next_step,
    )
