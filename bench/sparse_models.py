"""Model folders at the size of real ones, in sparse files: every header, name and size is real.

The tensors' bytes are holes, but for the quant states and their tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.facts.nf4 import NF4
from app.probes.headers import BITS

N_SHARDS = 3
N_BYTES = 10 * 10**9  # of all weights of a folder
_VOCABULARY = 262_144  # entries of Gemma 3's tokenizer; its merges are about twice as many
_MERGES = 514_906
_ADDED = 6_415
_SMALL = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}'
_HIDDEN = 512  # small, so that 12,000 tensors are many layers in the same bytes
_HEADS = 8
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_BLOCK = 64  # weights per scale, bitsandbytes' default
_NESTED = 256  # scales per scale of scales
# Name, dtype, shape and the bytes where they are no holes.
Tensor = tuple[str, str, list[int], bytes]
# Tensors that a projection is stored as: in 16 bits, in 4 bits, in 4 bits with nested scales.
PLAIN, PACKED, NESTED = 1, 4, 6


@dataclass(frozen=True)
class Layout:
    """A Llama of about `n_tensors`, its projections stored as `n_items` each."""

    n_tensors: int
    n_items: int = PLAIN
    large_tokenizer: bool = False

    @property
    def n_layers(self) -> int:
        """Beside the embeddings and the last norm."""
        n_projections = len(_ATTENTION) + len(_MLP)
        return (self.n_tensors - 2) // (n_projections * self.n_items + len(_NORMS))

    @property
    def width(self) -> int:
        """Of the MLPs, so that all weights take `N_BYTES`."""
        n_bytes = N_BYTES - 2 * _VOCABULARY * _HIDDEN
        n_elements = (n_bytes // 2 if self.n_items == PLAIN else 2 * n_bytes) // self.n_layers
        return (n_elements - 4 * _HIDDEN**2) // (3 * _HIDDEN) // _BLOCK * _BLOCK

    def config(self) -> dict[str, Any]:
        """What config.json says of it."""
        found: dict[str, Any] = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": self.n_layers, "hidden_size": _HIDDEN,
            "intermediate_size": self.width, "vocab_size": _VOCABULARY,
            "num_attention_heads": _HEADS, "num_key_value_heads": _HEADS,
            "max_position_embeddings": 131_072, "tie_word_embeddings": True,
        }  # fmt: skip
        if self.n_items != PLAIN:
            found["quantization_config"] = {
                "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_compute_dtype": "bfloat16",
                "bnb_4bit_use_double_quant": self.n_items == NESTED,
            }  # fmt: skip
        return found

    def tensors(self) -> Iterator[Tensor]:
        """In the order of the model."""
        yield "model.embed_tokens.weight", "BF16", [_VOCABULARY, _HIDDEN], b""
        for number in range(self.n_layers):
            at = f"model.layers.{number}"
            for leaf in _ATTENTION:
                yield from self._projection(f"{at}.self_attn.{leaf}.weight", _HIDDEN, _HIDDEN)
            for leaf in _MLP:
                sides = (_HIDDEN, self.width) if leaf == "down_proj" else (self.width, _HIDDEN)
                yield from self._projection(f"{at}.mlp.{leaf}.weight", *sides)
            for leaf in _NORMS:
                yield f"{at}.{leaf}.weight", "BF16", [_HIDDEN], b""
        yield "model.norm.weight", "BF16", [_HIDDEN], b""

    def _projection(self, name: str, rows: int, columns: int) -> Iterator[Tensor]:
        if self.n_items == PLAIN:
            yield name, "BF16", [rows, columns], b""
        else:
            yield from _packed(name, rows, columns, nested=self.n_items == NESTED)


def _packed(name: str, rows: int, columns: int, *, nested: bool) -> Iterator[Tensor]:
    """A weight as bitsandbytes saves it, with what stands beside it."""
    scales = rows * columns // _BLOCK
    blocks = -(-scales // _NESTED)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": _BLOCK, "dtype": "bfloat16"}
    state["shape"] = [rows, columns]
    if nested:
        state |= {"nested_blocksize": _NESTED, "nested_dtype": "float32", "nested_offset": 0.05}
    raw = json.dumps(state).encode()
    yield name, "U8", [rows * columns // 2, 1], b""
    yield f"{name}.absmax", "U8" if nested else "F32", [scales], b""
    yield f"{name}.quant_map", "F32", [16], _CODES
    if nested:
        yield f"{name}.nested_absmax", "F32", [blocks], struct.pack("<f", 0.01) * blocks
        yield f"{name}.nested_quant_map", "F32", [256], _NESTED_CODES
    yield f"{name}.quant_state.bitsandbytes__nf4", "U8", [len(raw)], raw


_CODES = struct.pack("<16f", *NF4)
_NESTED_CODES = struct.pack("<256f", *(n / 255 for n in range(256)))


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


def write(folder: Path, layout: Layout) -> None:
    """A folder of three shards with an index."""
    tensors = list(layout.tensors())
    weight_map: dict[str, str] = {}
    for number in range(N_SHARDS):
        name = f"model-{number + 1:05}-of-{N_SHARDS:05}.safetensors"
        part = tensors[number * len(tensors) // N_SHARDS : (number + 1) * len(tensors) // N_SHARDS]
        _write_shard(folder / name, part)
        weight_map |= {tensor: name for tensor, *_ in part}
    index = {"metadata": {"total_size": N_BYTES}, "weight_map": weight_map}
    for name, content in {
        "model.safetensors.index.json": index,
        "config.json": layout.config(),
        "tokenizer_config.json": {},
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(tokenizer() if layout.large_tokenizer else _SMALL)


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
