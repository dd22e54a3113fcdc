"""The report's `model`, from what the cache stage and the checkpoint stage found."""

from __future__ import annotations

from app.facts.adapter import Asked
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.facts.lora_targets import find_targets
from app.facts.words import one_line
from app.plan import Plan
from app.sections import Model


def model_section(plan: Plan, cache: CacheFacts, checkpoint: CheckpointFacts) -> Model:
    """The report's `model`: as asked, as resolved, as found on disk."""
    architectures = checkpoint.config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    quantised = checkpoint.quantization_config or {}
    files = checkpoint.shards or checkpoint.pickled.files
    return Model(
        requested_id=plan.request.base_model_id,
        resolved_id=cache.model_id,
        revision=cache.revision,
        reason=cache.reason,
        folder=str(checkpoint.folder),
        model_type=one_line(str(checkpoint.config.get("model_type", ""))),
        architecture=one_line(str(first)),
        n_shards=len(files),
        n_bytes=sum(file.n_bytes for file in files),
        n_tensors=len(checkpoint.tensors),
        n_packed=len(checkpoint.packed),
        quantization={
            one_line(str(key)): one_line(value) if isinstance(value, str) else value
            for key, value in quantised.items()
            if isinstance(value, str | bool | int)
        },
        lora_targets=_lora_targets(plan, checkpoint),
    )


def _lora_targets(plan: Plan, checkpoint: CheckpointFacts) -> dict[str, dict[str, int]] | None:
    targets = find_targets(checkpoint, load_in_4bit=plan.request.load_in_4bit)
    if targets.problem:
        return None
    counts: dict[str, dict[str, int]] = {}
    for each in targets.expected(Asked.of(plan.request)):
        kinds = counts.setdefault(each.component, {})
        kinds[each.kind] = kinds.get(each.kind, 0) + 1
    return counts
