"""Training steps on a fixed batch, as a trainer would run them: losses, gradients, time, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from app.engine import memory_use
from app.engine.arithmetic import Arithmetic, computing
from app.engine.batch import Batch
from app.engine.packed import base_model
from app.engine.preserve import adapter_off
from app.engine.recomputed import Runs
from app.engine.weights import to_host
from app.errors import BootError
from app.facts.adapter import Pair, needed
from app.facts.numerics import MemoryUse, PairGradient, StepFacts
from app.outcome import Fault
from app.plan import Plan

# Measured on the rehearsal model (docs/decisions.md): the rate that trainers use for LoRA, and
# three steps of it move the loss well beyond float32 noise without a step too far.
LEARNING_RATE = 2e-4
# The scaler starts at 2^16 and halves: a healthy model is in range long before 2^8.
_MAX_SKIPPED = 8

Matrices = Mapping[str, tuple[nn.Parameter, nn.Parameter]]  # A and B of each pair, by its name


@dataclass
class _Record:
    """What the steps measured, as they go."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)  # ids of matrices that got a gradient
    n_skipped: int = 0
    times: list[float] = field(default_factory=list)  # when each backward pass had ended


def take(
    model: Any,
    batch: Batch,
    how: Arithmetic,
    plan: Plan,
    matrices: Matrices,
    placed: Sequence[Pair],
) -> StepFacts:
    """`plan.steps` steps. The model is left trained, in training mode, and with gradients."""
    device = batch.inputs["labels"].device
    away = _out_of_reach(placed, batch.modalities)
    record = _Record()
    with _evaluating(model):
        base_loss = _base_loss(model, batch, how, plan)
        start_loss = _loss_value(model, batch, how, plan)
        again = None if start_loss == base_loss else _base_loss(model, batch, how, plan)
    model.train()
    _seed(plan)
    memory_use.begin(device)
    started = time.perf_counter()
    runs = Runs(model, matrices)
    with runs.watched():
        _train(model, batch, how, plan, matrices, record, runs)
    seconds = time.perf_counter() - started
    return StepFacts(
        learning_rate=LEARNING_RATE,
        arithmetic=how.reason,
        n_tokens=batch.n_tokens,
        n_supervised=batch.n_supervised,
        modalities=batch.modalities,
        notes=batch.notes,
        base_loss=base_loss,
        base_loss_again=again,
        start_loss=start_loss,
        losses=tuple(record.losses),
        gradient_norms=tuple(record.norms),
        bad_gradients=tuple(dict.fromkeys(record.bad)),
        pairs=tuple(
            _reached(pair, matrices[pair.name], record, away.get(pair.name, "")) for pair in placed
        ),
        n_skipped=record.n_skipped,
        seconds=seconds,
        tokens_per_s=_speed(record.times, batch.n_tokens, started),
        recomputed=runs.facts(),
        memory=MemoryUse(peak=memory_use.peak(device)),
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no graph: the two losses before training differ by the adapter alone."""
    model.eval()
    with torch.no_grad():
        yield


def _seed(plan: Plan) -> None:
    """Dropout masks repeat from boot to boot. The generators are restored afterwards."""
    torch.manual_seed(plan.request.lora_random_state)  # CUDA's generators too


def loss_of(model: Any, batch: Batch, how: Arithmetic) -> torch.Tensor:
    """The loss on the batch, with its graph where gradients are on."""
    with computing(how, batch.inputs["labels"].device):
        loss = model(**batch.inputs, use_cache=False).loss
    if loss is None:
        raise BootError(
            "the model's forward returns no loss for labels",
            fault=Fault.INTERNAL,
            expected="a causal language model that computes its loss",
            actual=type(model).__name__,
            next_step="check that the architecture is a causal or multimodal language model",
        )
    found: torch.Tensor = loss
    return found


def _loss_value(model: Any, batch: Batch, how: Arithmetic, plan: Plan) -> float:
    _seed(plan)
    return loss_of(model, batch, how).item()


def _base_loss(model: Any, batch: Batch, how: Arithmetic, plan: Plan) -> float:
    with adapter_off(model):
        return _loss_value(model, batch, how, plan)


def _train(
    model: Any,
    batch: Batch,
    how: Arithmetic,
    plan: Plan,
    matrices: Matrices,
    record: _Record,
    runs: Runs,
) -> None:
    """AdamW on the pairs. One wait for the device per step, and the scaler's own."""
    names = {
        id(matrix): f"{name}.lora_{letter}"
        for name, pair in matrices.items()
        for matrix, letter in zip(pair, "AB", strict=True)
    }
    parameters = [matrix for pair in matrices.values() for matrix in pair]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    device = batch.inputs["labels"].device
    scaler = torch.amp.GradScaler(device.type, enabled=how.scaler)
    if how.scaler:
        _attach(model, scaler)
    rounded = _rounded(matrices, how, plan)
    while len(record.losses) < plan.steps:
        optimizer.zero_grad(set_to_none=True)
        runs.in_backward = False
        loss = loss_of(model, batch, how)
        runs.in_backward = True
        if loss.requires_grad:  # else no pair is in the graph, and every gradient stays None
            scaler.scale(loss).backward()
            if how.scaler:
                scaler.unscale_(optimizer)
        held = [p for p in parameters if p.grad is not None]
        value, norm, *sizes = to_host([loss, *_norms(held)])
        record.times.append(time.perf_counter())
        bad = [p for p, size in zip(held, sizes, strict=True) if not isfinite(size)]
        if how.scaler and bad and record.n_skipped < _MAX_SKIPPED:
            record.n_skipped += 1  # the scaler looks for its scale: part of the method, no fault
        else:
            record.losses.append(value)
            record.norms.append(norm)
            record.bad += [names[id(parameter)] for parameter in bad]
            record.reached |= {
                id(p) for p, size in zip(held, sizes, strict=True) if size != 0 or id(p) in rounded
            }
        if held:
            scaler.step(optimizer)
            scaler.update()
    if how.scaler:
        _attach(model, None)


def _attach(model: Any, scaler: torch.amp.GradScaler | None) -> None:
    """As Unsloth's trainer does: its fused loss computes gradients in the forward pass, scaled."""
    if scaler is None:
        vars(base_model(model)).pop("accelerator_scaler", None)
    else:
        vars(base_model(model))["accelerator_scaler"] = scaler


def _rounded(matrices: Matrices, how: Arithmetic, plan: Plan) -> frozenset[int]:
    """Matrices whose gradient may be all zeros and still have come through.

    Float16 without a scaler rounds A's first gradients to zero: they are products with B, which is
    as small as one step. One that is None is no gradient there either.
    """
    if how.scaler or plan.profile.compute_dtype != "float16":
        return frozenset()
    return frozenset(id(a) for a, _ in matrices.values())


def _speed(times: Sequence[float], n_tokens: int, started: float) -> float | None:
    """Tokens per second from one backward pass to the next; the first step also compiles."""
    first, passes = (times[0], len(times) - 1) if len(times) > 1 else (started, len(times))
    taken = times[-1] - first if times else 0.0
    return passes * n_tokens / taken if taken else None


def _norms(parameters: list[nn.Parameter]) -> tuple[torch.Tensor, ...]:
    """The norm of all gradients together, then the largest magnitude of each, NaN included."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    largest = torch._foreach_norm(gradients, inf) if gradients else ()
    return (nn.utils.get_total_norm(gradients), *largest)


def _reached(
    pair: Pair, matrices: tuple[nn.Parameter, nn.Parameter], record: _Record, reason: str
) -> PairGradient:
    a, b = (id(matrix) in record.reached for matrix in matrices)
    return PairGradient(pair.name, a, b, reason)


def _out_of_reach(pairs: Sequence[Pair], modalities: Sequence[str]) -> dict[str, str]:
    """Pairs that the batch cannot reach, each with the reason."""
    missing = {name: each for name, each in needed(pairs).items() if each not in modalities}
    reasons = dict.fromkeys(
        (pair.name for pair in pairs if pair.kind == "experts"),
        "the router decides which experts a batch reaches",
    )
    return reasons | {name: f"the batch holds no {each}" for name, each in missing.items()}
