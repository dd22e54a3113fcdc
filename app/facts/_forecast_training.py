"""What training adds to the weights: the adapter, its optimizer, and what one step keeps.

One sequence of `BOOT_MAX_SEQ_LENGTH` tokens in a batch. Lower bounds hold what cannot be avoided,
upper bounds what the plain, unfused way would hold; real runs lie between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.facts._forecast_shape import Shape
from app.facts._forecast_weights import Weight, width_of
from app.facts.adapter import Asked
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


@dataclass(frozen=True, slots=True)
class Span:
    """Lower and upper bound of one thing, in bytes, and how it was computed."""

    low: int
    high: int
    basis: str


@dataclass(frozen=True, slots=True)
class Training:
    """Everything of a step, on the device but for `offloaded`, which is the host's."""

    lora: Span
    gradients: Span
    optimizer: Span
    checkpoints: Span
    layer: Span
    attention: Span
    logits: Span
    unpacked: Span
    offloaded: Span


def training(
    held: Sequence[Weight], shape: Shape, plan: Plan, tokens: int, room: int | None
) -> Training | str:
    """For one sequence of `tokens`; a text where the numbers for it are not to be had.

    `room` is what the weights leave of the device's free memory, None where that is unknown.
    """
    width = width_of(plan.profile)
    layers = _by_layer(held)
    n_layers = len(layers)
    if shape.hidden is None or shape.vocabulary is None or not n_layers:
        return "neither config.json nor the weights say how wide the model is"
    pairs = _pairs(held, plan)
    hidden = tokens * shape.hidden * shape.streams * width
    kept, offloaded = _checkpoints(hidden, n_layers, plan, tokens)
    each = [_layer(layer, shape, tokens, width) for layer in layers.values()]
    lows, highs = [low for low, _ in each], [high for _, high in each]
    if plan.request.use_gradient_checkpointing is False:
        layer = Span(sum(lows), sum(highs), f"inputs and outputs of all {n_layers} layers")
    else:
        layer = Span(max(lows), max(highs), "inputs and outputs of one layer, computed again")
    return Training(
        lora=Span(_FLOAT * pairs[0], _FLOAT * pairs[1], f"rank {plan.request.lora_r}, float32"),
        gradients=Span(_FLOAT * pairs[0], _FLOAT * pairs[1], "of the adapter, float32"),
        optimizer=Span(
            _STATES_LOW * pairs[0], _STATES_HIGH * pairs[1], "AdamW in 8 bits to float32"
        ),
        checkpoints=kept,
        layer=layer,
        attention=_attention(shape, plan, tokens, width, n_layers),
        logits=_logits(shape.hidden, shape.vocabulary, tokens, width, room),
        unpacked=_unpacked(held),
        offloaded=offloaded,
    )


def _by_layer(held: Iterable[Weight]) -> dict[int, list[Weight]]:
    """Matrices of the language model's layers."""
    layers: dict[int, list[Weight]] = {}
    for weight in held:
        if weight.layer is not None and weight.sides is not None:
            layers.setdefault(weight.layer, []).append(weight)
    return layers


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


def _checkpoints(hidden: int, n_layers: int, plan: Plan, tokens: int) -> tuple[Span, Span]:
    """Hidden states that are kept between the passes: on the device, and on the host.

    "unsloth" keeps two buffers of them and the last layer's on the device
    (unsloth_zoo/gradient_checkpointing.py). Without checkpointing they are part of the layers. A
    residual in float32 doubles them at most.
    """
    asked = plan.request.use_gradient_checkpointing
    none = Span(0, 0, "nothing")
    if asked is False:
        return Span(0, 0, "no checkpointing: all layers are kept whole"), none
    if asked is True or tokens < _OFFLOADED_FROM or not plan.profile.needs_gpu:
        every = f"a hidden state for each of {n_layers} layers"
        return Span(n_layers * hidden, 2 * n_layers * hidden, every), none
    host = Span(
        (n_layers - 1) * hidden,
        _ROUNDED * n_layers * hidden,
        f"hidden states of {n_layers} layers, moved off the device",
    )
    return Span(hidden, 2 * 3 * hidden, "buffers of the hidden states that are moved"), host


def _attention(shape: Shape, plan: Plan, tokens: int, width: int, n_layers: int) -> Span:
    """Scores of every pair of tokens, where attention is not fused.

    The least is a float32 softmax and its copy in the compute dtype; the most adds two forms of
    the scores before it and the gradients of all four. The CPU backend leaves the choice to
    transformers, which mostly fuses.
    """
    if not shape.eager or shape.heads is None:
        return Span(0, 0, "fused: no scores are kept")
    at_once = n_layers if plan.request.use_gradient_checkpointing is False else 1
    pairs = shape.heads * tokens * tokens * at_once
    low = _FLOAT + width if plan.profile.needs_gpu else 0
    high = 2 * _FLOAT + 4 * width
    return Span(pairs * low, pairs * high, f"{shape.heads} heads, a score for each pair of tokens")


def _logits(hidden: int, vocabulary: int, tokens: int, width: int, room: int | None) -> Span:
    """The fused loss goes piece by piece: at the least one row and the gradient of its input.

    At the most it takes half of what it finds free, and no more than its cap.
    """
    whole = tokens * vocabulary * _BYTES_PER_LOGIT
    least = min(whole, vocabulary * _BYTES_PER_LOGIT + tokens * hidden * width)
    budget = _FUSED_CAP if room is None else min(_FUSED_CAP, room // 2)
    why = f"{vocabulary} words, in pieces (at once it would be {whole / GIB:.1f} GiB)"
    return Span(least, min(whole, max(least, budget)), why)


def _unpacked(held: Iterable[Weight]) -> Span:
    """A packed matrix is unpacked for its product; forward and backward may both hold one."""
    largest = max((weight.plain for weight in held if weight.packs), default=0)
    return Span(largest, 2 * largest, "the largest packed weight, unpacked for its product")


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
