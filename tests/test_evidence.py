"""What a profile names as its evidence is a result of that hardware, and lies here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.profiles import PROFILES, Profile

ROOT = Path(__file__).resolve().parent.parent
NAMED = [profile for profile in PROFILES.values() if profile.evidence]


@pytest.mark.parametrize("profile", NAMED, ids=lambda profile: profile.name)
def test_the_evidence_of_a_profile_was_measured_on_its_hardware(profile: Profile) -> None:
    found = json.loads((ROOT / profile.evidence).read_text(encoding="utf-8"))
    assert found["hardware"] == profile.name
    assert found["device"] == profile.device or profile.needs_gpu
    assert all(each["error"] <= each["tolerance"] for each in found["nf4"]["products"])
    assert not any(each["n_different"] for each in found["nf4"]["kinds"])


def test_a_rehearsal_has_evidence() -> None:
    assert [profile.name for profile in NAMED if profile.rehearsal] == ["cpu"]


def test_no_card_has_been_measured_yet() -> None:
    """Whoever commits a card's result takes its profile out of here."""
    assert {p.name for p in PROFILES.values() if not p.evidence} == {"v100", "h100"}
