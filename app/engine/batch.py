"""One seeded training batch, made by the model's own tokenizer and chat template.

Nothing here draws from a global generator. What could not be had is said in `notes`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from app.engine.packed import base_model
from app.facts.adapter import ComponentT
from app.plan import Plan

# Enough for several tiles of every attention kernel, and short enough for the logits of Gemma's
# 262144 words: 256 rows of float32 are 268 MB.
TOKENS = 256
_IMAGE_SIDE = 224  # pixels; processors resize it to what the tower wants
_AUDIO_SECONDS, _AUDIO_RATE = 1, 16_000
_WORDS = (
    *("the", "a", "one", "each", "old", "new", "red", "small", "model", "river", "stone", "house"),
    *("reads", "writes", "carries", "opens", "counts", "follows", "under", "over", "and", "or"),
)
_IGNORED = -100  # the label that transformers' losses leave out
# Tokens that stand for something else than text are never a training target.
_MARKS = ("image", "audio", "video", "vision", "boi", "eoi", "boa", "eoa")


@dataclass(frozen=True)
class Batch:
    """Model inputs with labels, on the model's device. Lengths are in tokens."""

    inputs: dict[str, torch.Tensor]
    n_tokens: int
    n_supervised: int
    modalities: tuple[str, ...]
    notes: tuple[str, ...]


def make(model: nn.Module, tokenizer: Any, plan: Plan, components: set[ComponentT]) -> Batch:
    """The batch for the parts of the model that LoRA stands on.

    An image (seeded noise) is in it when LoRA stands on vision or its projector, audio when on the
    audio tower; a modality that the processor cannot serve is left out with a note.
    """
    notes: list[str] = []
    wanted = [
        name
        for name, parts in (("image", {"vision", "projector"}), ("audio", {"audio"}))
        if components & parts
    ]
    length = min(plan.request.max_seq_length, TOKENS)
    encoded, modalities = _encode(tokenizer, plan, wanted, notes)
    rows = int(_embedding(model).shape[0])
    if int(encoded["input_ids"].max()) >= rows:
        notes.append(f"the tokenizer's ids exceed the {rows} embeddings: seeded ids instead")
        encoded, modalities = _random_ids(rows, length, plan.request.lora_random_state), ()
    return _finish(model, encoded, ("text", *modalities), tuple(notes))


