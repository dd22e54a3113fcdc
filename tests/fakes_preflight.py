"""Stand-ins for what preflight looks at: plans, model folders, a CUDA driver."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from app.checks import Check
from app.config import ModelRequest
from app.facts.nf4 import NF4 as NF4_TABLE
from app.outcome import Finding
from app.plan import DownloadT, Plan, VerifyT
from app.probes.headers import BITS
from app.profiles import PROFILES

FactsT = TypeVar("FactsT")
TOKEN = "hf_" + "SECRETsecretSECRET"


def plan_for(
    hardware: str = "cpu",
    *,
    model: str = "rehearsal:gemma3n",
    report_dir: Path = Path("reports"),
    load_in_4bit: bool = True,
    revision: str | None = None,
    download: DownloadT = "if-missing",
    verify: VerifyT = "size",
) -> Plan:
    """A plan as settings would make it."""
    request = replace(ModelRequest(), base_model_id=model, load_in_4bit=load_in_4bit)
    profile = PROFILES[hardware]
    return Plan(profile, request, report_dir, revision, download, verify)


def findings(checks: tuple[Check[FactsT], ...], facts: FactsT, plan: Plan) -> dict[str, Finding]:
    """What every check says, by id; each must name its way out when it blocks."""
    said = {check.id: check.judge(facts, plan) for check in checks}
    for check_id, finding in said.items():
        assert "\n" not in finding.reason, check_id
        if finding.status.blocks:
            assert finding.expected, check_id
            assert finding.actual, check_id
            assert finding.next_step, check_id
    return said


TensorsT = Mapping[str, tuple[str, tuple[int, ...]]]
PACKED: TensorsT = {
    "layer.weight": ("U8", (64, 1)),
    "layer.weight.absmax": ("U8", (2,)),
    "layer.weight.quant_map": ("F32", (16,)),
    "layer.weight.nested_absmax": ("F32", (1,)),
    "layer.weight.nested_quant_map": ("F32", (256,)),
    "layer.weight.quant_state.bitsandbytes__nf4": ("U8", (160,)),
    "norm.weight": ("BF16", (8,)),
}
STATE: Mapping[str, Any] = {
    "quant_type": "nf4",
    "blocksize": 64,
    "dtype": "bfloat16",
    "shape": [8, 16],
    "nested_blocksize": 256,
    "nested_dtype": "float32",
    "nested_offset": 0.05,
}
PLAIN: TensorsT = {"layer.weight": ("BF16", (4, 4)), "norm.weight": ("BF16", (4,))}
NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


def floats(*numbers: float) -> bytes:
    """Numbers as a file holds them."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def state_bytes(**changes: Any) -> bytes:
    """A quant state of the packed weight, 160 bytes long."""
    return json.dumps({**STATE, **changes}).encode().ljust(160)


# What stands beside the packed weight; everything else is zeros.
CONTENT: Mapping[str, bytes] = {
    "layer.weight.quant_map": floats(*NF4_TABLE),
    "layer.weight.nested_absmax": floats(0.01),
    "layer.weight.nested_quant_map": floats(*(n / 255 for n in range(256))),
    "layer.weight.quant_state.bitsandbytes__nf4": state_bytes(),
}


def safetensors_bytes(tensors: TensorsT, content: Mapping[str, bytes] = CONTENT) -> bytes:
    """A valid file with this content, and zeros in it where there is none of the right size."""
    data = b""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = BITS.get(dtype, 8) // 8
        for side in shape:
            n_bytes *= side
        offsets = [position, position + n_bytes]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position += n_bytes
        held = content.get(name, b"")
        data += held if len(held) == n_bytes else bytes(n_bytes)
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + data


def model_files(
    tensors: TensorsT = PLAIN,
    *,
    quantization: Mapping[str, Any] | None = None,
    n_shards: int = 1,
    content: Mapping[str, bytes] = CONTENT,
) -> dict[str, bytes]:
    """Names and bytes of a small model folder."""
    config: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}',
        "tokenizer_config.json": b"{}",
    }
    if n_shards == 1:
        return files | {"model.safetensors": safetensors_bytes(tensors, content)}
    weight_map: dict[str, str] = {}
    for number in range(n_shards):
        name = f"model-{number + 1:05}-of-{n_shards:05}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[number::n_shards]}
        weight_map |= dict.fromkeys(part, name)
        files[name] = safetensors_bytes(part)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


def write_model(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The files in a folder, made where missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
