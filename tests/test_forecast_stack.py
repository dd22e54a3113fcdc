"""Facts about the forecast against real models: loaded here, and Gemma 3n's real sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.facts.checkpoint import CheckpointFacts
from app.facts.forecast import ForecastFacts, make_forecast
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.host import MemoryFacts
from app.plan import Plan
from app.probes.safetensors import read_headers
from app.profiles import GIB, H100, V100, Profile
from tests.test_forecast import DEVICE_MEMORY, HOST, WEIGHTS, header, in_4_bits, plan_for, sums
from tests.tiny_models import KINDS, Kind, tiny_model

pytestmark = pytest.mark.stack

_GEMMA = """\
import json
import torch
from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration, Gemma3nTextConfig

# E2B's own numbers; the rest is the default, which is E4B's.
text = Gemma3nTextConfig(
    num_hidden_layers=30, intermediate_size=8192, num_kv_shared_layers=10,
    layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 6,
)
config = Gemma3nConfig(text_config=text)
with torch.device("meta"):
    model = Gemma3nForConditionalGeneration(config)
shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
del shapes["lm_head.weight"]  # tied
print(json.dumps({"shapes": shapes, "config": json.loads(config.to_json_string(False))}))
"""


@pytest.mark.parametrize(
    ("kind", "load_in_4bit"),
    # A packed checkpoint stays packed, and a boot that asks for 16 bits is failed for it.
    [(kind, asked) for kind in KINDS for asked in (True, False) if asked or "nf4" not in kind],
)
def test_weights_and_adapter_are_forecast_to_the_byte(kind: Kind, load_in_4bit: bool) -> None:
    """On a CPU the loader leaves no choice: what the census counts is what was forecast."""
    from bench.forecast import counted
    from tests import stack_models

    plan = stack_models.plan_for(kind, load_in_4bit=load_in_4bit)
    facts = _forecast(plan, tiny_model(kind))
    model, _ = stack_models.adapted(plan)
    found = counted(model)
    lora = found.pop("lora")
    assert sums(facts, *WEIGHTS) == (found.total(), found.total())
    assert sums(facts, "LoRA") == (lora, lora)


def _forecast(plan: Plan, folder: Path) -> ForecastFacts:
    from app.probes.safetensors import read_checkpoint

    return make_forecast(plan, read_checkpoint(folder), None, HOST)


@pytest.fixture(scope="module")
def gemma() -> CheckpointFacts:
    """The headers that Gemma 3n E2B has in 4 bits: 190 projections packed, the rest in 16 bits."""
    done = subprocess.run(
        [sys.executable, "-c", _GEMMA], capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(done.stdout.splitlines()[-1])
    tensors = [header(name, *shape) for name, shape in found["shapes"].items()]
    return in_4_bits(tensors, **found["config"])


@pytest.mark.parametrize(("profile", "total"), [(V100, 16), (H100, 80)])
def test_gemma_3n_e2b_fits_both_cards(gemma: CheckpointFacts, profile: Profile, total: int) -> None:
    device = DeviceFacts(
        0, profile.title, "GPU-1", profile.compute_capability or (0, 0),
        total * GIB, free_bytes=total * GIB - 512 * 2**20,
    )  # fmt: skip
    gpu = GpuFacts(init_error=0, n_devices=1, devices=(device,))
    plan = plan_for(profile)
    facts = make_forecast(plan, gemma, gpu, HOST)
    low, high = sums(facts, *WEIGHTS)
    assert 7.5 * GIB < low <= high < 8 * GIB
    assert sums(facts, "LoRA")[0] == 81_264_640  # 20.3 million scalars of rank 16, in float32
    assert DEVICE_MEMORY(facts, plan).status == "pass"


def test_gemma_3n_e2b_does_not_fit_half_a_card(gemma: CheckpointFacts) -> None:
    device = DeviceFacts(0, "NVIDIA V100", "GPU-1", (7, 0), 7 * GIB, free_bytes=6 * GIB)
    plan = plan_for(V100)
    gpu = GpuFacts(init_error=0, n_devices=1, devices=(device,))
    finding = DEVICE_MEMORY(make_forecast(plan, gemma, gpu, HOST), plan)
    assert finding.status == "fail"
    assert "7.0 GiB in all" in finding.reason


def test_the_tiny_models_are_read_as_the_engine_reads_them() -> None:
    """Headers alone, without what the small tensors hold, give a forecast too."""
    facts = make_forecast(
        plan_for(), read_headers(tiny_model("llama-nf4")), None, MemoryFacts(GIB, GIB)
    )
    assert not facts.problem
    assert facts.sure("device") > 0
