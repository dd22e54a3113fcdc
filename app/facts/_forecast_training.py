"""What training adds to the weights: the adapter, its optimizer, and what one step keeps.

One sequence of `BOOT_MAX_SEQ_LENGTH` tokens in a batch. Lower bounds hold what cannot be avoided,
upper bounds what the plain, unfused way would hold; real runs lie between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from app.facts._forecast_shape import Shape
from app.facts._forecast_weights import Weight, width_of
from app.facts.adapter import Asked
from app.facts.memory_part import MemoryPart, PhaseT
from app.plan import Plan
from app.profiles import GIB

_FLOAT = 4  # bytes of a float32: LoRA's matrices, their gradients, optimizer states
# adamw_8bit, Unsloth's own choice in its notebooks, keeps two states of a byte each (and 2 % of
# scales); AdamW in float32, which the numeric stage uses, two states of four.
_STATES_LOW, _STATES_HIGH = 2, 8
# Bytes per logit of a loss that is not fused: 16 bits, float32, its log-softmax and the gradient
# (unsloth_zoo 2026.10.9, fused_losses/cross_entropy_loss.py: _CE_BYTES_PER_LOGIT).
_BYTES_PER_LOGIT = 16
# The most that the fused loss gives one piece of the logits (there: _CE_TARGET_GB_CAP); it takes
# less where less is free.
_FUSED_CAP = 4 * GIB
# Below this length "unsloth" is plain checkpointing (unsloth 2026.10.9, models/_utils.py).
_OFFLOADED_FROM = 512  # tokens
_MATRICES_OF_AN_EXPERT = 3  # gate, up and down
_ROUNDED = 2  # pinned host memory comes in powers of two (torch's host allocator)


def training(
    held: Sequence[Weight], shape: Shape, plan: Plan, tokens: int, room: int | None
) -> tuple[MemoryPart, ...] | str:
    """For one sequence of `tokens`; a text where the numbers for it are not to be had.

    `room` is what the weights leave of the device's free memory, None where that is unknown.
    """
    width = width_of(plan.profile)
    layers = _by_layer(held)
    if shape.hidden is None or shape.vocabulary is None or not layers:
        return "neither config.json nor the weights say how wide the model is"
    hidden = tokens * shape.hidden * shape.streams * width
    return (
        *_adapter(held, plan),
        *_hidden_states(hidden, len(layers), plan, tokens),
        _layers(layers.values(), shape, plan, tokens),
        _attention(shape, plan, tokens, len(layers)),
        _logits(shape.hidden, shape.vocabulary, tokens, width, room),
        _unpacked(held),
    )


def _adapter(held: Iterable[Weight], plan: Plan) -> Iterator[MemoryPart]:
    """LoRA's matrices and what training keeps for each of their numbers."""
    low, high = _pairs(held, plan)
    rank = f"rank {plan.request.lora_r}, float32"
    yield MemoryPart("LoRA", _FLOAT * low, _FLOAT * high, rank, phase="training")
    own = "of the adapter, float32"
    yield MemoryPart("gradients", _FLOAT * low, _FLOAT * high, own, phase="training")
    states = "AdamW in 8 bits to float32"
    yield MemoryPart("optimizer", _STATES_LOW * low, _STATES_HIGH * high, states, phase="training")


def _by_layer(held: Iterable[Weight]) -> dict[int, list[Weight]]:
    """Matrices of the language model's layers."""
    layers: dict[int, list[Weight]] = {}
    for weight in held:
        if weight.layer is not None and weight.sides is not None:
            layers.setdefault(weight.layer, []).append(weight)
    return layers


def _backward(plan: Plan) -> PhaseT:
    """When layers are held: without checkpointing they still are when the loss is computed."""
    return "training" if plan.request.use_gradient_checkpointing is False else "backward"


def _layers(layers: Collection[list[Weight]], shape: Shape, plan: Plan, tokens: int) -> MemoryPart:
    """Of all layers at once, or of the largest, which checkpointing computes again."""
    each = [_layer(layer, shape, tokens, width_of(plan.profile)) for layer in layers]
    lows, highs = [low for low, _ in each], [high for _, high in each]
    low, high, why = max(lows), max(highs), "inputs and outputs of one layer, computed again"
    if plan.request.use_gradient_checkpointing is False:
        low, high, why = sum(lows), sum(highs), f"inputs and outputs of all {len(each)} layers"
    return MemoryPart("one layer", low, high, why, phase=_backward(plan))


