"""Real tiny models, healthy and broken on purpose, judged in one child process.

`python -m tests.broken_models OUT` runs every case and writes `{case: {check id: [status, fault,
reason]}}` as JSON; importing Unsloth takes about nine seconds, so it is done once for all. A GPU's
model is stood in for by `float16_model`: what Unsloth's CUDA path makes of an NF4 checkpoint on a
V100, made by hand, judged with the V100's profile on the device `cpu`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
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
from tests.tiny_models import Kind, tiny_model

Verdicts = dict[str, list[str]]

V100_ON_CPU = replace(V100, device="cpu")
LAYER = "model.language_model.layers.1.mlp.up_proj"


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
    section = precision.section(facts, None, plan)
    named = {
        "offenders": [each.name for each in section.offenders],
        "packed": [layer.name for layer in facts.packed],
        "fates": sorted({each.fate for each in facts.fates}),
    }
    return verdicts(precision.CHECKS, facts, plan) | named


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


def transformers_model(folder: Path) -> Any:
    """A plain transformers load as float16: the checkpoint's own configuration wins."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu")


def float16_model(folder: Path) -> Any:
    """What Unsloth's CUDA path makes on a V100: float16 in compute and quant state too."""
    import torch
    from bitsandbytes.nn import Linear4bit

    model = transformers_model(folder)
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.compute_dtype = torch.float16
            module.weight.quant_state.dtype = torch.float16
    model.config.quantization_config.bnb_4bit_compute_dtype = torch.float16
    model._unsloth_forced_float32 = True
    return model


def _buffer(model: Any) -> None:
    import torch

    owner = model.get_submodule("model.language_model.rotary_emb")
    name = next(iter(owner._buffers))
    owner._buffers[name] = owner._buffers[name].to(torch.bfloat16)


def _quant_state_dtype(model: Any) -> None:
    import torch

    model.get_submodule(LAYER).weight.quant_state.dtype = torch.bfloat16


def _no_quant_state(model: Any) -> None:
    model.get_submodule(LAYER).weight.quant_state = None


def _meta(model: Any) -> None:
    import torch

    norm = model.get_submodule("model.language_model.norm")
    norm.weight = torch.nn.Parameter(norm.weight.to("meta"), requires_grad=False)


def _float64(model: Any) -> None:
    import torch

    norm = model.get_submodule("model.language_model.norm")
    norm.weight = torch.nn.Parameter(norm.weight.to(torch.float64), requires_grad=False)


def _plain(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Replace a packed layer by a plain one with its numbers, changed: the CUDA path's own way."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    layer = model.get_submodule(name)
    weight = change(dequantize_4bit(layer.weight.data, layer.weight.quant_state))
    plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
    plain.weight = torch.nn.Parameter(weight, requires_grad=False)
    model.set_submodule(name, plain)


# Not among the projections that must stay packed: the loader may dequantise it.
OTHER_LAYER = "model.language_model.per_layer_model_projection"


def _dequantised(model: Any) -> None:
    _plain(model, OTHER_LAYER, lambda weight: weight)


def _wrong_values(model: Any) -> None:
    _plain(model, OTHER_LAYER, lambda weight: weight.roll(1, 0))


def _fresh(model: Any) -> None:
    import torch

    _plain(model, OTHER_LAYER, lambda weight: 0.02 * torch.randn_like(weight))


def _projection_dequantised(model: Any) -> None:
    _plain(model, LAYER, lambda weight: weight)


MUTATIONS: Mapping[str, Callable[[Any], None]] = {
    "healthy": lambda _model: None,
    "dequantised": _dequantised,
    "buffer": _buffer,
    "quant state dtype": _quant_state_dtype,
    "no quant state": _no_quant_state,
    "meta": _meta,
    "float64": _float64,
    "wrong values": _wrong_values,
    "fresh weight": _fresh,
    "projection dequantised": _projection_dequantised,
}


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
    # 4-bit silently off: the same folder's plain form, judged as if it had been asked for in 4 bits.
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
        found[f"cpu: {name}"] = booted(folder, load_in_4bit=name in broken_files.OF_PACKED)
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
    from app.engine import environment, stack as stack_engine

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
