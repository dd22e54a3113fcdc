"""What can be wrong with a model in memory: each function returns what breaks one thing of it.

Paths are those before PEFT; where a layer is adapted meanwhile, its base layer is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from app.profiles import CPU, H100, V100, Profile

Break = Callable[[Any], None]

LAYER = "model.language_model.layers.1.mlp.up_proj"
NORM = "model.language_model.layers.1.input_layernorm"
ROTARY = "model.language_model.rotary_emb"
AUDIO = "model.audio_tower.conformer.0.attention.attn.q_proj"
NAN, INF = float("nan"), float("inf")


def on_cpu(profile: Profile) -> Profile:
    """A card's profile for tensors in host memory; what only the card can show is left out."""
    return replace(
        profile,
        device="cpu",
        compute_capability=None,
        environment=(),
        step_tokens=CPU.step_tokens,
        floors=None,
    )


V100_ON_CPU, H100_ON_CPU = on_cpu(V100), on_cpu(H100)


def part(model: Any, path: str) -> Any:
    """A module of the base model, the real layer below a LoRA pair."""
    inner = getattr(model, "get_base_model", None)
    module = (inner() if inner else model).get_submodule(path)
    return getattr(module, "base_layer", module)


def pair(model: Any, path: str = LAYER) -> Any:
    """The layer with the LoRA pair."""
    return model.get_base_model().get_submodule(path)


def then(breaks: Break) -> Callable[[Any], Any]:
    """For the function that attaches the adapter: what it hands out is broken."""

    def make(attach: Any) -> Any:
        def attached(*arguments: Any) -> Any:
            model = attach(*arguments)
            breaks(model)
            return model

        return attached

    return make


def cast_to(dtype: str) -> Callable[[Any], Any]:
    """For the loader: plain weights in the card's type too, as Unsloth's CUDA path leaves them."""

    def make(load: Any) -> Any:
        import torch

        def loaded(plan: Any, *arguments: Any, **named: Any) -> Any:
            found = load(plan, *arguments, **named)
            model, wanted = found.model, getattr(torch, dtype)
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dtype in (torch.float32, torch.bfloat16):
                    tensor.data = tensor.data.to(wanted)
            parts = (getattr(model.config, name, None) for name in model.config.sub_configs)
            for config in filter(None, (model.config, *parts)):
                config.dtype = wanted
            forced = model.config.model_type == "gemma3n" and dtype == "float16"
            model._unsloth_forced_float32 = forced
            return found

        return loaded

    return make


def compute_dtype(dtype: str) -> Break:
    """One packed layer computes in another type."""

    def breaks(model: Any) -> None:
        import torch

        part(model, LAYER).compute_dtype = getattr(torch, dtype)

    return breaks


def state_dtype(dtype: str) -> Break:
    """One packed layer unpacks to another type."""

    def breaks(model: Any) -> None:
        import torch

        part(model, LAYER).weight.quant_state.dtype = getattr(torch, dtype)

    return breaks


def parameter_dtype(dtype: str, path: str = NORM) -> Break:
    """One plain weight in another type."""

    def breaks(model: Any) -> None:
        import torch

        weight = part(model, path).weight
        weight.data = weight.data.to(getattr(torch, dtype))

    return breaks


def buffer_dtype(dtype: str) -> Break:
    """The rotary frequencies in another type: a buffer that no list of parameters has."""

    def breaks(model: Any) -> None:
        import torch

        buffers = part(model, ROTARY)._buffers
        for name, buffer in buffers.items():
            buffers[name] = buffer.to(getattr(torch, dtype))

    return breaks


def buffer_value(number: float) -> Break:
    """A rotary frequency of another value."""

    def breaks(model: Any) -> None:
        for buffer in part(model, ROTARY)._buffers.values():
            buffer[0] = number

    return breaks


def swapped_code_book(model: Any) -> None:
    """Two of the sixteen values that a packed layer's numbers stand for, exchanged."""
    code = part(model, LAYER).weight.quant_state.code
    code[[3, 4]] = code[[4, 3]]


def weight(number: float, path: str = NORM) -> Break:
    """One number of a plain weight becomes this one."""

    def breaks(model: Any) -> None:
        part(model, path).weight.data.view(-1)[0] = number

    return breaks


def zeroed(model: Any) -> None:
    """Nothing is left of a plain weight."""
    part(model, NORM).weight.data.zero_()


def statistic(model: Any) -> None:
    """A statistic of a batch norm in the vision tower, which no batch of text reaches."""
    part(model, "model.vision_tower.timm_model.bn1").running_var[0] = NAN


