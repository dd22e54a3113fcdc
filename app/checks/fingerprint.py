"""Judges of the fingerprints; equality between boots is for whoever has several reports."""

from __future__ import annotations

from app import sections_numerics as sections
from app.checks import Check
from app.checks._evidence import unlike
from app.facts.fingerprint import FingerprintFacts
from app.outcome import Fault, Finding, passed, skipped
from app.plan import Plan

_SHOWN = 16  # digits of a digest: enough to search a fleet's logs for


def fingerprint(facts: FingerprintFacts, plan: Plan) -> Finding:
    """Both digests, for whoever compares boots; there is nothing to compare with in one."""
    del plan
    logits = f"logits {facts.logits[:_SHOWN]}" if facts.logits else f"no logits: {facts.reason}"
    return passed(
        f"weights {facts.weights[:_SHOWN]}, {logits}",
        expected="the same logits in every boot of the same key",
        actual=facts.key,
    )


def repeatable(facts: FingerprintFacts, plan: Plan) -> Finding:
    """The same pass twice, on the same device in the same process."""
    if facts.reason:
        return skipped(f"no logits to repeat: {facts.reason}")
    if facts.logits == facts.again:
        return passed("two equal passes give the same logits, bit for bit")
    return unlike(
        plan,
        "two equal passes give different logits: the device does not compute the same thing twice",
        expected=facts.logits[:_SHOWN],
        actual=facts.again[:_SHOWN],
        next_step="try the same boot on another node of this kind: where two passes agree there, "
        "take this node out of service",
    )


def section(facts: FingerprintFacts) -> sections.Fingerprint:
    """Both digests, as the report shows them."""
    return sections.Fingerprint(
        weights=facts.weights,
        hashed=facts.hashed,
        n_tensors=facts.n_tensors,
        n_bytes=facts.n_bytes,
        logits=facts.logits,
        key=facts.key,
        device=facts.device,
        stack=facts.stack,
        threads=facts.threads,
        n_tokens=facts.n_tokens,
        seconds=facts.seconds,
    )


CHECKS: tuple[Check[FingerprintFacts], ...] = (
    Check(
        "numerics.fingerprint",
        Fault.NUMERICS,
        "digests of the weights in memory and of logits for seeded tokens",
        fingerprint,
        cause="never fails by itself: a boot of an equal key with other logits is the one to look "
        "at, and other weights are other bytes",
        fix="compare numerics.fingerprint of several reports",
    ),
    Check(
        "numerics.repeatable",
        Fault.NUMERICS,
        "logits for seeded tokens, computed twice",
        repeatable,
        cause="a device that computes wrongly now and then, or a kernel whose order of addition is "
        "left to chance",
        fix="try the same boot on another node of this kind; where two passes agree there, take "
        "this node out of service",
    ),
)
