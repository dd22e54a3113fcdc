"""The boot for callers in the same process: load, guard, adapt, guard, or raise.

Everything of `app.preflight` and `app.work` that `boot_gemma` needs, without report and stages.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from app import slippage
from app.checks import Check, adapter, cache, checkpoint, load, precision, stack
from app.errors import BootError
from app.facts.checkpoint import CheckpointFacts
from app.outcome import Status
from app.plan import Plan
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint
from app.settings_secrets import token_of

FactsT = TypeVar("FactsT")


def boot(plan: Plan) -> tuple[Any, Any]:
    """The guarded model and its tokenizer, from a local snapshot of exactly what was resolved."""
    from app.engine import stack as stack_engine

    with _pinned(plan):
        stack_engine.import_stack(tolerate_torch=True)
        return _guarded(plan)


def _guarded(plan: Plan) -> tuple[Any, Any]:
    from app.engine import adapter as adapter_engine
    from app.engine import census, loader
    from app.engine import stack as stack_engine

    require(stack.CHECKS, stack_engine.gather(), plan)
    plan, files = _checkpoint(plan)
    loaded = loader.load(plan, files)
    require(load.CHECKS, loaded.facts, plan)
    slippage.judge(loaded.model, plan.profile)
    require(precision.CHECKS, census.take(loaded.model, files), plan)
    model = adapter_engine.attach(loaded.model, plan)
    slippage.judge(model, plan.profile)
    require(adapter.CHECKS, adapter_engine.gather(model), plan)
    require(precision.CHECKS, census.take(model, files), plan)
    return model, loaded.tokenizer


def _checkpoint(plan: Plan) -> tuple[Plan, CheckpointFacts]:
    """The plan with its model resolved, and what the model's files are."""
    # The token as the settings find it; a login on this machine is the client's own business.
    found = resolve_model(plan, os.environ, token=token_of(os.environ, {}) or None)
    require(cache.CHECKS, found, plan)
    if found.resolved is None:
        raise AssertionError("the cache checks pass only with a folder")
    plan = replace(plan, resolved=found.resolved)
    files = read_checkpoint(found.resolved.folder)
    require(checkpoint.CHECKS, files, plan)
    return plan, files


@contextmanager
def _pinned(plan: Plan) -> Iterator[None]:
    """Pin the environment; take it back where it fails and no import has used it.

    Once this call has imported Unsloth, its libraries hold what was pinned, and what they read
    later must agree: it stays, after a failure too. Without that import (it failed, or the caller
    had done it before) a failed call leaves the caller's variables; what others wrote meanwhile,
    as Unsloth does at import and load, is not ours to take back.
    """
    from app.engine import environment

    before = dict(os.environ)
    came_first = "unsloth" in sys.modules
    pinned = environment.pin(plan.profile, offline=False)
    try:
        yield
    except BaseException:
        if came_first or "unsloth" not in sys.modules:
            _restore(before, pinned.variables, pinned.cleared)
        raise


def _restore(before: Mapping[str, str], pinned: Mapping[str, str], cleared: Iterable[str]) -> None:
    for name, value in pinned.items():
        if os.environ.get(name) != value:
            continue
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    for name in cleared:
        os.environ.setdefault(name, before[name])


def require(checks: Iterable[Check[FactsT]], facts: FactsT, plan: Plan) -> None:
    """Raise the first finding that would fail a boot; what would warn in a report warns here."""
    for check in checks:
        found = check.judge(facts, plan)
        if found.status is Status.WARN:
            text = f"{check.id}: {found.reason}; next step: {found.next_step}"
            warnings.warn(text, stacklevel=_outside())
        if found.status.blocks:
            fault, source = found.fault or check.fault, found.source or check.source
            raise BootError.of(replace(found, fault=fault, source=source))


def _outside() -> int:
    """The level, seen from our caller, of the line that called into this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__package__", "").partition(".")[0] == "app":
        level, frame = level + 1, frame.f_back
    return level
