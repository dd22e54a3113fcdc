"""Facts of the two fingerprints: of the bytes that were loaded, and of what the device computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FingerprintFacts:
    """Digests are hexadecimal SHA-256.

    `weights` is over the base model in memory, `hashed` says of what and how. `logits` is over the
    base model's logits for seeded tokens; `key` names what it depends on (device model, stack,
    threads, arithmetic, tokens, weights), so that only equal keys are compared. `again` is the
    logits digest of a second pass, which a healthy device repeats. Both are empty where there are
    no logits, and `reason` says why. `stack` is a digest of versions.
    """

    weights: str
    hashed: str
    n_tensors: int
    n_bytes: int
    logits: str
    again: str
    key: str
    device: str
    stack: str
    threads: int
    n_tokens: int
    reason: str = ""
    seconds: float = 0.0
