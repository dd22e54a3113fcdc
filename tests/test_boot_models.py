"""Whole boots of other models: the contract and the adapter rules hold with no special case.

Gemma 3n in both forms is what the product is for; each other model adds one thing: no place in
Unsloth's FORCE_FLOAT32 (Llama), tied embeddings and biases (Qwen2), fused projections (Phi-3), a
family of that list without towers (Gemma 3), fused experts (Qwen3-MoE), nothing packed at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.test_boot import Boot, agrees, boot
from tests.tiny_models import Kind, tiny_model

pytestmark = [pytest.mark.stack, pytest.mark.slow]

# Pairs on every projection of the language model and nowhere else: layers times projections.
TEXT = {"attention": 8, "mlp": 6}
GEMMA3N = {"attention": 12, "mlp": 12}  # four layers, the last two without k and v
MODELS: dict[Kind, Mapping[str, int]] = {
    "gemma3n-nf4": GEMMA3N,
    "gemma3n-bf16": GEMMA3N,
    "llama-nf4": TEXT,
    "qwen-nf4": TEXT,
    "gemma3-nf4": TEXT,
    "gemma3-bf16": TEXT,
    "phi3-nf4": {"attention": 4, "mlp": 4},
}


def booted(folder: Path, kind: Kind, **settings: str) -> Boot:
    """A whole boot that ends with 0 and leaves its report alone behind."""
    model = {"BOOT_BASE_MODEL_ID": str(tiny_model(kind)), "BOOT_MAX_SEQ_LENGTH": "256"}
    found = boot(folder, {"BOOT_HARDWARE": "cpu", **model, **settings})
    agrees(found, 0)
    assert found.report["rehearsal"] is True
    losses = found.report["numerics"]["steps"]["losses"]
    assert losses[-1] < losses[0]
    assert [path.name for path in folder.iterdir()] == ["reports"]
    return found


def n_packed(found: Boot) -> int:
    """Packed layers under the adapter."""
    return int(found.report["precision"]["observed"]["adapter"]["n_packed_layers"])


def odd(found: Boot) -> list[dict[str, Any]]:
    """The checks that neither passed nor were skipped."""
    return [check for check in found.report["checks"] if check["status"] not in ("pass", "skip")]


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_in_4_bits_passes_with_lora_on_every_projection(tmp_path: Path, kind: Kind) -> None:
    found = booted(tmp_path, kind)
    assert odd(found) == []
    assert found.report["verdict"] == "pass", found.err
    assert set(found.statuses.values()) <= {"pass", "skip"}
    assert found.report["adapter"]["components"] == {"language": MODELS[kind]}
    assert n_packed(found) >= sum(MODELS[kind].values())


def test_a_model_in_16_bits_passes_when_it_is_asked_for_so(tmp_path: Path) -> None:
    found = booted(tmp_path, "llama-bf16", BOOT_LOAD_IN_4BIT="false")
    assert odd(found) == []
    assert found.report["adapter"]["components"] == {"language": TEXT}
    assert n_packed(found) == 0


def test_of_fused_experts_a_rehearsal_only_says_that_it_cannot_adapt_them(tmp_path: Path) -> None:
    """Unsloth's CUDA path adapts them; its CPU backend does not."""
    found = booted(tmp_path, "qwen3moe-bf16")
    assert [check["id"] for check in odd(found)] == ["adapter.on_every_layer"]
    assert "model.layers.0.mlp.experts.gate_up_proj" in odd(found)[0]["reason"]
    assert found.report["adapter"]["components"] == {"language": {"attention": 8}}
