"""Real training steps on a fixed batch, and a model that is afterwards as it was before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import nn

from app.engine.adapter import gather, lora_parameters
from app.engine.arithmetic import Arithmetic, arithmetic, stepping
from app.engine.batch import Batch, make
from app.engine.preserve import preserved
from app.engine.weights import checksums, scan, to_host
from app.errors import BootError
from app.facts.adapter import ComponentT, Pair
from app.facts.checkpoint import CheckpointFacts
from app.facts.numerics import NumericsFacts, PairGradient, StepFacts
from app.outcome import Fault
from app.plan import Plan

# Measured on the rehearsal model (docs/decisions.md): the rate that trainers use for LoRA, and
# three steps of it move the loss well beyond float32 noise without a step too far.
LEARNING_RATE = 2e-4
# The scaler starts at 2^16 and halves: a healthy model is in range long before 2^8.
_MAX_SKIPPED = 8


@dataclass
class _Record:
    """What the steps measured, as they go."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)  # ids of matrices that got a gradient
    n_skipped: int = 0


def run(
    model: nn.Module, tokenizer: Any, plan: Plan, checkpoint: CheckpointFacts | None = None
) -> NumericsFacts:
    """Scans the weights, then trains `plan.steps` steps and takes them back."""
    weights = scan(model, checkpoint)
    if weights.on_meta:
        return NumericsFacts(weights, None, f"tensors without data: {len(weights.on_meta)}")
    if weights.not_finite:  # every number of a step would be as broken, and blame something else
        return NumericsFacts(weights, None, "weights are not finite, and with them no step is")
    if not lora_parameters(model):
        return NumericsFacts(weights, None, "the model has no LoRA pair to train")
    try:
        return NumericsFacts(weights, _try_steps(model, tokenizer, plan))
    except torch.OutOfMemoryError as error:
        raise BootError(
            "a training step of this model does not fit into the device's memory",
            fault=Fault.HARDWARE_MISMATCH,
            actual=str(error).splitlines()[0],
            source="one batch of at most 256 tokens with gradient checkpointing as asked",
            next_step="use a device with more memory, or free this one",
        ) from error


def _try_steps(model: Any, tokenizer: Any, plan: Plan) -> StepFacts:
    """The steps, and what surrounds them; the clock runs for the steps alone."""
    how = arithmetic(model, plan)
    matrices = lora_parameters(model)
    trained = [matrix for pair in matrices.values() for matrix in pair]
    placed = gather(model).pairs
    batch = make(model, tokenizer, plan, _inputs_of(placed))
    away = _out_of_reach(placed, batch.modalities)
    skip = frozenset(map(id, trained))
    record = _Record()
    with preserved(model, trained):
        before = checksums(model, skip)
        with stepping():
            with _evaluating(model):
                with model.disable_adapter():
                    base_loss = _loss_value(model, batch, how, plan)
                start_loss = _loss_value(model, batch, how, plan)
            model.train()
            _seed(plan)
            steps_started = time.perf_counter()
            _train(model, batch, how, plan, matrices, record)
            steps_seconds = time.perf_counter() - steps_started
        after = checksums(model, skip)
    if batch.inputs["labels"].is_cuda:
        torch.cuda.empty_cache()
    return StepFacts(
        learning_rate=LEARNING_RATE,
        arithmetic=how.reason,
        compute_dtype=plan.profile.compute_dtype,
        n_tokens=batch.n_tokens,
        n_supervised=batch.n_supervised,
        modalities=batch.modalities,
        notes=batch.notes,
        base_loss=base_loss,
        start_loss=start_loss,
        losses=tuple(record.losses),
        gradient_norms=tuple(record.norms),
        bad_gradients=tuple(dict.fromkeys(record.bad)),
        pairs=tuple(
            _reached(pair, matrices[pair.name], record, away.get(pair.name, "")) for pair in placed
        ),
        n_skipped=record.n_skipped,
        moved=tuple(name for name, total in after.items() if before.get(name) != total),
        n_watched=len(after),
        seconds=steps_seconds,
    )


