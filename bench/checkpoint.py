"""How long a model folder takes to be read and judged, by layout, at the size of real models.

`python -P -m bench.checkpoint [--rounds N]`, on a machine that does nothing else. The folders are
sparse files below the system's temporary folder: every header, name and size is real, the tensors'
bytes are holes but for the quant states and their tables. A layout is measured in a process of its
own. The columns: milliseconds of all rounds (median, least and most), of the first round alone, of
judging alone; how many times that is what Python's json alone takes for the same headers and files;
memory that the first round took beyond the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.checks._quant_state import NF4
from app.checks.checkpoint import CHECKS
from app.config import ModelRequest
from app.outcome import Status
from app.plan import Plan
from app.probes.safetensors import BITS, read_checkpoint
from app.profiles import PROFILES
from bench.measure import peak_bytes

N_SHARDS = 3
N_BYTES = 10 * 10**9  # of all weights of a folder
_ROUNDS = 11
_HEAD = """| folder | ms | first | judging | against json | MB |
|---|---|---|---|---|---|
"""
_VOCABULARY = 262_144  # entries of Gemma 3's tokenizer; its merges are about twice as many
_MERGES = 514_906
_ADDED = 6_415
_HIDDEN = 2048
_PROJECTIONS = (
    *("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"),
    *("mlp.gate", "mlp.up", "mlp.down"),
)
_BLOCK = 64  # weights per scale, bitsandbytes' default
_NESTED = 256  # scales per scale of scales
_QUANTIZATION = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_compute_dtype": "bfloat16",
}
# Name, dtype, shape and the bytes where they are no holes.
Tensor = tuple[str, str, list[int], bytes]


def plain(n_tensors: int) -> Iterator[Tensor]:
    """Weights of 16 bits, as a base model is published."""
    columns = N_BYTES // n_tensors // 2 // _HIDDEN
    for number in range(n_tensors):
        yield (
            _name(number),
            "BF16",
            [_HIDDEN, columns],
            b"",
        )


def _name(number: int) -> str:
    layer, which = divmod(number, len(_PROJECTIONS))
    return f"model.layers.{layer}.{_PROJECTIONS[which]}_proj.weight"


def packed(n_tensors: int, *, nested: bool) -> Iterator[Tensor]:
    """Weights of 4 bits; `n_tensors` counts what stands beside them too."""
    n_items = 6 if nested else 4
    n_weights = n_tensors // n_items
    columns = N_BYTES // n_weights * 2 // _HIDDEN // _BLOCK * _BLOCK
    scales = _HIDDEN * columns // _BLOCK
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": _BLOCK, "dtype": "bfloat16"}
    state["shape"] = [_HIDDEN, columns]
    if nested:
        state |= {"nested_blocksize": _NESTED, "nested_dtype": "float32", "nested_offset": 0.05}
    codes = struct.pack("<16f", *NF4)
    table = struct.pack("<256f", *(n / 255 for n in range(256)))
    raw = json.dumps(state).encode()
    blocks = -(-scales // _NESTED)
    for number in range(n_weights):
        name = _name(number)
        yield name, "U8", [_HIDDEN * columns // 2, 1], b""
        yield f"{name}.absmax", "U8" if nested else "F32", [scales], b""
        yield f"{name}.quant_map", "F32", [16], codes
        if nested:
            yield f"{name}.nested_absmax", "F32", [blocks], struct.pack("<f", 0.01) * blocks
            yield f"{name}.nested_quant_map", "F32", [256], table
        yield f"{name}.quant_state.bitsandbytes__nf4", "U8", [len(raw)], raw


def tokenizer() -> bytes:
    """As large as Gemma 3's, with made-up words."""
    words = [f"\u2581{number:x}\u6f22" for number in range(_VOCABULARY)]
    model = {
        "type": "BPE",
        "vocab": {word: number for number, word in enumerate(words)},
        "merges": [[words[n % 9999], words[n % _VOCABULARY]] for n in range(_MERGES)],
    }
    added = [{"id": n, "content": f"<unused{n}>", "special": True} for n in range(_ADDED)]
    whole = {"version": "1.0", "added_tokens": added, "model": model}
    return json.dumps(whole, ensure_ascii=False, indent=2).encode()


