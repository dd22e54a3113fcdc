"""Unsloth's CUDA branches on a machine without a GPU, for the dtypes they leave behind.

`python -m tests.shadow_cuda PROFILE FOLDER OUT` boots a model through our loader as on that
profile's card, before and after the adapter, and writes what `tests.judge_models.judged` says.
It stands in for the dtype half of a GPU boot: names, dtypes, packing, LoRA's places. Kernels,
memory, devices and a forward pass are not shown by it. The one place that fakes a device.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.profiles import GIB, PROFILES
from tests.judge_models import judged, plan_for


def fake_device(capability: tuple[int, int]) -> None:
    """Answer the probes that Unsloth's CUDA path asks while it loads; before its import."""
    import torch

    properties = SimpleNamespace(
        name="shadow", major=capability[0], minor=capability[1], total_memory=80 * GIB,
        multi_processor_count=80, is_integrated=0,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "get_device_properties": properties,
        "get_device_capability": capability,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (70 * GIB, 80 * GIB),
        "is_bf16_supported": capability[0] >= 8,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    torch._C._cuda_getCurrentRawStream = lambda device: 0  # noqa: ARG005 - its name there


def fake_flags(capability: tuple[int, int]) -> None:
    """What Unsloth derives at import from `torch.cuda.is_available`, which stays honest here."""
    flags = {"SUPPORTS_BFLOAT16": capability[0] >= 8, "ALLOW_BITSANDBYTES": True}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("unsloth", "unsloth_zoo"):
            for flag, value in flags.items():
                if flag in vars(module):
                    setattr(module, flag, value)


def main(profile_name: str, folder: Path, out: Path) -> None:
    """One boot, in a process of its own."""
    from app.engine import environment, loader, stack
    from app.probes.safetensors import read_checkpoint

    real = PROFILES[profile_name]
    capability = real.compute_capability
    assert capability is not None
    profile = replace(real, device="cpu", environment=())
    environment.pin(profile)
    os.environ["UNSLOTH_ALLOW_CPU"] = "1"
    fake_device(capability)
    stack.import_stack(tolerate_torch=True)
    fake_flags(capability)
    from unsloth import FastModel

    plan = plan_for(folder, profile)
    model = loader.load(plan, read_checkpoint(folder)).model
    found = {"load": judged(model, plan)}
    # Gradient checkpointing "unsloth" pins host memory, which needs a driver.
    model = FastModel.get_peft_model(
        model, r=4, lora_alpha=8, finetune_vision_layers=False, use_gradient_checkpointing=True
    )
    found["adapter"] = judged(model, plan)
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
