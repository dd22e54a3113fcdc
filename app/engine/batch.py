"""One seeded training batch, made by the model's own tokenizer and chat template.

Nothing here draws from a global generator. What could not be had is said in `notes`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from app.engine import chat
from app.engine.packed import base_model
from app.plan import Plan

_SHORT = 32  # words of an answer that leaves the media most of the room
_SPARE = 4  # times as many ids are drawn, so that enough are left without those for media
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


def shortened(batch: Batch, n_tokens: int) -> Batch:
    """The beginning of a text; a batch with media stays whole, whose tokens stand for it."""
    if batch.modalities != ("text",) or batch.n_tokens <= n_tokens:
        return batch
    inputs = {name: value[:, :n_tokens] for name, value in batch.inputs.items()}
    return replace(batch, inputs=inputs, n_tokens=n_tokens)


def make(model: nn.Module, tokenizer: Any, plan: Plan, wanted: Collection[str]) -> Batch:
    """The batch, with an image and audio (seeded noise) where they are wanted.

    A modality that the processor cannot serve is left out with a note.
    """
    notes: list[str] = []
    length = tokens(model, plan)
    encoded, modalities = _encode(tokenizer, plan, wanted, notes, length)
    encoded, why = _usable(model, tokenizer, plan, encoded, length)
    if why:
        notes.append(why)
        modalities = ()
    return _finish(model, encoded, ("text", *modalities), tuple(notes))


def prompt(model: nn.Module, tokenizer: Any, plan: Plan) -> tuple[dict[str, torch.Tensor], str]:
    """Ids and mask of a question, and why it is no chat; the template opens the answer."""
    notes: list[str] = []
    encoded = _encode_text(tokenizer, plan, notes, tokens(model, plan))
    encoded, problem = _usable(model, tokenizer, plan, encoded, chat.QUESTION)
    device = _embedding(model).device
    mask = encoded.get("attention_mask", torch.ones_like(encoded["input_ids"]))
    inputs = {"input_ids": encoded["input_ids"].to(device), "attention_mask": mask.to(device)}
    return inputs, "; ".join((*notes, problem) if problem else notes)


def tokens(model: nn.Module, plan: Plan) -> int:
    """Length of the batch: the profile's, else `BOOT_MAX_SEQ_LENGTH`, and what the model can."""
    base: Any = base_model(model)
    text = base.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    length = min(plan.request.max_seq_length, plan.profile.step_tokens or sys.maxsize)
    return min(length, positions) if isinstance(positions, int) and positions > 0 else length


def _usable(
    model: nn.Module, tokenizer: Any, plan: Plan, encoded: dict[str, torch.Tensor], length: int
) -> tuple[dict[str, torch.Tensor], str]:
    """The same, or seeded ids with the reason where the model cannot take these."""
    rows = int(_embedding(model).shape[0])
    special = getattr(chat.text_tokenizer(tokenizer), "all_special_ids", ())
    why = _unusable(encoded["input_ids"], rows, frozenset(special))
    if not why:
        return encoded, ""
    seeded = seeded_ids(model, length, plan.request.lora_random_state)
    return seeded, f"the tokenizer's ids {why}: seeded ids instead"


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
    tokenizer: Any, plan: Plan, wanted: Collection[str], notes: list[str], length: int
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Token ids and, where asked for and possible, pixels or samples."""
    served: list[str] = []
    parts = {"image": "image_processor", "audio": "feature_extractor"}
    media = {name: part for name, part in parts.items() if name in wanted}
    if media:
        processor = _processor(tokenizer, plan)
        for name, part in media.items():
            if getattr(processor, part, None) is None:
                notes.append(f"no {name} in the batch: the model's processor has no {part}")
            else:
                served.append(name)
        if served:
            encoded, why = _encode_media(processor, plan, tuple(served), length)
            if encoded is not None:
                return encoded, tuple(served)
            notes.append(f"no {' or '.join(served)} in the batch: {why}")
    return _encode_text(tokenizer, plan, notes, length, n_words=length), ()


def _encode_media(
    processor: Any, plan: Plan, served: tuple[str, ...], length: int
) -> tuple[dict[str, torch.Tensor] | None, str]:
    """A question with media and an answer cut to the length; None with the reason.

    Media come before the answer, so that cutting cannot part them from their tokens: no less is
    kept than a short answer takes.
    """
    seed, limit = plan.request.lora_random_state, plan.request.max_seq_length

    def encode(n_words: int) -> tuple[dict[str, torch.Tensor] | None, str]:
        found, why = chat.chat(processor, seed, n_words=n_words, modalities=served, tokenize=True)
        return (None if found is None else _tensors(found)), why

    short, why = encode(_SHORT)
    if short is None:
        return None, why
    least = short["input_ids"].shape[1]
    if least > limit:
        return None, f"the processor needs more than {limit} tokens"
    if least >= length:
        return short, ""
    whole, why = encode(length)
    return (None, why) if whole is None else (_cut(whole, length), "")


def _cut(encoded: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """The first `length` tokens of everything that has a value for each token."""
    shape = encoded["input_ids"].shape
    return {
        name: value[:, :length] if value.shape == shape else value
        for name, value in encoded.items()
    }


def _encode_text(
    tokenizer: Any, plan: Plan, notes: list[str], length: int, *, n_words: int = 0
) -> dict[str, torch.Tensor]:
    """A chat, cut to the length, with an answer of `n_words`; plain words without a template."""
    seed = plan.request.lora_random_state
    said, why = chat.chat(tokenizer, seed, n_words=n_words)
    least = n_words or chat.QUESTION
    if said is not None and len(said) < least:
        said, why = None, "the chat template drops what is said"
    if said is None:
        notes.append(f"plain text, no chat: {why}")
    encoded = chat.text_tokenizer(tokenizer)(
        said or chat.text(least, seed),
        add_special_tokens=said is None,  # a template writes its own
        truncation=True,
        max_length=length,
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


def _tensors(encoded: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in encoded.items() if isinstance(value, torch.Tensor)}


def seeded_ids(model: nn.Module, length: int, seed: int) -> dict[str, torch.Tensor]:
    """Ids, on the host, none of which stands for media; the same for all models of a vocabulary."""
    base: Any = base_model(model)
    rows, special = _embedding(model).shape[0], _special_ids(base.config)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, rows, (_SPARE * length,), generator=generator).tolist()
    ids = torch.tensor([[each for each in drawn if each not in special][:length]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def accepted(model: nn.Module, encoded: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the forward pass takes of it; with token types, without which PaliGemma refuses."""
    base = base_model(model)  # its forward names the inputs, PEFT's takes anything
    names = inspect.signature(type(base).forward).parameters
    found = {name: value for name, value in encoded.items() if name in names}
    if "token_type_ids" in names:
        found.setdefault("token_type_ids", torch.zeros_like(encoded["input_ids"]))
    return found


def _finish(
    model: nn.Module,
    encoded: dict[str, torch.Tensor],
    modalities: tuple[str, ...],
    notes: tuple[str, ...],
) -> Batch:
    """Labels, the inputs that the model's forward takes, device and dtype."""
    base: Any = base_model(model)
    ids = encoded["input_ids"]
    labels = ids.clone()
    labels[encoded.get("attention_mask", torch.ones_like(ids)) == 0] = _IGNORED
    for special in _special_ids(base.config):
        labels[ids == special] = _IGNORED
    inputs = {**accepted(model, encoded), "labels": labels}
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
