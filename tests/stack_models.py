"""Tiny real models in this process, for `stack` tests: loaded and adapted as a boot does it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from app.checks import Check
from app.config import ModelRequest
from app.outcome import Finding, Status
from app.plan import Plan, Resolved
from app.probes.safetensors import read_checkpoint
from app.profiles import CPU
from tests.tiny_models import Kind, tiny_model

FactsT = TypeVar("FactsT")


def plan_for(kind: Kind, **request: Any) -> Plan:
    """A rehearsal of one tiny model."""
    folder = tiny_model(kind)
    asked = replace(ModelRequest(base_model_id=str(folder), max_seq_length=512), **request)
    resolved = Resolved(str(folder), None, folder, "a test's model")
    return Plan(CPU, asked, Path("reports"), resolved=resolved)


def load(plan: Plan) -> tuple[Any, Any]:
    """Model and tokenizer through the product's loader, on one thread.

    Test machines are shared: torch's threads spin, and two of them on a busy pair of cores took
    ten times as long as one.
    """
    from app.engine import environment

    environment.pin(plan.profile)
    importlib.import_module("unsloth")  # first of the stack, or it patches nothing
    import torch

    from app.engine import loader

    torch.set_num_threads(1)
    assert plan.resolved is not None
    loaded = loader.load(plan, read_checkpoint(plan.resolved.folder))
    return loaded.model, loaded.tokenizer


def adapted(plan: Plan) -> tuple[Any, Any]:
    """The same with the adapter."""
    model, tokenizer = load(plan)
    from app.engine import adapter

    return adapter.attach(model, plan), tokenizer


def failing(checks: Iterable[Check[FactsT]], facts: FactsT, plan: Plan) -> dict[str, Finding]:
    """Findings that are no pass, by the id of their check."""
    found = {check.id: check.judge(facts, plan) for check in checks}
    return {name: each for name, each in found.items() if each.status is not Status.PASS}
