"""Whole boots on this card, as users start them; each loads through Unsloth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.config import ModelRequest
from app.exits import ExitCode
from app.plan import Plan
from app.probes.hub import resolve_model
from app.profiles import PROFILES
from tests.gpu import subject as subjects
from tests.gpu.conftest import GIVEN
from tests.gpu.models import TOKENS, folder_of
from tests.gpu.subject import Subject
from tests.test_boot import Boot, agrees, boot
from tests.tiny_models import Kind

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("free_device")]
# The stages before these look at the node, which may well have something to say.
PROOFS = ("stack", "load", "precision", "adapter", "numerics")
MODELS: tuple[Kind, ...] = ("gemma3n-nf4", "gemma3n-bf16", "llama-nf4", "qwen-bf16")


@pytest.fixture(autouse=True)
def _unsloth() -> None:
    why = subjects.why_no_boot()
    if why:
        pytest.skip(why)


def booted(folder: Path, subject: Subject, **settings: str) -> Boot:
    device = {name: GIVEN[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in GIVEN}
    return boot(folder, {"BOOT_HARDWARE": subject.hardware, **device, **settings})


@pytest.fixture(scope="module")
def seen() -> dict[Kind, Boot]:
    """The first boot of each model, which several tests look at."""
    return {}


@pytest.fixture
def first(kind: Kind, subject: Subject, seen: dict[Kind, Boot], tmp_path: Path) -> Boot:
    if kind not in seen:
        seen[kind] = of_tiny(tmp_path / "first", subject, kind)
    return seen[kind]


def of_tiny(folder: Path, subject: Subject, kind: Kind) -> Boot:
    model = {"BOOT_BASE_MODEL_ID": str(folder_of(kind)), "BOOT_MAX_SEQ_LENGTH": str(TOKENS)}
    return booted(folder, subject, **model)


def proven(found: Boot) -> dict[str, Any]:
    """The report's numbers, after a boot whose proofs all passed without a warning."""
    agrees(found, 0)
    amiss = [
        (each["id"], each["reason"])
        for each in found.report["checks"]
        if each["stage"] in PROOFS and each["status"] in ("warn", "fail", "error")
    ]
    assert amiss == []
    return dict(found.report["numerics"])


def in_short(steps: dict[str, Any]) -> str:
    return (
        f"{steps['arithmetic']}; {steps['tokens_per_s']:.0f} tokens/s of {steps['n_tokens']}; peak "
        f"{steps['peak_bytes']} bytes"
    )


@pytest.mark.parametrize("kind", MODELS)
class TestTinyModels:
    """Packed in the file and packed here, in and out of Unsloth's FORCE_FLOAT32."""

    def test_every_proof_passes_without_a_warning(
        self, first: Boot, kind: Kind, told: list[str]
    ) -> None:
        told.append(f"boot of {kind}: {in_short(proven(first)['steps'])}")

    def test_the_peak_is_within_the_forecast(self, first: Boot) -> None:
        steps = first.report["numerics"]["steps"]
        peak = steps["peak_bytes"]
        low, high = steps["forecast_low_bytes"], steps["forecast_high_bytes"]
        assert None not in (low, peak, high)
        assert low <= peak <= high

    def test_another_boot_has_the_same_fingerprints(
        self, first: Boot, kind: Kind, subject: Subject, tmp_path: Path
    ) -> None:
        here = proven(first)["fingerprint"]
        there = proven(of_tiny(tmp_path / "again", subject, kind))["fingerprint"]
        for name in ("weights", "logits", "key"):
            assert here[name] == there[name]


def test_the_other_cards_profile_is_refused(subject: Subject, tmp_path: Path) -> None:
    if not subject.profile.needs_gpu:
        pytest.skip("there is no card that could be of another class")
    for profile in PROFILES.values():
        if profile.needs_gpu and profile != subject.profile:
            other = replace(subject, hardware=profile.name)
            agrees(booted(tmp_path / profile.name, other), ExitCode.HW_MISMATCH)


def test_a_real_model_that_lies_here_boots(
    subject: Subject, tmp_path: Path, told: list[str]
) -> None:
    """BOOT_BASE_MODEL_ID names a folder, or a repository that is whole in the hub's cache.

    The caller's other settings count too, but for where the report goes.
    """
    if "BOOT_BASE_MODEL_ID" not in GIVEN:
        pytest.skip("BOOT_BASE_MODEL_ID names no model")
    wanted = ModelRequest(base_model_id=GIVEN["BOOT_BASE_MODEL_ID"])
    plan = Plan(subject.profile, wanted, tmp_path, GIVEN.get("BOOT_REVISION"), download="never")
    found = resolve_model(plan, GIVEN)
    if found.resolved is None:
        pytest.skip(found.failure.reason if found.failure else "the model is not whole")
    ended = booted(tmp_path, subject, **{**GIVEN, "BOOT_DOWNLOAD": "never"})
    told.append(f"boot of {found.resolved.model_id}: {in_short(proven(ended)['steps'])}")
