"""The engine for callers in the same process: load, guard, adapt, guard, or raise.

Imports torch and Unsloth inside its functions only, so that a test with doubles needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from app.checks import Check, adapter, cache, checkpoint, load, precision, stack
from app.engine.arguments import adapter_arguments
from app.errors import BootError
from app.plan import Plan
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint
from app.slippage import assert_dtype_for_hardware, is_module

FactsT = TypeVar("FactsT")


def boot(plan: Plan) -> tuple[Any, Any]:
    """The guarded model and its tokenizer, from a local snapshot of exactly what was resolved."""
    from app.engine import environment
    from app.engine import stack as stack_engine

    environment.pin(plan.profile, offline=False)
    stack_engine.import_stack(tolerate_torch=True)
    from app.engine import adapter as adapter_engine
    from app.engine import census, loader

    require(stack.CHECKS, stack_engine.gather(), plan)
    found = resolve_model(plan, os.environ)
    require(cache.CHECKS, found, plan)
    plan = replace(plan, resolved=found.resolved)
    files = read_checkpoint(found.resolved.folder) if found.resolved else None
    if files is None:
        raise AssertionError("the cache checks pass only with a folder")
    require(checkpoint.CHECKS, files, plan)
    loaded = loader.load(plan, files)
    require(load.CHECKS, loaded.facts, plan)
    assert_dtype_for_hardware(loaded.model, plan.profile.name)
    require(precision.CHECKS, census.take(loaded.model, files), plan)
    model = adapter_engine.attach(loaded.model, plan)
    assert_dtype_for_hardware(model, plan.profile.name)
    require(adapter.CHECKS, adapter_engine.gather(model), plan)
    require(precision.CHECKS, census.take(model, files), plan)
    return model, loaded.tokenizer


def boot_double(plan: Plan) -> tuple[Any, Any]:
    """The same calls on a test's double of FastModel: no folder, no census, dtypes only.

    A double's model may offer nothing but `parameters()`, once: it is judged by that before the
    adapter, and after it only where it is a real module.
    """
    import torch
    from unsloth import FastModel

    request = plan.request
    model, tokenizer = FastModel.from_pretrained(
        request.base_model_id,
        max_seq_length=request.max_seq_length,
        load_in_4bit=request.load_in_4bit,
        dtype=getattr(torch, plan.profile.compute_dtype),
    )
    assert_dtype_for_hardware(model, plan.profile.name)
    adapted = FastModel.get_peft_model(model, **adapter_arguments(request))
    if is_module(adapted):
        assert_dtype_for_hardware(adapted, plan.profile.name)
    return adapted, tokenizer


def require(checks: Iterable[Check[FactsT]], facts: FactsT, plan: Plan) -> None:
    """Raise the first finding that would fail a boot."""
    for check in checks:
        found = check.judge(facts, plan)
        if found.status.blocks:
            raise BootError(
                found.reason,
                fault=found.fault or check.fault,
                expected=found.expected,
                actual=found.actual,
                source=found.source or check.source,
                next_step=found.next_step,
            )
