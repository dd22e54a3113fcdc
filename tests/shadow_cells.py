"""The cells that `tests.shadow_table` measures, as they are with both locks. Plain data.

Both locks hold unsloth and unsloth_zoo 2026.10.9, transformers 5.17.0 and bitsandbytes 0.50.2. A
cell that differs after an upgrade is a fact to learn (`../shared/facts/gemma3n-precision.md`),
and then to be written here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.tiny_models import Kind

Cells = dict[str, str]

CARDS = ("v100", "h100")
ASKED = ("float16", None, "bfloat16")
# Llamas first: one that is loaded after a Gemma 3n in the same process has its norms in float32
# (2026.10.9), and a boot loads one model.
FAMILIES: tuple[Kind, ...] = (
    "llama-nf4",
    "llama-bf16",
    "qwen3moe-bf16",
    "gemma3-nf4",
    "gemma3n-nf4",
    "gemma3n-bf16",
)

_PROJECTIONS = "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj"
# Beside the projections of the language model, the parts that only a Gemma 3n has.
_OF_GEMMA3N = (
    "linear_left linear_right per_layer_input_gate per_layer_model_projection per_layer_projection"
)
# Unsloth's own list keeps these in 16 bits where it quantises on the fly.
_ALTUP = "altup_projections altup_unembed_projections"


@dataclass(frozen=True)
class _Family:
    """What a family is beside its 16-bit type, for which `16-bit` stands.

    `forced` is a place in Unsloth's FORCE_FLOAT32, `experts` that some are packed in one tensor.
    """

    packed: str
    n_packed: int
    norms: str = "16-bit"
    buffers: str = "float32"
    forced: bool = False
    towers: bool = False
    experts: bool = False


_LLAMA = _Family(_PROJECTIONS, 14)
_MOE = _Family("down_proj gate_up_proj k_proj o_proj q_proj v_proj", 12, forced=True, experts=True)
_GEMMA3 = _Family(_PROJECTIONS, 14, "float32", "16-bit float32", forced=True)
_ON_THE_FLY = _Family(
    f"{_PROJECTIONS} {_OF_GEMMA3N}",
    41,
    "float32",
    "16-bit bool float32 int64",
    forced=True,
    towers=True,
)
_PACKED = replace(_ON_THE_FLY, packed=f"{_ON_THE_FLY.packed} {_ALTUP}", n_packed=47)
_OF: dict[Kind, _Family] = {
    "llama-nf4": _LLAMA,
    "llama-bf16": _LLAMA,
    "qwen3moe-bf16": _MOE,
    "gemma3-nf4": _GEMMA3,
    "gemma3n-nf4": _PACKED,
    "gemma3n-bf16": _ON_THE_FLY,
}


def expected(card: str) -> Cells:
    """Every cell of one card."""
    own = "float16" if card == "v100" else "bfloat16"
    rows = {
        f"{name}, asked {dtype}": _loaded(name, _resolved(card, dtype), own)
        for name in FAMILIES
        for dtype in ASKED
    }
    rows |= {f"{name}, adapter": _adapter(name, own) for name in FAMILIES}
    rows["gemma3n-nf4, adapter with vision"] = _with_vision(own)
    rows["gemma3n-nf4, a layer skipped"] = _one_skipped(own)
    rows["gemma3n-nf4, plain"] = _plain_transformers(card)
    return {f"{row}: {what}": value for row, cells in rows.items() for what, value in cells.items()}


def _resolved(card: str, asked: str | None) -> str:
    """What Unsloth makes of a request: a V100 computes in float16 whatever is asked for."""
    if card == "v100":
        return "float16"
    return asked or "bfloat16"


def _loaded(name: Kind, dtype: str, own: str) -> Cells:
    family = _OF[name]
    forced = family.forced and dtype == "float16"
    norms = family.norms.replace("16-bit", dtype)
    cells = {
        "first parameter": dtype,
        "compute": dtype,
        "quant state": _unpacked(family, dtype),
        "embeddings": dtype,
        "lm_head": dtype,
        "norms": norms,
        "forced float32": str(forced),
        "parameters": _words(dtype, norms, "uint8"),
        "buffers": _words(family.buffers.replace("16-bit", dtype)),
        "declared": dtype,
        "n packed": str(family.n_packed),
        "packed": _words(family.packed),
        "not passed": _slipped(forced=forced) if dtype != own else _own_faults(family, dtype),
    }
    if name.endswith("nf4"):
        cells["fates"] = "linear4bit"
    if family.towers:
        # The tiny tower's norms are batch norms, all named `bn`; the real one has others too.
        cells |= {"towers": dtype, "vision norms": dtype}
    return cells


def _unpacked(family: _Family, dtype: str) -> str:
    """Read as bfloat16 on the forced path, experts keep it: the cast afterwards knows Linears only.

    On a V100 that is a type it has no units for, and our checks say so.
    """
    return _words(dtype, "bfloat16" if family.experts else "")


def _own_faults(family: _Family, dtype: str) -> str:
    """What our checks say of a model in the card's own type."""
    return "" if _unpacked(family, dtype) == dtype else "precision.quant_dtypes"


def _slipped(*, forced: bool) -> str:
    """What our checks say of a model in the other card's type."""
    told = ["config_dtypes", "forbidden_dtypes", "quant_dtypes", "wanted_dtype"]
    return _words(*(f"precision.{each}" for each in told + ["forced_float32"] * forced))


def _adapter(name: Kind, own: str) -> Cells:
    """LoRA with the default flags: every projection of the language model, nothing else."""
    family = _OF[name]
    # Two layers of seven projections. Of Gemma 3n's four the last two share k and v; the experts of
    # a layer are two tensors.
    places = "8 language attention, 6 language mlp"
    if name.startswith("gemma3n"):
        places = "12 language attention, 12 language mlp"
    elif family.experts:
        places = "8 language attention, 4 language experts"
    return {
        "LoRA": places,
        "LoRA on": _words(family.packed) if family.experts else _PROJECTIONS,
        "parameters": _words(own, "float32", "uint8"),
        "not passed": _own_faults(family, own),
    }


def _with_vision(own: str) -> Cells:
    """The tower is all convolutions; what joins it to the language model is its one Linear."""
    cells = _adapter("gemma3n-nf4", own)
    places = f"{cells['LoRA']}, 1 projector other"
    return {**cells, "LoRA": places, "LoRA on": _words(_PROJECTIONS, "embedding_projection")}


def _one_skipped(own: str) -> Cells:
    """The file packs per_layer_model_projection, its configuration skips it: 16 bits on load."""
    cells = _loaded("gemma3n-nf4", own, own)
    left = _words(_PACKED.packed.replace("per_layer_model_projection", ""))
    return {**cells, "n packed": "46", "packed": left, "fates": "dequantised linear4bit"}


def _plain_transformers(card: str) -> Cells:
    """Asked for float16, the packed layers keep the type of the file's configuration."""
    told = ["config_dtypes", "quant_dtypes", "wanted_dtype", "forced_float32"]
    if card == "h100":
        told = ["config_dtypes", "forbidden_dtypes"]
    return {
        **_loaded("gemma3n-nf4", "float16", "float16"),
        "compute": "bfloat16",
        "quant state": "bfloat16",
        "norms": "float16",
        "forced float32": "None",
        "parameters": "float16 uint8",
        "declared": "bfloat16 float16",
        "not passed": _words(*(f"precision.{each}" for each in told)),
    }


def _words(*texts: str) -> str:
    return " ".join(sorted({word for text in texts for word in text.split()}))