def write(folder: Path, tensors: Sequence[Tensor], tokens: bytes, extra: dict[str, Any]) -> None:
    """A folder of three shards with an index."""
    weight_map: dict[str, str] = {}
    for number in range(N_SHARDS):
        name = f"model-{number + 1:05}-of-{N_SHARDS:05}.safetensors"
        part = tensors[number * len(tensors) // N_SHARDS : (number + 1) * len(tensors) // N_SHARDS]
        _write_shard(folder / name, part)
        weight_map |= {tensor: name for tensor, *_ in part}
    index = {"metadata": {"total_size": N_BYTES}, "weight_map": weight_map}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **extra}
    for name, content in {
        "model.safetensors.index.json": index,
        "config.json": config,
        "tokenizer_config.json": {},
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(tokens)


def _write_shard(path: Path, tensors: Sequence[Tensor]) -> None:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    held = []
    for name, dtype, shape, raw in tensors:
        n_bytes = BITS[dtype] // 8
        for side in shape:
            n_bytes *= side
        end = position + n_bytes
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        held.append((position, raw))
        position = end
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        start = file.tell()
        for begin, raw in held:
            if raw:
                file.seek(start + begin)
                file.write(raw)
        file.truncate(start + position)


_SMALL = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}'
_NF4 = {"quantization_config": {**_QUANTIZATION, "bnb_4bit_use_double_quant": True}}
_PLAIN_SCALES = {"quantization_config": {**_QUANTIZATION, "bnb_4bit_use_double_quant": False}}
LAYOUTS: Mapping[str, tuple[Callable[[], Iterator[Tensor]], bool, dict[str, Any]]] = {
    "16 bit, 2,000 tensors": (lambda: plain(2000), False, {}),
    "16 bit, 12,000 tensors": (lambda: plain(12_000), False, {}),
    "4 bit nested, 2,000": (lambda: packed(2000, nested=True), False, _NF4),
    "4 bit nested, 12,000": (lambda: packed(12_000, nested=True), False, _NF4),
    "4 bit plain scales, 2,000": (lambda: packed(2000, nested=False), False, _PLAIN_SCALES),
    "tokenizer of 262,144": (lambda: plain(2000), True, {}),
}


@dataclass(frozen=True)
class Figures:
    """Of one folder: seconds by round, bytes of memory that the first round took, what failed."""

    read_s: list[float]
    judge_s: list[float]
    bare_s: list[float]
    peak_bytes: int
    failed: dict[str, str]


def measure(folder: Path, rounds: int) -> Figures:
    """Read and judge it, and parse its JSON with nothing else, in turns."""
    plan = Plan(PROFILES["h100"], ModelRequest(), Path("reports"), None, "never")
    before = peak_bytes(os.getpid())
    peak, failed = 0, {}
    reads, judges, bares = [], [], []
    for number in range(rounds):
        began = time.perf_counter()
        facts = read_checkpoint(folder)
        middle = time.perf_counter()
        findings = {check.id: check.judge(facts, plan) for check in CHECKS}
        ended = time.perf_counter()
        if not number:
            peak = peak_bytes(os.getpid()) - before
            failed = {k: v.reason for k, v in findings.items() if v.status is Status.FAIL}
        _parse(folder)
        reads.append(middle - began)
        judges.append(ended - middle)
        bares.append(time.perf_counter() - ended)
    return Figures(reads, judges, bares, peak, failed)


def _parse(folder: Path) -> None:
    """What any reader must do: json over the headers and the JSON files, nothing is checked."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            if path.suffix == ".json":
                json.loads(file.read())
            else:
                json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def _line(name: str, told: Figures) -> str:
    """Milliseconds, the best and the median; the ratio is of medians."""
    wholes = [read + judge for read, judge in zip(told.read_s, told.judge_s, strict=True)]
    median = statistics.median(wholes)
    parts = [
        f"| {name}",
        f"{1000 * median:.0f} ({1000 * min(wholes):.0f} to {1000 * max(wholes):.0f})",
        f"{1000 * wholes[0]:.0f}",
        f"{1000 * statistics.median(told.judge_s):.0f}",
        f"{median / statistics.median(told.bare_s):.1f}",
        f"{told.peak_bytes / 1e6:.1f} |",
    ]
    return " | ".join(parts) + "".join(f"\n{key}: {why}" for key, why in told.failed.items())


def main(arguments: Sequence[str]) -> int:
    """Write each folder, measure it in a process of its own, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--folder", type=Path, help="measure this folder alone, in JSON")
    options = parser.parse_args(arguments)
    if options.folder:
        sys.stdout.write(json.dumps(asdict(measure(options.folder, options.rounds))) + "\n")
        return 0
    sys.stdout.write(_HEAD)
    large = tokenizer()
    for name, (tensors, whole, extra) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), list(tensors()), large if whole else _SMALL, extra)
            command = [sys.executable, "-P", "-m", "bench.checkpoint", "--folder", folder]
            command += ["--rounds", str(options.rounds)]
            told = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        sys.stdout.write(_line(name, Figures(**json.loads(told.stdout))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
