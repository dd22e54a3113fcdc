"""Steps, headroom and a generation on a model, which is afterwards as it was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from app.engine import generation, headroom, memory_use, steps
from app.engine.adapter import gather, lora_parameters
from app.engine.arithmetic import arithmetic, stepping
from app.engine.batch import Batch, make
from app.engine.preserve import condition, differing, preserved
from app.engine.weights import checksums, scan
from app.facts.adapter import Pair, needed
from app.facts.checkpoint import CheckpointFacts
from app.facts.headroom import HeadroomFacts
from app.facts.numerics import GenerationFacts, LeftFacts, NumericsFacts, StepFacts, WeightFacts
from app.plan import Plan


def run(
    model: nn.Module, tokenizer: Any, plan: Plan, checkpoint: CheckpointFacts | None = None
) -> NumericsFacts:
    """Scans the weights, trains `plan.steps` steps, generates, and takes it all back.

    Raises:
        BootError: the model's own code refuses a step.
        torch.OutOfMemoryError: a step does not fit.
    """
    weights = scan(model, checkpoint)
    if weights.on_meta:
        return NumericsFacts(weights, None, f"tensors without data: {len(weights.on_meta)}")
    if weights.not_finite:  # every number of a step would be as broken, and blame something else
        return NumericsFacts(weights, None, "weights are not finite, and with them no step is")
    matrices = lora_parameters(model)
    if not matrices:
        return NumericsFacts(weights, None, "the model has no LoRA pair to train")
    return _left_as_found(model, tokenizer, plan, checkpoint, weights, matrices)


def _left_as_found(
    model: Any,
    tokenizer: Any,
    plan: Plan,
    checkpoint: CheckpointFacts | None,
    weights: WeightFacts,
    matrices: steps.Matrices,
) -> NumericsFacts:
    """All of it between two looks at the model."""
    pairs = gather(model).pairs
    batch = make(model, tokenizer, plan, set(needed(pairs).values()))
    device = batch.inputs["labels"].device
    trained = [matrix for pair in matrices.values() for matrix in pair]
    before, held = condition(model, trained), memory_use.held(device)
    told, room, said = _proven(model, tokenizer, plan, batch, matrices, pairs)
    left = LeftFacts(
        changed=differing(before, condition(model, trained)),
        n_compared=len(before),
        kept_bytes=memory_use.held(device) - held,
        workspace_bytes=memory_use.workspace(model, plan),
    )
    used = memory_use.against_forecast(told.memory, plan, checkpoint, batch.n_tokens)
    told = replace(told, memory=used)
    return NumericsFacts(weights, told, generation=said, headroom=room, left=left)


def _proven(
    model: Any,
    tokenizer: Any,
    plan: Plan,
    batch: Batch,
    matrices: steps.Matrices,
    pairs: Sequence[Pair],
) -> tuple[StepFacts, HeadroomFacts, GenerationFacts | None]:
    """The steps, then what the trained adapter computes, and whether the base moved over it all."""
    how = arithmetic(model, plan)
    trained = [matrix for pair in matrices.values() for matrix in pair]
    skip = frozenset(map(id, trained))
    with preserved(model, trained) as put_back:
        before = checksums(model, skip)
        with stepping():
            told = steps.take(model, batch, how, plan, matrices, pairs)
            if not told.finite:  # a broken adapter would hide where it began
                put_back()
            room = headroom.measure(model, batch, how)
        said = generation.generate(model, tokenizer, plan, how) if told.finite else None
        after = checksums(model, skip)
    moved = tuple(name for name, total in after.items() if before.get(name) != total)
    return replace(told, moved=moved, n_watched=len(after)), room, said
