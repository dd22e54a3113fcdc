"""The boot for callers in the same process: load, guard, adapt, guard, or raise.

Everything of `app.preflight` and `app.work` that `boot_gemma` needs, without report and stages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from app import slippage
from app.checks import Check, adapter, cache, checkpoint, load, precision, stack
from app.errors import BootError
from app.plan import Plan
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint

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
    slippage.judge(loaded.model, plan.profile)
    require(precision.CHECKS, census.take(loaded.model, files), plan)
    model = adapter_engine.attach(loaded.model, plan)
    slippage.judge(model, plan.profile)
    require(adapter.CHECKS, adapter_engine.gather(model), plan)
    require(precision.CHECKS, census.take(model, files), plan)
    return model, loaded.tokenizer


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
