"""Loads the resolved folder through Unsloth, and watches what transformers really reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine import load_errors
from app.engine.packed import SKIP_PATTERN
from app.errors import BootError
from app.facts.checkpoint import CheckpointFacts
from app.facts.load import LoadFacts
from app.outcome import Fault
from app.plan import Plan


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model as Unsloth hands it out, in evaluation mode and without an adapter."""

    model: Any
    tokenizer: Any
    facts: LoadFacts


@dataclass(slots=True)
class _Watched:
    """What transformers told about the loads it did; the last one is the model's."""

    files: list[str] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)  # transformers' LoadStateDictInfo, live


def load(plan: Plan, checkpoint: CheckpointFacts, *, device_index: int = 0) -> Loaded:
    """Load `plan.resolved.folder`, exactly that, on the profile's device and dtype.

    Raises:
        BootError: for what is typed: out of memory, read error, weights that do not fit the model.
    """
    import torch
    import unsloth
    from unsloth import FastModel

    if plan.resolved is None:
        raise BootError(
            "no model folder is resolved",
            fault=Fault.INTERNAL,
            next_step="run the cache stage first",
        )
    profile, request = plan.profile, plan.request
    device = device_index if profile.needs_gpu else profile.device
    began = time.monotonic()
    on_cpu = unsloth.DEVICE_TYPE == "cpu"
    with (
        _watched() as watched,
        _skip_list(extend=on_cpu and not checkpoint.packed),
        _auto_class(plan.resolved.folder, choose=on_cpu),
    ):
        try:
            model, tokenizer = FastModel.from_pretrained(
                _exact(plan.resolved.folder),
                max_seq_length=request.max_seq_length,
                load_in_4bit=request.load_in_4bit,
                dtype=getattr(torch, profile.compute_dtype),
                # Unsloth's default plans over every visible GPU.
                device_map={"": device},
                # The folder is resolved already: nothing may map it to a name on the hub.
                use_exact_model_name=True,
                # "auto" moves embeddings to host memory when the device is nearly full.
                offload_embedding=False,
                use_gradient_checkpointing=request.use_gradient_checkpointing,
            )
        except Exception as error:
            info = watched.infos[-1] if watched.infos else None
            typed = load_errors.typed(error, info, profile)
            if typed is None:
                raise
            raise typed from error
    facts = _facts(watched, plan.resolved.folder, str(device), model, tokenizer, began)
    return Loaded(model, tokenizer, facts)


def _exact(folder: Path) -> str:
    """The folder as Unsloth must be given it.

    Its CPU backend cuts `-bnb-4bit` off the end of a name, folders included, and would load the
    neighbour; a closing slash keeps the end from matching.
    """
    return f"{folder}/" if folder.name.lower().endswith("-bnb-4bit") else str(folder)


@contextmanager
def _skip_list(*, extend: bool) -> Iterator[None]:
    """Keep 4-bit to the language model's projections while Unsloth's CPU backend loads.

    It quantises on the fly with `SKIP_QUANTIZATION_MODULES` alone and drops any configuration that
    it is given. transformers 5.17 matches those names at the start or end of a full name only, so
    towers get packed, and AltUp's coefficients, which training then clamps in place and dies. The
    list is read at each load; it is extended for this one. The CUDA path has its own ways.
    """
    if not extend:
        yield
        return
    from unsloth_zoo.peft_utils import SKIP_QUANTIZATION_MODULES

    SKIP_QUANTIZATION_MODULES.append(SKIP_PATTERN)
    try:
        yield
    finally:
        SKIP_QUANTIZATION_MODULES.remove(SKIP_PATTERN)


@contextmanager
def _auto_class(folder: Path, *, choose: bool) -> Iterator[None]:
    """Let Unsloth's CPU backend load vision-language models, as its CUDA path does.

    It asks `transformers.AutoModelForCausalLM` for every model, by that name and at each load;
    families like Qwen2.5-VL are only in AutoModelForImageTextToText's table.
    """
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto as auto

    config = type(AutoConfig.from_pretrained(folder)) if choose else None
    if (
        config is None
        or config in auto.MODEL_FOR_CAUSAL_LM_MAPPING
        or config not in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    ):
        yield
        return
    usual = transformers.AutoModelForCausalLM
    transformers.AutoModelForCausalLM = transformers.AutoModelForImageTextToText
    try:
        yield
    finally:
        transformers.AutoModelForCausalLM = usual


@contextmanager
def _watched() -> Iterator[_Watched]:
    """Record the weight files and the loading info of every load inside.

    Unsloth asks transformers for no loading info and hands out none, and what is missing from a
    checkpoint is random numbers with one log line. Two steps of `PreTrainedModel.from_pretrained`
    (transformers 5.17) are wrapped for the time of the load. The info is recorded before the step
    that raises on mismatched shapes, and goes on being filled.
    """
    from transformers import PreTrainedModel

    seen = _Watched()
    read, finish = PreTrainedModel._load_pretrained_model, PreTrainedModel._finalize_model_loading

    def reading(model: Any, state_dict: Any, files: Any, *args: Any, **kwargs: Any) -> Any:
        seen.files += [str(file) for file in files or ()]
        return read(model, state_dict, files, *args, **kwargs)

    def finishing(model: Any, load_config: Any, loading_info: Any) -> Any:
        seen.infos.append(loading_info)
        return finish(model, load_config, loading_info)

    # They are static methods: read through the class they are functions, and must be put back so.
    PreTrainedModel._load_pretrained_model = staticmethod(reading)
    PreTrainedModel._finalize_model_loading = staticmethod(finishing)
    try:
        yield seen
    finally:
        PreTrainedModel._load_pretrained_model = staticmethod(read)
        PreTrainedModel._finalize_model_loading = staticmethod(finish)


def _facts(
    watched: _Watched, folder: Path, device: str, model: Any, tokenizer: Any, began: float
) -> LoadFacts:
    info = watched.infos[-1] if watched.infos else None
    # transformers opens the hub's cache by its links, not by the blobs they point to.
    inside = folder.absolute()
    files = tuple(dict.fromkeys(Path(file).absolute() for file in watched.files))
    return LoadFacts(
        folder=str(folder),
        device=device,
        model_class=type(model).__name__,
        tokenizer_class=type(tokenizer).__name__ if tokenizer is not None else "",
        observed=info is not None,
        files=tuple(file.name for file in files),
        foreign_files=tuple(str(file) for file in files if not file.is_relative_to(inside)),
        missing=tuple(sorted(info.missing_keys)) if info else (),
        mismatched=tuple(sorted(each[0] for each in info.mismatched_keys)) if info else (),
        unexpected=tuple(sorted(info.unexpected_keys)) if info else (),
        seconds=round(time.monotonic() - began, 3),
    )
