"""One seeded training batch, made by the model's own tokenizer and chat template.

Nothing here draws from a global generator. What could not be had is said in `notes`.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from app.engine.packed import base_model
from app.facts.adapter import ComponentT
from app.facts.words import one_line
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
    special = getattr(getattr(tokenizer, "tokenizer", tokenizer), "all_special_ids", ())
    unusable = _unusable(encoded["input_ids"], rows, frozenset(special))
    if unusable:
        notes.append(f"the tokenizer's ids {unusable}: seeded ids instead")
        encoded, modalities = _random_ids(rows, length, plan.request.lora_random_state), ()
    return _finish(model, encoded, ("text", *modalities), tuple(notes))


def _unusable(ids: torch.Tensor, rows: int, special: frozenset[int] = frozenset()) -> str:
    """Why these ids cannot be trained on; empty when they can. A broken tokenizer makes either."""
    if ids.numel() < 2:  # noqa: PLR2004 - a prediction needs a token before it
        return f"are {ids.numel()} for a whole text"
    if special.issuperset(ids.flatten().tolist()):
        return "hold nothing of the text, only special tokens"
    return f"exceed the {rows} embeddings" if int(ids.max()) >= rows else ""


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
            found, why = _chat(processor, plan, served, n_words=32, tokenize=True)
            encoded = None if found is None else _tensors(found)
            limit = plan.request.max_seq_length
            if encoded is not None and encoded["input_ids"].shape[1] <= limit:
                return encoded, tuple(served)
            why = f"the processor needs more than {limit} tokens" if encoded is not None else why
            notes.append(f"no {' or '.join(served)} in the batch: {why}")
    return _encode_text(tokenizer, plan, notes), ()


def _encode_text(tokenizer: Any, plan: Plan, notes: list[str]) -> dict[str, torch.Tensor]:
    """The chat as text, cut to the batch's length; plain words where no template is to be had."""
    text, why = _chat(tokenizer, plan, [], n_words=TOKENS, tokenize=False)
    if text is not None and len(text) < TOKENS:
        text, why = None, "the chat template drops what is said"
    if text is None:
        notes.append(f"plain text, no chat: {why}")
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
) -> tuple[Any, str]:
    """A question and an answer through the chat template; None with the reason where it fails."""
    if not getattr(tokenizer, "chat_template", None):
        return None, "the tokenizer has no chat template"
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
            return tokenizer.apply_chat_template(messages, tokenize=False), ""
        return tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt"
        ), ""
    except Exception as error:
        # A template is a program out of the checkpoint: it raises anything (OverflowError for a
        # range that is too long). What was raised elsewhere is no matter of the template's.
        if _in_template(error):
            return None, f"the chat template fails: {one_line(f'{type(error).__name__}: {error}')}"
        raise


def _in_template(error: Exception) -> bool:
    """Whether jinja2 raised it, or code that jinja2 made of a template."""
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(place == "<template>" or "jinja2" in Path(place).parts for place in places)


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
