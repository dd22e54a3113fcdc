"""What is said in a batch or a prompt: seeded words, noise, and the model's own chat template."""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from app.facts.words import one_line

_IMAGE_SIDE = 224  # pixels; processors resize it to what the tower wants
_AUDIO_SECONDS, _AUDIO_RATE = 1, 16_000
_WORDS = (
    *("the", "a", "one", "each", "old", "new", "red", "small", "model", "river", "stone", "house"),
    *("reads", "writes", "carries", "opens", "counts", "follows", "under", "over", "and", "or"),
)
QUESTION = 16  # words; more than any template adds of its own to tell whether it drops them


def text_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer inside a processor, or what was handed in."""
    return getattr(tokenizer, "tokenizer", tokenizer)


def text(n_words: int, seed: int) -> str:
    """Seeded words; each is a token at least, so that as many words fill a length in tokens."""
    return " ".join(random.Random(seed).choices(_WORDS, k=n_words))  # noqa: S311 - not a secret


def chat(
    tokenizer: Any,
    seed: int,
    *,
    n_words: int = 0,
    modalities: tuple[str, ...] = (),
    tokenize: bool = False,
) -> tuple[Any, str]:
    """A question and an answer of `n_words` through the chat template, as text or as tensors.

    Without an answer the template opens one. None with the reason where it fails.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None, "the tokenizer has no chat template"
    parts = [*(_media(name, seed) for name in modalities), _said(text(QUESTION, seed))]
    turns = {"user": parts}
    if n_words:
        turns["assistant"] = [_said(text(n_words, seed + 1))]
    bare = text_tokenizer(tokenizer) is tokenizer  # its template expects plain strings
    messages = [
        {"role": role, "content": content[0]["text"] if bare else content}
        for role, content in turns.items()
    ]
    how = {"return_dict": True, "return_tensors": "pt"} if tokenize else {}
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=tokenize, add_generation_prompt=not n_words, **how
        ), ""
    except Exception as error:
        # A template is a program out of the checkpoint: it raises anything (OverflowError for a
        # range that is too long). What was raised elsewhere is no matter of the template's.
        if _in_template(error):
            return None, f"the chat template fails: {one_line(f'{type(error).__name__}: {error}')}"
        raise


def _said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


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
