"""Tiny real models for tests, built once per content and cached below the repository's `.cache`.

`tiny_model(kind)` imports no torch: a child process (`python -m tests.tiny_models KIND-KEY`)
builds. Gemma 3n comes from the product's own builder, the text models from this file: a kind is a
family and the form of its file, `nf4` is packed.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from app import rehearsal

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Kind = Literal[
    "gemma3n-nf4",
    "gemma3n-bf16",
    "llama-bf16",
    "llama-nf4",
    "qwen-bf16",
    "qwen-nf4",
    "gemma3-bf16",
    "gemma3-nf4",
    "phi3-nf4",
    "qwen3moe-bf16",
]
# Where a rehearsal adapts every projection. Of experts that are one tensor it cannot: Unsloth's CPU
# backend does not reach them, its CUDA path does.
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "qwen3moe-bf16")

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tiny-models"
_BUILDER = Path(rehearsal.__file__).with_name("engine") / "tiny.py"
# A build takes about 10 s alone on 2 cores; several may share them.
_TIMEOUT_S = 180.0
_SEED = 3407
# 256 byte tokens and the specials, rounded up to NF4's block of 64.
_VOCAB = 320
_SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
_CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages -%}
{{ '<|' + message.role + '|>' + message.content | trim + eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""


def tiny_model(kind: Kind) -> Path:
    """The folder of a tiny model, built where it does not exist. Read it only: tests share it."""
    if kind == "gemma3n-nf4":
        return rehearsal.ensure(CACHE, os.environ, timeout_s=_TIMEOUT_S)
    target = CACHE / f"{kind}-{rehearsal.content_key([_BUILDER, Path(__file__)])}"
    rehearsal.build_once(target, "tests.tiny_models", os.environ, timeout_s=_TIMEOUT_S)
    return target


def _tokenizer() -> "PreTrainedTokenizerFast":
    """One token per byte, so that every text has tokens; nothing is learned or downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*_SPECIAL_TOKENS, *letters])}
    vocab |= {f"<unused{index}>": index for index in range(len(vocab), _VOCAB)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=[token for token in _SPECIAL_TOKENS if token.startswith("<|")],
        chat_template=_CHAT_TEMPLATE,
    )


# Two layers with grouped-query attention, in every width a multiple of NF4's block of 64.
SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Family -> the start of its class names in transformers, and what is its own: Llama has a head that
# is no embedding, Phi-3 fused projections, Qwen3-MoE experts that transformers 5 fuses.
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen": ("Qwen2", {"tie_word_embeddings": True}),
    "phi3": ("Phi3", {}),
    "gemma3": ("Gemma3", {"head_dim": 32}),
    "qwen3moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        },
    ),
}


def _plain_model(family: str) -> "PreTrainedModel":
    import torch
    import transformers

    prefix, own = _FAMILIES[family]
    model_class: Any = getattr(transformers, f"{prefix}ForCausalLM")
    torch.manual_seed(_SEED)
    model: PreTrainedModel = model_class(model_class.config_class(**SIZES | own))
    return model.to(torch.bfloat16).eval()


def _build(destination: Path) -> None:
    """Writes the model that the folder's name says, with its tokenizer."""
    import torch

    from app.engine.tiny import plain_model, processor, quantise

    torch.set_num_threads(1)
    family, form, _ = destination.name.split("-")
    if family == "gemma3n":
        plain_model().save_pretrained(destination)
        processor().save_pretrained(destination)
        return
    model = _plain_model(family)
    if form == "bf16":
        model.save_pretrained(destination)
    else:
        with tempfile.TemporaryDirectory() as plain:
            model.save_pretrained(plain)
            quantise(Path(plain), destination, ["lm_head"])
    _tokenizer().save_pretrained(destination)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
