"""Unsloth's CUDA branches on a machine without a GPU, for the dtypes they leave behind.

The one place that fakes a device. It stands in for the dtype half of a GPU boot: names, dtypes,
packing, LoRA's places. Kernels, memory, devices and a forward pass are not shown by it. What it
shows is measured by `tests.shadow_table`, in a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.profiles import GIB, PROFILES, Profile


def in_own_process(module: str, card: str) -> Any:
    """What `python -m tests.<module> CARD` writes as JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.{module}", card],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def import_as_on(name: str) -> Profile:
    """Import the stack as on that profile's card; the profile, for tensors in host memory."""
    from app.engine import environment, stack

    real = PROFILES[name]
    capability = real.compute_capability
    assert capability is not None
    profile = replace(real, device="cpu", environment=())
    environment.pin(profile)
    os.environ["UNSLOTH_ALLOW_CPU"] = "1"  # after the pinning, which clears it
    fake_device(capability)
    stack.import_stack(tolerate_torch=True)
    fake_flags(capability)
    # Unsloth collects garbage nine times a load, 0.3 s each over what its import left; frozen
    # objects are passed over, and a load takes 0.4 s instead of 3.
    gc.freeze()
    return profile


@contextlib.contextmanager
def asking(dtype: str | None) -> Iterator[None]:
    """Let Unsloth be asked for this dtype instead of our loader's; None leaves it the choice."""
    import torch
    from unsloth import FastModel

    usual = FastModel.from_pretrained
    given = None if dtype is None else getattr(torch, dtype)

    def asked(*arguments: Any, **options: Any) -> Any:
        return usual(*arguments, **{**options, "dtype": given})

    FastModel.from_pretrained = staticmethod(asked)
    try:
        yield
    finally:
        FastModel.from_pretrained = staticmethod(usual)


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
