"""Judges real tiny models, healthy and broken on purpose, in one process of its own.

`python -m tests.judge_models OUT` runs every case and writes `{case: {check id: [status, fault,
reason]}}` as JSON; importing Unsloth takes about nine seconds, so it is done once for all. What is
made for a GPU is judged with the V100's profile on the device `cpu`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.checks import Check, load, precision, stack
from app.config import ModelRequest
from app.errors import BootError
from app.outcome import Finding
from app.plan import Plan, Resolved
from app.probes.safetensors import read_checkpoint
from app.profiles import CPU, V100, Profile
from tests import broken_files, other_families
from tests.broken_models import MUTATIONS, float16_model, transformers_model
from tests.tiny_models import Kind, tiny_model

Verdicts = dict[str, list[str]]

V100_ON_CPU = replace(V100, device="cpu")


def plan_for(folder: Path, profile: Profile = CPU, *, load_in_4bit: bool = True) -> Plan:
    """A plan that loads this folder."""
    request = ModelRequest(
        load_in_4bit=load_in_4bit, max_seq_length=256, use_gradient_checkpointing=True
    )
    resolved = Resolved(str(folder), None, folder, "a test's own")
    return Plan(profile, request, folder, resolved=resolved)


def verdicts(checks: tuple[Check[Any], ...], facts: object, plan: Plan) -> Verdicts:
    """What each check says."""
    return {each.id: _told(each.judge(facts, plan), each) for each in checks}


def _told(found: Finding, check: Check[Any]) -> list[str]:
    return [found.status.value, (found.fault or check.fault).value, found.reason]


def judged(model: Any, plan: Plan) -> Verdicts:
    """All precision checks on a model, and the offenders of the report's section."""
    from app.engine import census

    assert plan.resolved is not None
    facts = census.take(model, read_checkpoint(plan.resolved.folder))
    section = precision.section([facts], plan)
    named = {
        "offenders": [each.name for each in section.offenders],
        "packed": [layer.name for layer in facts.packed],
        "fates": sorted(str(fate) for fate in {each.fate for each in facts.fates}),
    }
    return {**verdicts(precision.CHECKS, facts, plan), **named}


def booted(folder: Path, *, load_in_4bit: bool = True, adapter: str = "") -> Verdicts:
    """Load through the engine on the CPU profile; everything up to precision, judged."""
    from app.engine import loader

    plan = plan_for(folder, load_in_4bit=load_in_4bit)
    try:
        loaded = loader.load(plan, read_checkpoint(folder))
    except BootError as error:
        found = error.finding
        return {"raised": [found.status.value, str(found.fault), found.reason]}
    model = _adapted(loaded.model, adapter) if adapter else loaded.model
    return verdicts(load.CHECKS, loaded.facts, plan) | judged(model, plan)


def _adapted(model: Any, targets: str) -> Any:
    from unsloth import FastModel

    return FastModel.get_peft_model(
        model, r=4, lora_alpha=8, target_modules=targets, use_gradient_checkpointing=True
    )


def _on_v100(folder: Path) -> dict[str, Verdicts]:
    plan = plan_for(folder, V100_ON_CPU)
    found = {}
    for name, mutate in MUTATIONS.items():
        model = float16_model(folder)
        mutate(model)
        found[f"v100: {name}"] = judged(model, plan)
        found[f"v100: {name}"]["first"] = [str(next(model.parameters()).dtype)]
    found["v100: plain transformers"] = judged(transformers_model(folder), plan)
    import torch

    found["v100: no parameters"] = judged(torch.nn.Module(), plan)
    # 4-bit silently off: the plain form, judged as if it had been asked for in 4 bits.
    plain = tiny_model("gemma3n-bf16")
    found["v100: 4-bit off"] = judged(transformers_model(plain), plan_for(plain, V100_ON_CPU))
    return found


def _on_cpu(scratch: Path) -> dict[str, Verdicts]:
    kinds: tuple[Kind, ...] = (
        *("gemma3n-nf4", "gemma3n-bf16", "llama-nf4", "llama-bf16", "qwen-nf4", "qwen-bf16"),
    )
    found = {f"cpu: {kind}": booted(tiny_model(kind)) for kind in kinds}
    gemma, llama = tiny_model("gemma3n-nf4"), tiny_model("llama-bf16")
    found["cpu: 16 bits"] = booted(llama, load_in_4bit=False)
    found["cpu: 4 bits where none are asked for"] = booted(gemma, load_in_4bit=False)
    found["cpu: adapter"] = booted(gemma, adapter=r".*language_model.*\.(q_proj|up_proj)")
    found["cpu: adapter on audio"] = booted(gemma, adapter=r".*audio_tower.*\.q_proj")
    for name, build in other_families.FAMILIES.items():
        found[f"cpu: {name}"] = booted(build(scratch / name.replace(" ", "-")))
    for name, breaking in broken_files.BREAKINGS.items():
        source = gemma if name in broken_files.OF_PACKED else llama
        folder = broken_files.copy(source, scratch / name.replace(" ", "-"))
        breaking(folder)
        found[f"cpu: {name}"] = booted(folder, load_in_4bit=name in broken_files.IN_4_BITS)
    # A name that Unsloth's CPU backend would cut to that of its neighbour, another model.
    broken_files.copy(tiny_model("qwen-bf16"), scratch / "neighbour")
    named = broken_files.copy(llama, scratch / "neighbour-bnb-4bit")
    found["cpu: suffix"] = booted(named, load_in_4bit=False)
    return found


def _trainable(folder: Path) -> list[str]:
    """One training step after quantising on the fly: dies where AltUp is packed."""
    import torch

    from app.engine import loader

    loaded = loader.load(plan_for(folder), read_checkpoint(folder)).model
    model = _adapted(loaded, r".*language_model.*\.q_proj").train()
    ids = torch.arange(16, 48)[None]
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    return [str(torch.isfinite(loss).item())]


def main(out: Path) -> None:
    """All cases, in a process of their own."""
    from app.engine import environment
    from app.engine import stack as stack_engine

    environment.pin(CPU)
    stack_engine.import_stack()
    gemma = tiny_model("gemma3n-nf4")
    found: dict[str, Any] = {
        "stack": verdicts(stack.CHECKS, stack_engine.gather(), plan_for(gemma)),
        **_on_cpu(out.parent),
        **_on_v100(gemma),
        "trainable": {"loss": _trainable(tiny_model("gemma3n-bf16"))},
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