def scale(model: Any) -> None:
    """One bit of one scale: another number that is one."""
    part(model, LAYER).weight.quant_state.absmax[5] ^= 16


def nested_scale(number: float) -> Break:
    """The scale of the scales, times a number."""

    def breaks(model: Any) -> None:
        part(model, LAYER).weight.quant_state.state2.absmax[0] *= number

    return breaks


def offset(model: Any) -> None:
    """The mean of the scales, off by a tenth."""
    part(model, LAYER).weight.quant_state.offset *= 1.1


def packed_bit(model: Any) -> None:
    """One bit of a packed weight: another of the sixteen values."""
    part(model, LAYER).weight.data.view(-1)[100] ^= 1


def frozen(model: Any) -> None:
    """Both matrices of one pair."""
    for parameter in _matrices(pair(model)):
        parameter.requires_grad_(requires_grad=False)


def unfrozen(model: Any) -> None:
    """A norm of the base, set to train."""
    part(model, NORM).weight.requires_grad_(requires_grad=True)


def _matrices(layer: Any) -> Iterator[Any]:
    yield layer.lora_A["default"].weight
    yield layer.lora_B["default"].weight


def lora_value(number: float, letter: str = "B") -> Break:
    """One number of a pair's matrix."""

    def breaks(model: Any) -> None:
        matrix = getattr(pair(model), f"lora_{letter}")["default"].weight
        matrix.data.view(-1)[0] = number

    return breaks


def lora_dtype(dtype: str) -> Break:
    """A of one pair in another type."""

    def breaks(model: Any) -> None:
        import torch

        pair(model).lora_A["default"].to(getattr(torch, dtype))

    return breaks


def pair_missing(model: Any) -> None:
    """One layer as it was before the adapter."""
    model.get_base_model().set_submodule(LAYER, pair(model).base_layer)


def pair_disabled(model: Any) -> None:
    """One layer computes without its pair."""
    pair(model).enable_adapters(enabled=False)


def doubled_alpha(model: Any) -> None:
    """The scale that alpha gives one pair, doubled."""
    pair(model).scaling["default"] *= 2


def without_4bit(load: Any) -> Any:
    """For the loader: the request for 4 bits is dropped."""

    def loaded(plan: Any, *arguments: Any, **named: Any) -> Any:
        request = replace(plan.request, load_in_4bit=False)
        return load(replace(plan, request=request), *arguments, **named)

    return loaded


def every_projection(_usual: Any) -> Any:
    """For the choice of LoRA's targets: towers and all."""
    return lambda *_arguments: r".*\.(q|k|v|o|gate|up|down)_proj"


def unmarked(model: Any) -> None:
    """Unsloth's mark that a family is computed in float32 is lost."""
    model._unsloth_forced_float32 = False


def block_size(model: Any) -> None:
    """A quant state that reads each scale for twice as many numbers."""
    part(model, LAYER).weight.quant_state.blocksize = 128


def fp4(model: Any) -> None:
    """A quant state that says another code book."""
    part(model, LAYER).weight.quant_state.quant_type = "fp4"


def exchanged(model: Any) -> None:
    """Two layers hold each other's packed weight, states included."""
    one, other = (part(model, LAYER.replace(".1.", f".{n}.")) for n in (0, 1))
    one.weight, other.weight = other.weight, one.weight


def untied(model: Any) -> None:
    """A head of its own, where the embedding is to be it."""
    import torch

    head = part(model, "lm_head")
    head.weight = torch.nn.Parameter(2 * head.weight.detach(), requires_grad=False)


def lora_a_zero(model: Any) -> None:
    """With B zero too no gradient ever reaches the pair."""
    pair(model).lora_A["default"].weight.data.zero_()


def tied_pair(model: Any) -> None:
    """A matrix of one pair is another pair's too."""
    other = pair(model, LAYER.replace(".1.", ".0."))
    pair(model).lora_A["default"].weight = other.lora_A["default"].weight


def offloaded(model: Any) -> None:
    """The map that accelerate leaves on a model that did not fit."""
    model.hf_device_map = {"model.language_model": "cpu", "model.vision_tower": "disk"}


def without_tokenizer(load: Any) -> Any:
    """For the loader: Unsloth hands out None where it cannot load the tokenizer."""

    def loaded(*arguments: Any, **named: Any) -> Any:
        found = load(*arguments, **named)
        return replace(found, tokenizer=None, facts=replace(found.facts, tokenizer_class=""))

    return loaded
