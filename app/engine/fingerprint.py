"""Takes two fingerprints: of the weights in memory, and of the logits that they give here.

The first is for "are these the bytes", the second for "does this device compute as its peers do":
of single flipped bits in packed weights, a third does not show in logits. The weights are summed in
memory whatever hash of their files is known: it costs one pass at memory bandwidth, and shows what
went wrong behind the files too, on the way to the device.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.engine.arithmetic import Arithmetic, arithmetic, computing, stepping
from app.engine.batch import accepted, seeded_ids
from app.engine.preserve import adapter_off, preserved
from app.engine.weights import digest
from app.errors import BootError
from app.facts.fingerprint import FingerprintFacts
from app.facts.words import one_line
from app.plan import Plan

_TOKENS, _SEED = 32, 3407
# What decides, beside the device, by which kernels logits are computed.
_PACKAGES = (
    *("torch", "triton", "bitsandbytes", "transformers", "unsloth", "unsloth_zoo", "peft"),
    "xformers",
)
_SHORT = 16  # digits of a digest that is part of the key


@dataclass
class _Passes:
    """Digests of the logits of two equal passes, and how these were computed."""

    logits: str = ""
    again: str = ""
    n_tokens: int = 0
    threads: int = 0
    how: str = ""
    reason: str = ""


def take(model: nn.Module, plan: Plan) -> FingerprintFacts:
    """Both fingerprints of the base model, which is left as it was."""
    started = time.perf_counter()
    weights, n_tensors, n_bytes = digest(model)
    passes = _passes(model, plan)
    device, stack = _device(plan), _stack()
    return FingerprintFacts(
        weights=weights,
        hashed=_hashed(n_tensors, n_bytes, plan),
        n_tensors=n_tensors,
        n_bytes=n_bytes,
        logits=passes.logits,
        again=passes.again,
        key=f"{device}; stack {stack}; threads {passes.threads}; {plan.profile.compute_dtype}, "
        f"{passes.how}; {passes.n_tokens} tokens of seed {_SEED}; weights {weights[:_SHORT]}",
        device=device,
        stack=stack,
        threads=passes.threads,
        n_tokens=passes.n_tokens,
        reason=passes.reason,
        seconds=time.perf_counter() - started,
    )


def _hashed(n_tensors: int, n_bytes: int, plan: Plan) -> str:
    found = plan.resolved
    source = (
        f", loaded from {found.model_id} at {found.revision}" if found and found.revision else ""
    )
    return (
        f"{n_tensors} tensors, {n_bytes} bytes in memory{source}: name, dtype, shape and a 64-bit "
        "sum of the bytes of each, under one SHA-256"
    )


def _passes(model: Any, plan: Plan) -> _Passes:
    """Two passes without the adapter, on one thread: sums over many values depend on their number.

    A model that does not answer to ids alone (an encoder with a decoder) has no logits here.
    """
    found = _Passes()
    with _one_thread(), preserved(model, []):
        found.threads = torch.get_num_threads()
        model.eval()
        try:
            with stepping():
                how = arithmetic(model, plan)
                inputs = _inputs(model)
                found.how, found.n_tokens = how.reason, inputs["input_ids"].numel()
                first = _logits(model, inputs, how)
                if isinstance(first, torch.Tensor):
                    found.logits = _sha256(first)
                    found.again = _sha256(_logits(model, inputs, how))
                else:  # Unsloth puts a placeholder there where it saves the memory
                    found.reason = f"the model returns no logits but {type(first).__name__}"
        except BootError as error:  # `stepping`: it is the model's own code that refuses
            found.reason = one_line(f"{type(error.__cause__).__name__}: {error.__cause__}")
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _inputs(model: Any) -> dict[str, torch.Tensor]:
    device = model.get_input_embeddings().weight.device
    inputs = accepted(model, seeded_ids(model, _TOKENS, _SEED))
    return {name: value.to(device) for name, value in inputs.items()}


@torch.no_grad()
def _logits(model: Any, inputs: dict[str, torch.Tensor], how: Arithmetic) -> Any:
    """Of every position, without the adapter.

    Uncompiled: which kernel a compiler takes depends on timings, and on what ran before.
    """
    eager = torch.compiler.set_stance("force_eager")
    with eager, adapter_off(model), computing(how, inputs["input_ids"].device):
        return getattr(model(**inputs, use_cache=False), "logits", None)


def _sha256(logits: torch.Tensor) -> str:
    """Of the values as float32: exact for every dtype that a profile computes in."""
    values = logits.to("cpu", torch.float32).contiguous().reshape(-1)
    return hashlib.sha256(values.numpy().data).hexdigest()


def _device(plan: Plan) -> str:
    """The model of the device, and what decides beside it which kernels are taken."""
    if plan.profile.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()} ({major}.{minor})"
    return f"{_processor()} ({torch.backends.cpu.get_cpu_capability()})"


def _processor() -> str:
    """The kernel's name of the processor; the architecture where it has none (ARM)."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, os.uname().machine)


def _stack() -> str:
    """A short digest of the versions of all that computes."""
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    versions += [f"cuda {torch.version.cuda}", f"cudnn {cudnn}"]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:_SHORT]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
