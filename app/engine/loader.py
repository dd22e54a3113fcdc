"""Loads the resolved folder through Unsloth, and watches what transformers really reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.engine import load_errors, packed
from app.errors import BootError
from app.facts.checkpoint import CheckpointFacts
from app.facts.layers import component
from app.facts.load import LoadFacts
from app.outcome import Fault
from app.plan import Plan
from app.profiles import Profile

_COMPUTED = ("inv_freq", "masked_bias")


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

    folder, profile, request = _resolved(plan), plan.profile, plan.request
    device = device_index if profile.needs_gpu else profile.device
    began = time.monotonic()
    on_cpu = unsloth.DEVICE_TYPE == "cpu"
    watched = _Watched()
    try:
        with (
            _watching(watched, checkpoint),
            _skip_list(extend=on_cpu and not checkpoint.packed),
            _auto_class(folder, choose=on_cpu),
        ):
            model, tokenizer = FastModel.from_pretrained(
                _exact(folder),
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
            load_errors.refuse_unreadable(folder)
            raise
        raise typed from error
    aligned = _align(model, profile) if on_cpu else ()
    facts = _facts(watched, folder, str(device), model, tokenizer, began)
    return Loaded(model, tokenizer, replace(facts, aligned=aligned))


def _resolved(plan: Plan) -> Path:
    if plan.resolved is None:
        step = "run the cache stage first"
        raise BootError("no model folder is resolved", fault=Fault.INTERNAL, next_step=step)
    return plan.resolved.folder


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

    SKIP_QUANTIZATION_MODULES.append(packed.SKIP_PATTERN)
    try:
        yield
    finally:
        SKIP_QUANTIZATION_MODULES.remove(packed.SKIP_PATTERN)


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
    if config is None or config in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        yield
        return
    if config not in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise BootError(
            f"Unsloth's CPU backend cannot load {config.model_type}",
            fault=Fault.CONFIG,
            expected="a family of AutoModelForCausalLM or AutoModelForImageTextToText",
            actual=config.__name__,
            source="the tables of transformers' auto classes",
            next_step="rehearse another model or boot it on a GPU profile",
        )
    usual = transformers.AutoModelForCausalLM
    transformers.AutoModelForCausalLM = transformers.AutoModelForImageTextToText
    try:
        yield
    finally:
        transformers.AutoModelForCausalLM = usual


def _align(model: Any, profile: Profile) -> tuple[str, ...]:
    """Give the model the profile's types, as Unsloth's CUDA path does and its CPU backend does not.

    A packed layer may keep what the profile allows, in both places. transformers 5.17 leaves plain
    tensors whose key it renames in the file's type when the checkpoint is packed
    (core_model_loading's "make the condition more strict"): bfloat16 amid float32 cannot multiply.
    """
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    wanted, done = getattr(torch, profile.compute_dtype), []
    allowed = [getattr(torch, each) for each in profile.quant_dtypes]
    for name, module in model.named_modules():
        packed_weight = module.weight if isinstance(module, Linear4bit) else None
        state: Any = getattr(packed_weight, "quant_state", None)
        if state and (state.dtype != module.compute_dtype or state.dtype not in allowed):
            module.compute_dtype = state.dtype = wanted
            done.append(name)
    for name, value in model.named_parameters():
        plain = value.is_floating_point() and not isinstance(value, Params4bit)
        if plain and not value.is_meta and value.dtype in (torch.float16, torch.bfloat16):
            value.data = value.data.to(wanted)
            done.append(name)
    quantization: Any = getattr(model.config, "quantization_config", None)
    declared = getattr(quantization, "bnb_4bit_compute_dtype", None)
    if done and declared is not None and declared not in allowed:
        quantization.bnb_4bit_compute_dtype = wanted
    return tuple(done)


@contextmanager
def _watching(seen: _Watched, checkpoint: CheckpointFacts) -> Iterator[None]:
    """Record the weight files and the loading info of every load inside.

    Unsloth asks transformers for no loading info and hands out none, and what is missing from a
    checkpoint is random numbers with one log line. Two steps of `PreTrainedModel.from_pretrained`
    (transformers 5.17) are wrapped for the time of the load. The info is recorded before the step
    that raises on mismatched shapes, and goes on being filled.
    """
    from transformers import PreTrainedModel

    read, finish = PreTrainedModel._load_pretrained_model, PreTrainedModel._finalize_model_loading

    def reading(model: Any, state_dict: Any, files: Any, how: Any, *args: Any, **more: Any) -> Any:
        seen.files += [str(file) for file in files or ()]
        # Before anything is allocated: a configuration may ask for petabytes.
        load_errors.refuse(packed.misfits(model, checkpoint, how.weight_mapping or ()))
        return read(model, state_dict, files, how, *args, **more)

    def finishing(model: Any, load_config: Any, loading_info: Any) -> Any:
        seen.infos.append(loading_info)
        return finish(model, load_config, loading_info)

    # They are static methods: read through the class they are functions, and must be put back so.
    PreTrainedModel._load_pretrained_model = staticmethod(reading)
    PreTrainedModel._finalize_model_loading = staticmethod(finishing)
    try:
        yield
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
        dropped=tuple(_dropped(model, info.unexpected_keys)) if info else (),
        seconds=round(time.monotonic() - began, 3),
    )


def _dropped(model: Any, unexpected: Iterable[str]) -> Iterator[str]:
    """Unused keys that belong to the model: in its stack of layers, or beside a module."""
    from torch.nn import ModuleList

    modules = dict(model.named_modules())
    for key in sorted(unexpected):
        parts = key.split(".")
        stacked = any(
            part.isdigit() and isinstance(modules.get(".".join(parts[:at])), ModuleList)
            for at, part in enumerate(parts)
        )
        language = component(key) == "language"
        # Old checkpoints hold the rotary frequencies, which every class computes by itself.
        if parts[-1] not in _COMPUTED and language and (stacked or ".".join(parts[:-1]) in modules):
            yield key
