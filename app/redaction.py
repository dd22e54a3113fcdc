"""Keeps secrets out of every output, whichever way they got into a text. The one place for it.

Two nets: secrets that this process knows (`app.known_secrets`), in every form that text gives them,
and what looks like one (`app.secret_shapes`). Not found: a secret in pieces shorter than `PART`, in
other encodings, or unknown and without a form of its own.

A leaf: imports only these two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.known_secrets import PART, SECRETS_DIR, SHORTEST, forms, known_secrets, parts
from app.secret_shapes import without_shapes

_HIDDEN = "***"
# Hiding can bring together what then is a secret again. Twice is more than any real text needs.
_ROUNDS = 8
# Of a report the same few thousand strings are written some thirty times.
_REMEMBERED = 8192


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given secrets and without anything that looks like one."""
    return _Net(one for one in secrets if len(one) >= SHORTEST).cleaned(text)


class Redactor:
    """Knows the secrets of this process: of its environment and of its secret files."""

    def __init__(self, environ: Mapping[str, str], folder: Path | None = SECRETS_DIR) -> None:
        self._net = _Net(known_secrets(environ, folder))
        self._remembered = lru_cache(_REMEMBERED)(self._net.cleaned)

    def text(self, text: str) -> str:
        """The text without secrets and without what looks like one."""
        return self._net.cleaned(text)

    def data(self, value: Any) -> Any:  # noqa: ANN401 - any JSON-like value in, the same shape out
        """The same for every string inside a JSON-like value, keys too."""
        if isinstance(value, str):
            return self._remembered(value)
        if isinstance(value, dict):
            return {self.data(key): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value


class _Net:
    """What to look for, made ready."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = set(secrets)
        self._parts = sorted(parts(known))
        # Where no part of a secret is, the secret is not.
        by_part = {secret for secret, _, _ in self._parts}
        found = {one for secret in known for one in forms(secret) if len(one) >= SHORTEST}
        # Longest first: one secret may be a part of another.
        self._whole = sorted(found - by_part, key=lambda one: (-len(one), one))
        self._parts.sort(key=lambda one: -len(one[0]))

    def cleaned(self, text: str) -> str:
        """The text with nothing left to hide."""
        for _ in range(_ROUNDS):
            found = self._once(text)
            if found == text:
                break
            text = found
        return text

    def _once(self, text: str) -> str:
        if len(text) < SHORTEST:
            return text
        # Known ones before shapes: a shape may cover only the middle of a secret.
        return without_shapes(self._without_known(text), _HIDDEN)

    def _without_known(self, text: str) -> str:
        for secret in self._whole:
            text = _without(text, secret)
        there = [one for one in self._parts if one[1] in text or one[2] in text]
        for secret, _, _ in there:
            text = _without(text, secret)
        for secret, first, last in there:
            text = _without_heads(text, secret, first)
            text = _without_heads(text[::-1], secret[::-1], last[::-1])[::-1]
        return text


def _without(text: str, secret: str) -> str:
    while secret in text:
        text = text.replace(secret, _HIDDEN)
    return text


def _without_heads(text: str, secret: str, first: str) -> str:
    """The text without beginnings of the secret: something has cut it there."""
    done, at = [], text.find(first)
    begin = 0
    while at >= 0:
        end = at + PART
        while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
            end += 1
        done += [text[begin:at], _HIDDEN]
        begin, at = end, text.find(first, end)
    return "".join((*done, text[begin:]))