def _inputs_of(pairs: Sequence[Pair]) -> set[ComponentT]:
    """The parts of the model that the batch should reach.

    Layers that attend to an image belong to language and are passed over without one (Mllama).
    """
    crossing: set[ComponentT] = (
        {"vision"} if any(".cross_attn." in pair.name for pair in pairs) else set()
    )
    return {pair.component for pair in pairs} | crossing


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no graph: the two losses before training differ by the adapter alone."""
    model.eval()
    with torch.no_grad():
        yield


def _seed(plan: Plan) -> None:
    """Dropout masks repeat from boot to boot. The generators are restored afterwards."""
    torch.manual_seed(plan.request.lora_random_state)  # CUDA's generators too


def _loss(model: Any, batch: Batch, how: Arithmetic) -> torch.Tensor:
    device = batch.inputs["labels"].device
    cast = torch.autocast(device.type, dtype=how.autocast) if how.autocast else nullcontext()
    with cast:
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
    return _loss(model, batch, how).item()


def _train(
    model: Any,
    batch: Batch,
    how: Arithmetic,
    plan: Plan,
    matrices: dict[str, tuple[nn.Parameter, nn.Parameter]],
    record: _Record,
) -> None:
    """AdamW on the pairs; one wait for the device per step."""
    names = {
        id(matrix): f"{name}.lora_{letter}"
        for name, pair in matrices.items()
        for matrix, letter in zip(pair, "AB", strict=True)
    }
    parameters = [matrix for pair in matrices.values() for matrix in pair]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    device = batch.inputs["labels"].device
    scaler = torch.amp.GradScaler(device.type, enabled=how.scaler)
    while len(record.losses) < plan.steps:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(model, batch, how)
        if loss.requires_grad:  # else no pair is in the graph, and every gradient stays None
            scaler.scale(loss).backward()
            if how.scaler:
                scaler.unscale_(optimizer)
        held = [p for p in parameters if p.grad is not None]
        value, *sizes = to_host([loss, *_largest(held)])
        bad = [p for p, size in zip(held, sizes, strict=True) if not isfinite(size)]
        if how.scaler and bad and record.n_skipped < _MAX_SKIPPED:
            record.n_skipped += 1  # the scaler looks for its scale: part of the method, no fault
        else:
            record.losses.append(value)
            record.norms.append(_total_norm(held))
            record.bad += [names[id(parameter)] for parameter in bad]
            record.reached |= {id(p) for p, size in zip(held, sizes, strict=True) if size != 0}
        if held:
            scaler.step(optimizer)
            scaler.update()


def _largest(parameters: list[nn.Parameter]) -> tuple[torch.Tensor, ...]:
    """Largest magnitude of each gradient: NaN and infinity come through."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch._foreach_norm(gradients, float("inf")) if gradients else ()


def _total_norm(parameters: list[nn.Parameter]) -> float:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0


def _reached(
    pair: Pair, matrices: tuple[nn.Parameter, nn.Parameter], record: _Record, reason: str
) -> PairGradient:
    a, b = (id(matrix) in record.reached for matrix in matrices)
    return PairGradient(pair.name, a, b, reason)


def _out_of_reach(pairs: Sequence[Pair], modalities: Sequence[str]) -> dict[str, str]:
    """Pairs that the batch cannot reach, each with the reason."""
    reasons = {}
    crossing = tuple(p.name.partition("cross_attn.")[0] for p in pairs if ".cross_attn." in p.name)
    for pair in pairs:
        if pair.component == "audio" and "audio" not in modalities:
            reasons[pair.name] = "the batch holds no audio"
        elif pair.component in ("vision", "projector") and "image" not in modalities:
            reasons[pair.name] = "the batch holds no image"
        elif pair.name.startswith(crossing) and "image" not in modalities:
            reasons[pair.name] = "the layer attends to an image, and the batch holds none"
        elif pair.kind == "experts":
            reasons[pair.name] = "the router decides which experts a batch reaches"
    return reasons
