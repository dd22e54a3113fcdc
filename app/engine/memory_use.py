"""Memory of the device: the most while something ran, and what is held now. All in bytes."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from app.facts.checkpoint import CheckpointFacts
from app.facts.forecast import make_forecast
from app.facts.host import MemoryFacts
from app.facts.numerics import MemoryUse
from app.plan import Plan

# What may stay on a GPU after its first use: cuBLAS's workspaces (96 MiB with cuBLASLt's on
# Hopper), and Unsloth's two buffers for hidden states that it moves to the host.
_WORKSPACE = 256 * 1024**2
# Unsloth keeps one buffer for an unpacked weight (kernels/utils.py: WEIGHT_BUFFERS), bitsandbytes'
# product may hold another one.
_UNPACKED = 2


def begin(device: torch.device) -> None:
    """The start of what `peak` tells; a process on a CPU keeps the peak that it has."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """The most since `begin`, or of the process; None where the system does not tell.

    On a GPU that is what torch's allocator reserved and what is not its: the context and other
    libraries', and also what other processes hold.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        outside = total - free - torch.cuda.memory_reserved(device)
        return torch.cuda.max_memory_reserved(device) + max(outside, 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 or None


def held(device: torch.device) -> int:
    """What torch's tensors hold on a GPU now, its free blocks given back; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def workspace(model: nn.Module, plan: Plan) -> int:
    """What libraries may keep on a GPU from their first use on."""
    width: int = getattr(torch, plan.profile.compute_dtype).itemsize
    states: list[Any] = [getattr(p, "quant_state", None) for p in model.parameters()]
    shapes = [state.shape for state in states if getattr(state, "shape", None) is not None]
    largest = max((torch.Size(shape).numel() for shape in shapes), default=0)
    return _WORKSPACE + _UNPACKED * largest * width


def against_forecast(
    used: MemoryUse, plan: Plan, checkpoint: CheckpointFacts | None, n_tokens: int
) -> MemoryUse:
    """With the bounds that the preflight would have given for a batch of this length."""
    if checkpoint is None:
        return replace(used, no_forecast="the headers of the checkpoint were not read")
    if checkpoint.packed and not checkpoint.quant.states:
        return replace(used, no_forecast="the shapes of the packed weights were not read")
    asked = replace(plan.request, max_seq_length=n_tokens)
    found = make_forecast(replace(plan, request=asked), checkpoint, None, MemoryFacts())
    if found.problem or found.no_training:
        return replace(used, no_forecast=found.problem or found.no_training)
    return replace(used, low=found.low("device"), high=found.high("device"))
