"""A Llama of 0.5 billion random parameters in NF4, where bandwidth decides and not constants.

`python -P -m bench.larger DEST` builds it: a minute, 0.5 GB on disk, 3 GB of memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

SEED = 3407
SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 4096,
}


def build(destination: Path) -> None:
    """Writes the checkpoint, with the rehearsal model's tokenizer beside it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from app.engine.tiny import processor, quantise

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16)
    with tempfile.TemporaryDirectory(dir=destination.parent) as plain:
        model.save_pretrained(plain)
        del model
        quantise(Path(plain), destination, ["lm_head"])
    processor().tokenizer.save_pretrained(destination)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
