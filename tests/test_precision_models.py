"""The precision contract on the real stack: what is healthy passes, what is broken is named.

The models are judged in one child process (`tests.judge_models`). What Unsloth's CUDA branches make
of them is in `tests.test_shadow_stack`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import broken_files
from tests.broken_models import LAYER, OTHER_LAYER

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
GOOD = ("pass", "skip")
NOT_CHECKS = ("offenders", "packed", "fates", "first", "raised")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Judged in a process of its own."""
    out = tmp_path_factory.mktemp("models") / "verdicts.json"
    command = [sys.executable, "-m", "tests.judge_models", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def wrong(verdicts: dict[str, Any]) -> dict[str, list[str]]:
    """The checks that neither passed nor were skipped."""
    return {
        name: said
        for name, said in verdicts.items()
        if name not in NOT_CHECKS and said[0] not in GOOD
    }


HEALTHY = (
    *("gemma3n-nf4", "gemma3n-bf16", "llama-nf4", "llama-bf16", "qwen-nf4", "qwen-bf16"),
    *("16 bits", "adapter", "adapter on audio", "gemma3", "gemma3 renamed", "qwen3 moe"),
    *("qwen2 vl",),
    *("base names", "keys of KV-shared layers", "suffix"),
)


@pytest.mark.parametrize("case", HEALTHY)
def test_healthy_models_pass_every_check(cases: dict[str, Any], case: str) -> None:
    verdicts = cases[f"cpu: {case}"]
    assert wrong(verdicts) == {}
    assert verdicts["offenders"] == []
    assert "precision.packed_layers" in verdicts
    assert bool(verdicts["packed"]) == (case not in ("16 bits", "base names", "suffix"))


def test_the_stack_of_this_machine_is_fit_for_a_rehearsal(cases: dict[str, Any]) -> None:
    assert wrong(cases["stack"]) == {}
    assert cases["stack"]["stack.device_type"][0] == "pass"


@pytest.mark.parametrize("case", ["gemma3n-bf16", "gemma3"])
def test_on_the_fly_only_the_language_models_projections_are_packed(
    cases: dict[str, Any], case: str
) -> None:
    packed = cases[f"cpu: {case}"]["packed"]
    assert {name.split(".layers.")[0] for name in packed} == {"model.language_model"}
    assert {name.split(".")[4] for name in packed} == {"self_attn", "mlp"}


def test_quantised_on_the_fly_a_gemma3n_trains(cases: dict[str, Any]) -> None:
    """Unsloth's own list lets it pack AltUp's coefficients, and training dies on them."""
    assert cases["trainable"] == {"loss": ["True"]}


@pytest.mark.parametrize("case", ["gemma3n-nf4", "gemma3 renamed", "llama-nf4"])
def test_every_packed_weight_is_followed_to_its_module(cases: dict[str, Any], case: str) -> None:
    assert cases[f"cpu: {case}"]["fates"] == ["linear4bit"]


def test_keys_that_the_model_ignores_are_no_offence(cases: dict[str, Any]) -> None:
    assert cases["cpu: keys of KV-shared layers"]["fates"] == ["ignored", "linear4bit"]


@pytest.mark.parametrize(
    ("case", "check", "named"),
    [
        ("missing weight", "load.weights_from_checkpoint", broken_files.WEIGHT),
        ("another shape", "raised", broken_files.WEIGHT),
        ("transposed", "raised", broken_files.WEIGHT),
        ("huge", "raised", "10000000) in the model"),
        ("fewer layers", "load.nothing_left_over", "model.layers.1."),
        ("unknown activation", "raised", "config.json"),
        ("truncated", "raised", "safetensors"),
        ("stripped quant state", "raised", broken_files.PACKED_WEIGHT),
    ],
)
def test_a_checkpoint_that_does_not_fill_the_model_is_invalid_data(
    cases: dict[str, Any], case: str, check: str, named: str
) -> None:
    status, fault, reason = cases[f"cpu: {case}"][check]
    assert (status, fault) == ("fail", "data_invalid")
    assert named in reason


def test_a_family_that_no_auto_class_of_the_cpu_backend_knows_is_a_wrong_choice(
    cases: dict[str, Any],
) -> None:
    status, fault, reason = cases["cpu: encoder and decoder"]["raised"]
    assert (status, fault) == ("fail", "config")
    assert "CPU backend cannot load t5" in reason


def test_a_tensor_without_a_place_only_warns(cases: dict[str, Any]) -> None:
    said = wrong(cases["cpu: left over"])
    assert list(said) == ["load.nothing_left_over"]
    assert said["load.nothing_left_over"][0] == "warn"


PROJECTION = "model.language_model.layers.0.self_attn.q_proj"
BROKEN = [
    ("cpu: 4 bits where none are asked for", "packed_layers", PROJECTION),
    ("cpu: no module", "packed_layers", f"{broken_files.NO_MODULE}weight"),
    ("cpu: packed but skipped", "packed_layers", f"{OTHER_LAYER}.weight"),
    ("v100: buffer", "forbidden_dtypes", "rotary_emb"),
    ("v100: quant state dtype", "quant_dtypes", LAYER),
    ("v100: no quant state", "quant_states", LAYER),
    ("v100: meta", "devices", "model.language_model.norm.weight"),
    ("v100: float64", "wide_dtypes", "model.language_model.norm.weight"),
    ("v100: wrong values", "packed_layers", f"{OTHER_LAYER}.weight"),
    ("v100: fresh weight", "packed_layers", f"{OTHER_LAYER}.weight"),
    ("v100: projection dequantised", "packed_layers", f"{LAYER}.weight"),
    ("v100: plain transformers", "quant_dtypes", PROJECTION),
    ("v100: 4-bit off", "packed_layers", PROJECTION),
    ("v100: no parameters", "has_parameters", "model"),
]


@pytest.mark.parametrize(("case", "check", "named"), BROKEN, ids=[each[0] for each in BROKEN])
def test_broken_models_are_named_though_their_first_parameter_is_right(
    cases: dict[str, Any], case: str, check: str, named: str
) -> None:
    verdicts = cases[case]
    status, fault, reason = verdicts[f"precision.{check}"]
    assert (status, fault) == ("fail", "precision")
    assert named in reason
    assert any(named in name for name in verdicts["offenders"])
    assert verdicts.get("first", ["torch.float16"]) == ["torch.float16"]


@pytest.mark.parametrize("case", ["healthy", "dequantised"])
def test_what_unsloth_makes_on_a_v100_passes(cases: dict[str, Any], case: str) -> None:
    assert wrong(cases[f"v100: {case}"]) == {}