def _layer(held: list[Weight], shape: Shape, tokens: int, width: int) -> tuple[int, int]:
    """Bytes of one layer's backward pass.

    At the least input and output of its widest matrix. At the most each input in the compute
    dtype, in float32 for LoRA, and as a gradient, and each output as value and gradient; of routed
    experts those that a token passes.
    """
    low = max(sum(weight.sides or ()) for weight in held)
    plain = [weight for weight in held if weight.projection.kind != "experts"]
    routed = [weight.sides or (0, 0) for weight in held if weight.projection.kind == "experts"]
    passes = (shape.experts_per_token or 1) * _MATRICES_OF_AN_EXPERT
    sides = [weight.sides or (0, 0) for weight in plain]
    sides += [max(routed, key=sum)] * passes if routed else []
    high = sum(out * 2 * width + into * (2 * width + _FLOAT) for out, into in sides)
    return tokens * low * width, tokens * high


def _hidden_states(
    hidden: int, n_layers: int, plan: Plan, tokens: int
) -> tuple[MemoryPart, MemoryPart]:
    """Hidden states that are kept between the passes: on the device, and on the host.

    "unsloth" keeps two buffers of them and the last layer's on the device
    (unsloth_zoo/gradient_checkpointing.py). Without checkpointing they are part of the layers. A
    residual in float32 doubles them at most.
    """
    asked = plan.request.use_gradient_checkpointing
    moved = 0, 0, "nothing"
    if asked is False:
        kept = 0, 0, "no checkpointing: all layers are kept whole"
    elif asked is True or tokens < _OFFLOADED_FROM or not plan.profile.needs_gpu:
        kept = (
            n_layers * hidden,
            2 * n_layers * hidden,
            f"a hidden state for each of {n_layers} layers",
        )
    else:
        kept = hidden, 2 * 3 * hidden, "buffers of the hidden states that are moved"
        moved = (
            (n_layers - 1) * hidden,
            _ROUNDED * n_layers * hidden,
            f"hidden states of {n_layers} layers, moved off the device",
        )
    return (
        MemoryPart("hidden states", *kept, phase="training"),
        MemoryPart("moved hidden states", *moved, "host", "training"),
    )


def _attention(shape: Shape, plan: Plan, tokens: int, n_layers: int) -> MemoryPart:
    """Scores of every pair of tokens, where attention is not fused.

    The least is a float32 softmax and its copy in the compute dtype; the most adds two forms of
    the scores before it and the gradients of all four. The CPU backend leaves the choice to
    transformers, which mostly fuses.
    """
    name, phase, width = "attention scores", _backward(plan), width_of(plan.profile)
    if not shape.eager or shape.heads is None:
        return MemoryPart(name, 0, 0, "fused: no scores are kept", phase=phase)
    at_once = n_layers if plan.request.use_gradient_checkpointing is False else 1
    pairs = shape.heads * tokens * tokens * at_once
    low = _FLOAT + width if plan.profile.needs_gpu else 0
    high = 2 * _FLOAT + 4 * width
    why = f"{shape.heads} heads, a score for each pair of tokens"
    return MemoryPart(name, pairs * low, pairs * high, why, phase=phase)


def _logits(hidden: int, vocabulary: int, tokens: int, width: int, room: int | None) -> MemoryPart:
    """The fused loss goes piece by piece: at the least one row and the gradient of its input.

    At the most it takes half of what it finds free, and no more than its cap.
    """
    whole = tokens * vocabulary * _BYTES_PER_LOGIT
    least = min(whole, vocabulary * _BYTES_PER_LOGIT + tokens * hidden * width)
    budget = _FUSED_CAP if room is None else min(_FUSED_CAP, room // 2)
    why = f"{vocabulary} words, in pieces (at once it would be {whole / GIB:.1f} GiB)"
    return MemoryPart("logits", least, min(whole, max(least, budget)), why, phase="loss")


def _unpacked(held: Iterable[Weight]) -> MemoryPart:
    """A packed matrix is unpacked for its product; forward and backward may both hold one."""
    largest = max((weight.plain for weight in held if weight.packs), default=0)
    why = "the largest packed weight, unpacked for its product"
    return MemoryPart("unpacked weights", largest, 2 * largest, why, phase="training")


def _pairs(held: Iterable[Weight], plan: Plan) -> tuple[int, int]:
    """Scalars of all LoRA pairs: surely, and at most (routed experts among them)."""
    asked = Asked.of(plan.request)
    low = high = 0
    for weight in held:
        place = weight.projection
        if weight.sides is None or not asked.allows(place.component, place.kind):
            continue
        scalars = plan.request.lora_r * sum(weight.sides)
        high += scalars
        low += scalars if weight.certain and asked.requires(place) else 0
    return low, high
