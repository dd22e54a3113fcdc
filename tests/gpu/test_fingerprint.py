"""One device computes the same twice, in one process and in two; a flipped bit shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from app.checks import fingerprint
from app.facts.fingerprint import FingerprintFacts
from tests.gpu.models import Bare, plan_for
from tests.gpu.subject import ROOT, Subject
from tests.gpu.verdicts import amiss
from tests.tiny_models import Kind

pytestmark = pytest.mark.stack
_CHILD_S = 300.0


def take(loaded: Bare) -> FingerprintFacts:
    from app.engine import fingerprint as engine

    return engine.take(loaded.model, loaded.plan)


def taken(kind: Kind) -> FingerprintFacts:
    """In a process that does nothing else."""
    command = [sys.executable, "-m", "tests.gpu.once", kind]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=_CHILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return FingerprintFacts(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.usefixtures("free_device")
@pytest.mark.parametrize("kind", ["llama-nf4", "gemma3n-nf4"])
def test_two_processes_give_equal_fingerprints(
    kind: Kind, subject: Subject, told: list[str]
) -> None:
    first, second = taken(kind), taken(kind)
    assert amiss(fingerprint.CHECKS, first, plan_for(kind, subject.profile)) == {}
    assert first.logits == first.again != ""
    told.append(f"fingerprint {first.logits[:16]} of {first.key}; {first.seconds:.3f} s")
    assert replace(second, seconds=0.0) == replace(first, seconds=0.0)


def _layer(model: Any) -> Any:
    return model.model.layers[1].mlp.down_proj.weight


@pytest.mark.parametrize("part", ["packed", "absmax", "nested", "norm"])
def test_one_flipped_bit_on_the_device_is_another_digest(part: str, loaded: Bare) -> None:
    import torch

    weight = _layer(loaded.model)
    tensors = {
        "packed": weight,
        "absmax": weight.quant_state.absmax,
        "nested": weight.quant_state.state2.absmax,
        "norm": loaded.model.model.norm.weight,
    }
    before = take(loaded).weights
    raw = tensors[part].detach().view(-1).view(torch.uint8)
    raw[0] ^= 1
    flipped = take(loaded).weights
    raw[0] ^= 1
    assert flipped != before
    assert take(loaded).weights == before