def _embedding(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.get_input_embeddings().weight
    return weight


def _encode(
    tokenizer: Any, plan: Plan, wanted: list[str], notes: list[str]
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Token ids and, where asked for and possible, pixels or samples."""
    served: list[str] = []
    if wanted:
        processor = _processor(tokenizer, plan)
        parts = {"image": "image_processor", "audio": "feature_extractor"}
        for name in wanted:
            if getattr(processor, parts[name], None) is None:
                notes.append(f"no {name} in the batch: the model's processor has no {parts[name]}")
            else:
                served.append(name)
        if served:
            found = _chat(processor, plan, served, n_words=32, tokenize=True)
            encoded = None if found is None else _tensors(found)
            limit = plan.request.max_seq_length
            if encoded is not None and encoded["input_ids"].shape[1] <= limit:
                return encoded, tuple(served)
            why = "has no chat template" if encoded is None else f"needs more than {limit} tokens"
            notes.append(f"no {' or '.join(served)} in the batch: the processor {why}")
    return _encode_text(tokenizer, plan, notes), ()


def _encode_text(tokenizer: Any, plan: Plan, notes: list[str]) -> dict[str, torch.Tensor]:
    """The chat as text, cut to the batch's length; plain words where no template is to be had."""
    text = _chat(tokenizer, plan, [], n_words=TOKENS, tokenize=False)
    if text is None or len(text) < TOKENS:  # a template that drops what is said is none either
        text = None
        notes.append("no usable chat template: plain text")
    encoded = getattr(tokenizer, "tokenizer", tokenizer)(
        text or _text(TOKENS, plan.request.lora_random_state),
        add_special_tokens=text is None,  # a template writes its own
        truncation=True,
        max_length=min(plan.request.max_seq_length, TOKENS),
        return_tensors="pt",
    )
    return _tensors(encoded)


def _processor(tokenizer: Any, plan: Plan) -> Any:
    """The processor: what was loaded, or the folder's own (Unsloth's CPU backend loads none)."""
    if getattr(tokenizer, "image_processor", None) or plan.resolved is None:
        return tokenizer
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(plan.resolved.folder, local_files_only=True)
    except (OSError, ValueError):
        return tokenizer  # a model without processor files; the caller notes what is missing


def _chat(
    tokenizer: Any, plan: Plan, modalities: list[str], n_words: int, *, tokenize: bool
) -> Any:
    """A question and an answer through the chat template; None where there is none to use."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    from jinja2 import TemplateError

    seed = plan.request.lora_random_state
    question: list[dict[str, Any]] = [_media(name, seed) for name in modalities]
    question.append({"type": "text", "text": _text(16, seed)})
    answer = [{"type": "text", "text": _text(n_words, seed + 1)}]
    if not hasattr(tokenizer, "tokenizer"):  # a bare tokenizer's template expects plain strings
        contents: list[Any] = [question[0]["text"], answer[0]["text"]]
    else:
        contents = [question, answer]
    messages = [
        {"role": role, "content": content}
        for role, content in zip(("user", "assistant"), contents, strict=True)
    ]
    try:
        if not tokenize:
            return tokenizer.apply_chat_template(messages, tokenize=False)
        return tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt"
        )
    except TemplateError:
        return None


def _media(name: str, seed: int) -> dict[str, Any]:
    """Seeded noise as an image or as a second of sound."""
    noise = np.random.default_rng(seed)
    if name == "audio":
        samples = noise.standard_normal(_AUDIO_SECONDS * _AUDIO_RATE).astype(np.float32)
        return {"type": "audio", "audio": samples * np.float32(0.1)}
    from PIL import Image

    pixels = noise.integers(0, 256, (_IMAGE_SIDE, _IMAGE_SIDE, 3), dtype=np.uint8)
    return {"type": "image", "image": Image.fromarray(pixels)}


def _text(n_words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=n_words))  # noqa: S311 - not a secret


def _tensors(encoded: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in encoded.items() if isinstance(value, torch.Tensor)}


def _random_ids(rows: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, rows, (1, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _finish(
    model: nn.Module,
    encoded: dict[str, torch.Tensor],
    modalities: tuple[str, ...],
    notes: tuple[str, ...],
) -> Batch:
    """Labels, the inputs that the model's forward takes, device and dtype."""
    base: Any = base_model(model)  # its forward names the inputs, PEFT's takes anything
    accepted = inspect.signature(type(base).forward).parameters
    ids = encoded["input_ids"]
    labels = ids.clone()
    labels[encoded.get("attention_mask", torch.ones_like(ids)) == 0] = _IGNORED
    for special in _special_ids(base.config):
        labels[ids == special] = _IGNORED
    inputs = {name: value for name, value in encoded.items() if name in accepted}
    if "token_type_ids" in accepted:  # PaliGemma refuses to train without it
        inputs.setdefault("token_type_ids", torch.zeros_like(ids))
    inputs["labels"] = labels
    device = _embedding(model).device
    # Pixels and samples in the model's own floating type, as Unsloth's collator hands them over.
    dtype = base.dtype
    inputs = {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in inputs.items()
    }
    n_supervised = int((labels[:, 1:] != _IGNORED).sum())  # the first token has nothing before it
    return Batch(inputs, ids.numel(), n_supervised, modalities, notes)


def _special_ids(config: Any) -> set[int]:
    """Ids of the tokens that mark or stand for images, audio and video, from the configuration."""
    found = set()
    for name, value in vars(config).items():
        marks = name.startswith(_MARKS) and name.endswith(("_token_id", "_token_index"))
        if marks and isinstance(value, int):
            found.add(value)
    return found
