"""The table of boots that are broken on purpose, each with the checks that must name it.

A case is one thing that goes wrong: in the model's memory (`breaks`, once the stage `after` has
ended), in a library or on the device (`replaces`, for the time of the boot), or in the files. What
cannot happen on a CPU is played by what it leaves behind, and `what` says what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.exits import ExitCode
from app.profiles import CPU, V100, Profile
from tests import broken_arithmetic as arithmetic
from tests import broken_files
from tests import broken_memory as memory
from tests.broken_memory import H100_ON_CPU, INF, LAYER, NAN, NORM, V100_ON_CPU, Break
from tests.broken_models import MUTATIONS, OTHER_LAYER
from tests.tiny_models import Kind

OK, DATAERR, NODE_UNFIT = ExitCode.OK, ExitCode.DATAERR, ExitCode.NODE_UNFIT
INTERNAL, HW_MISMATCH = ExitCode.INTERNAL, ExitCode.HW_MISMATCH
PRECISION, NUMERICS = ExitCode.PRECISION, ExitCode.NUMERICS

_ATTACH, _LOAD = "app.engine.adapter:attach", "app.engine.loader:load"
# Of Llama, for the cards' profiles: Unsloth's path for Gemma 3n on a V100 is not the trainer's.
_LLAMA_LAYER, _LLAMA_NORM = "model.layers.1", "model.layers.1.input_layernorm"


def _nothing(model: Any) -> None:
    del model


@dataclass(frozen=True)
class Case:
    """One broken boot.

    `checks` are those that fail or warn, in order: "ID", or "ID in STAGE" where the stage is not
    the id's own; each once. `named` stands in the first one's reason. `code` is the exit status.
    `shows` is what differs in the report from a healthy boot's where no check can see it.
    """

    what: str
    checks: tuple[str, ...]
    code: ExitCode
    named: str = ""
    after: str = ""
    breaks: Break = _nothing
    replaces: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    files: Callable[[Path], None] | None = None
    kind: Kind = "gemma3n-nf4"
    profile: Profile = CPU
    shows: Literal["", "weights", "logits"] = ""

    @property
    def everything_replaced(self) -> dict[str, Callable[[Any], Any]]:
        """With what makes a model on a CPU one of the profile's card."""
        if self.profile is CPU:
            return dict(self.replaces)
        return {_LOAD: memory.cast_to(self.profile.compute_dtype), **self.replaces}


def _loaded(what: str, check: str, named: str, breaks: Break, **more: Any) -> Case:
    """What went wrong while loading breaks the contract, on every node."""
    return Case(what, (f"precision.{check}",), PRECISION, named, "load", breaks, **more)


def _attached(what: str, checks: str, breaks: Break, named: str = LAYER) -> Case:
    """What went wrong while the adapter was attached."""
    attach = {_ATTACH: memory.then(breaks)}
    return Case(what, tuple(checks.split(", ")), PRECISION, named, replaces=attach)


def _later(what: str, checks: str, code: ExitCode, named: str, breaks: Break, **more: Any) -> Case:
    """What goes wrong behind the looks at the model: only its numbers tell."""
    ids = tuple(f"numerics.{each}" for each in checks.split())
    return Case(what, ids, code, named, "adapter", breaks, **more)


def _training(what: str, checks: str, act: Callable[[Any, Any], None], **more: Any) -> Case:
    """What a library does to one layer in each training pass."""
    return _later(what, checks, PRECISION, LAYER, arithmetic.while_training(act), **more)


def _replaced(
    what: str,
    checks: str,
    code: ExitCode,
    named: str,
    place: str,
    make: Callable[[Any], Any],
    **more: Any,
) -> Case:
    """A library, or the device behind it, that computes something else."""
    return Case(what, tuple(checks.split()), code, named, replaces={place: make}, **more)


def _in_file(what: str, checks: str, code: ExitCode, name: str, number: float, **more: Any) -> Case:
    """One number of the checkpoint's own."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[name].view(-1)[0] = number

    ids = tuple(f"numerics.{each}" for each in checks.split())
    named = name.removesuffix(".nested_absmax")
    return Case(
        what, ids, code, named, files=lambda folder: broken_files.rewrite(folder, change), **more
    )


HEALTHY: dict[str, Case] = {
    "healthy": Case("nothing, Gemma 3n", (), OK),
    "healthy llama": Case("nothing, Llama", (), OK, kind="llama-nf4"),
    "healthy v100": Case(
        "nothing, Llama in float16", (), OK, kind="llama-nf4", profile=V100_ON_CPU
    ),
    "healthy v100 gemma": Case("nothing, Gemma 3n in float16", (), OK, profile=V100_ON_CPU),
    "healthy h100": Case("nothing, Gemma 3n in bfloat16", (), OK, profile=H100_ON_CPU),
}

_LOADED: dict[str, Case] = {
    "compute dtype": _loaded(
        "one packed layer computes in float32 and unpacks to bfloat16: each is allowed, not both",
        "quant_dtypes",
        LAYER,
        memory.compute_dtype("float32"),
    ),
    "state dtype": _loaded(
        "one packed layer unpacks to float16, which its backward pass takes too",
        "quant_dtypes",
        LAYER,
        memory.state_dtype("float16"),
    ),
    "norm in float64": _loaded(
        "one norm in float64", "wide_dtypes", NORM, memory.parameter_dtype("float64")
    ),
    "buffer in float16": _loaded(
        "the rotary frequencies in float16: a buffer that no list of parameters has",
        "forbidden_dtypes",
        memory.ROTARY,
        memory.buffer_dtype("float16"),
    ),
    "bfloat16 on a v100": _loaded(
        "V100: one norm in bfloat16",
        "forbidden_dtypes",
        _LLAMA_NORM,
        memory.parameter_dtype("bfloat16", _LLAMA_NORM),
        kind="llama-nf4",
        profile=V100_ON_CPU,
    ),
    "float16 on an h100": _loaded(
        "H100: one norm in float16",
        "forbidden_dtypes",
        _LLAMA_NORM,
        memory.parameter_dtype("float16", _LLAMA_NORM),
        kind="llama-nf4",
        profile=H100_ON_CPU,
    ),
    "mark lost": _loaded(
        "V100: Unsloth's mark that Gemma 3n is computed in float32 is lost",
        "forced_float32",
        "_unsloth_forced_float32",
        memory.unmarked,
        profile=V100_ON_CPU,
    ),
    "code book": _loaded(
        "two of the sixteen values of one quant state's code book exchanged",
        "quant_states",
        LAYER,
        memory.swapped_code_book,
    ),
    "no quant state": _loaded(
        "the quant state of one layer lost", "quant_states", LAYER, MUTATIONS["no quant state"]
    ),
    "block size": _loaded(
        "the quant state of one layer says blocks of 128", "quant_states", LAYER, memory.block_size
    ),
    "fp4": _loaded("the quant state of one layer says fp4", "quant_states", LAYER, memory.fp4),
    "meta": _loaded(
        "one norm left on meta, without data",
        "devices",
        "model.language_model.norm.weight",
        MUTATIONS["meta"],
    ),
    "offloaded": _loaded(
        "accelerate's map says that a part stays on disk",
        "device_map",
        "hf_device_map[model.vision_tower]",
        memory.offloaded,
    ),
    "fresh weight": _loaded(
        "a packed layer became a plain one with fresh random weights",
        "packed_layers",
        OTHER_LAYER,
        MUTATIONS["fresh weight"],
    ),
    "wrong values": _loaded(
        "a packed layer was unpacked, its rows shifted by one",
        "packed_layers",
        OTHER_LAYER,
        MUTATIONS["wrong values"],
    ),
    "projection unpacked": _loaded(
        "a projection was unpacked, with the right values",
        "packed_layers",
        LAYER,
        MUTATIONS["projection dequantised"],
    ),
    "4 bits dropped": Case(
        "the loader dropped the request for 4 bits",
        ("precision.packed_layers",),
        PRECISION,
        "q_proj",
        kind="llama-bf16",
        replaces={_LOAD: memory.without_4bit},
    ),
}

_ADAPTER: dict[str, Case] = {
    "half an adapter": _attached(
        "A of one LoRA pair in bfloat16",
        "precision.lora_dtypes in adapter",
        memory.lora_dtype("bfloat16"),
    ),
    "frozen pair": _attached("one pair frozen", "adapter.only_lora_trains", memory.frozen),
    "trainable norm": _attached(
        "a layer's norm set to train", "adapter.only_lora_trains", memory.unfrozen, named=NORM
    ),
    "b not zero": _attached(
        "one number of one B is not zero", "adapter.starts_at_zero", memory.lora_value(0.01)
    ),
    "pair missing": _attached(
        "one layer without its pair", "adapter.on_every_layer", memory.pair_missing
    ),
    "pair off": _attached(
        "one pair switched off by PEFT, which freezes it too",
        "adapter.attached, adapter.only_lora_trains",
        memory.pair_disabled,
    ),
    "pair tied": _attached("two layers share one A", "adapter.attached", memory.tied_pair),
    "alpha": _attached(
        "alpha of one pair doubled", "adapter.hyperparameters", memory.doubled_alpha
    ),
    "pairs on audio": _replaced(
        "LoRA on the audio tower too: Unsloth's CPU backend left to itself",
        "adapter.only_where_asked",
        PRECISION,
        "audio_tower",
        "app.engine.adapter:_target_modules",
        memory.every_projection,
    ),
}

_TRAINING: dict[str, Case] = {
    "graph cut": _later(
        "the graph is cut behind a layer: what stands before it gets no gradient",
        "gradient_reaches_every_pair",
        PRECISION,
        "layers.0.",
        arithmetic.detached,
    ),
    "a zero": _later(
        "A of one pair is zero: the pair never learns",
        "gradient_reaches_every_pair",
        PRECISION,
        LAYER,
        memory.lora_a_zero,
    ),
    "frozen in training": _training(
        "a library freezes one pair in training",
        "gradient_reaches_every_pair",
        arithmetic.freeze_adapter,
    ),
    "b moved": _later(
        "one B changed between the look at the adapter and the steps",
        "adapter_starts_at_zero",
        PRECISION,
        "differs from its base",
        memory.lora_value(0.5),
    ),
    "base moved": _training(
        "training writes into a packed weight, past its version counter",
        "nothing_else_moved",
        arithmetic.write_base,
    ),
    "adapter cast": replace(
        _training("training casts a pair to bfloat16", "left_as_found", arithmetic.cast_adapter),
        checks=("numerics.left_as_found", "precision.lora_dtypes in numerics"),
    ),
    "adapter in a new place": _training(
        "training gives a pair new storage: who holds the old one trains nothing",
        "left_as_found",
        arithmetic.move_adapter,
    ),
    "shapes": _later(
        "a layer's output does not fit the next one's input",
        "gather",
        PRECISION,
        "a training step of this model fails",
        arithmetic.narrower,
    ),
    "overflow on a v100": _in_file(
        "V100: the file holds 70000, the cast to float16 makes it infinite",
        "cast_overflow weights_finite",
        PRECISION,
        f"{_LLAMA_NORM}.weight",
        70000.0,
        kind="llama-nf4",
        profile=V100_ON_CPU,
    ),
}

_NUMBERS: dict[str, Case] = {
    "infinite weight": _later(
        "infinity in a norm", "weights_finite", NUMERICS, NORM, memory.weight(INF)
    ),
    "nan weight": _later("NaN in a norm", "weights_finite", NUMERICS, NORM, memory.weight(NAN)),
    "huge in memory": _later(
        "3e38 in a norm, in memory and not in the file",
        "weights_as_in_file loss_finite headroom_finite",
        NUMERICS,
        NORM,
        memory.weight(3e38),
    ),
    "zeroed in memory": _later(
        "a norm of zeros, in memory and not in the file",
        "weights_as_in_file gradient_reaches_every_pair",
        NUMERICS,
        NORM,
        memory.zeroed,
    ),
    "nan in audio": _later(
        "one NaN in the audio tower, which no batch of text reaches",
        "weights_finite",
        NUMERICS,
        memory.AUDIO,
        memory.weight(NAN, memory.AUDIO),
    ),
    "nan statistic": _later(
        "NaN in a statistic of a batch norm: a persistent buffer of the vision tower",
        "weights_finite",
        NUMERICS,
        "running_var",
        memory.statistic,
    ),
    "nan absmax": _later(
        "NaN as the scale of the scales of one packed layer",
        "scales_as_in_file weights_finite",
        NUMERICS,
        LAYER,
        memory.nested_scale(NAN),
    ),
    "infinite adapter": _replaced(
        "infinity in a fresh A",
        "numerics.weights_finite",
        NUMERICS,
        "lora_A",
        _ATTACH,
        memory.then(memory.lora_value(INF, "A")),
    ),
    "absmax": _later(
        "one bit of one absmax: another scale, and a finite one",
        "scales_as_in_file",
        NUMERICS,
        LAYER,
        memory.scale,
    ),
    "nested absmax": _later(
        "the scale of the scales half as large again",
        "scales_as_in_file",
        NUMERICS,
        LAYER,
        memory.nested_scale(1.5),
    ),
    "offset": _later(
        "the scales' offset a tenth larger", "scales_as_in_file", NUMERICS, LAYER, memory.offset
    ),
    "layers exchanged": _later(
        "two layers hold each other's packed weight",
        "scales_as_in_file",
        NUMERICS,
        "up_proj",
        memory.exchanged,
    ),
    "nan rotary": _later(
        "NaN in a rotary frequency: a buffer that no file holds",
        "loss_finite headroom_finite",
        NUMERICS,
        "a loss is not finite",
        memory.buffer_value(NAN),
    ),
    "nan activation": _later(
        "a layer puts NaN out",
        "loss_finite headroom_finite",
        NUMERICS,
        "a loss is not finite",
        arithmetic.output(NAN),
    ),
    "float16 overflow": _later(
        "V100: a norm of 60000, finite, makes activations overflow",
        "loss_finite headroom_finite",
        NUMERICS,
        "a loss is not finite",
        memory.weight(60000.0, _LLAMA_NORM),
        kind="llama-nf4",
        profile=V100_ON_CPU,
    ),
    "hidden overflow": _later(
        "an activation overflows, and the next module hides it from loss and gradients",
        "headroom_finite",
        NUMERICS,
        f"{arithmetic.STACK}.mlp",
        arithmetic.hidden_overflow,
    ),
    "infinite loss": _later(
        "the loss is infinite, though every logit is finite",
        "loss_finite headroom_finite",
        NUMERICS,
        "a loss is not finite",
        arithmetic.loss(INF),
    ),
    "nan gradient": _later(
        "a hook makes one pair's gradient NaN",
        "loss_finite gradients_finite",
        NUMERICS,
        "a loss is not finite",
        arithmetic.gradient(NAN),
    ),
    "nan single row": _later(
        "a layer puts out NaN for a single row, which only a generation has",
        "generation",
        NUMERICS,
        "logits of a generated token",
        arithmetic.single_row,
    ),
}

_DEVICE: dict[str, Case] = {
    "torch wrong": _replaced(
        "torch's product of two matrices has one wrong value",
        "stack.torch_kernel",
        NUMERICS,
        "torch computes wrong numbers",
        "torch:Tensor.__matmul__",
        arithmetic.one_wrong(),
    ),
    "bitsandbytes wrong": _replaced(
        "bitsandbytes unpacks everything 1/64 too large",
        "stack.bitsandbytes_kernel",
        NUMERICS,
        "bitsandbytes computes wrong numbers",
        arithmetic.DEQUANTISE,
        arithmetic.off(2**-6),
    ),
    "bitsandbytes raises": _replaced(
        "bitsandbytes' kernel raises",
        "stack.bitsandbytes_kernel",
        NUMERICS,
        "invalid argument",
        arithmetic.DEQUANTISE,
        arithmetic.raising(RuntimeError("CUDA error: invalid argument")),
    ),
    "unpacks wrong": _replaced(
        "one value of each packed weight is unpacked wrongly; the small kernel of the stack stage "
        "does not show it",
        "numerics.nf4_exact",
        NUMERICS,
        "bitsandbytes unpacks",
        arithmetic.DEQUANTISE,
        arithmetic.one_wrong(4096),
    ),
    "backward off": _replaced(
        "the 4-bit product's backward pass half as large again, in every layer",
        "numerics.nf4_products",
        NUMERICS,
        "input gradient of 64 rows",
        arithmetic.BACKWARD,
        arithmetic.backward_off(0.5),
    ),
    "product off": _replaced(
        "the 4-bit product is 1/64 too large, unpacking is right",
        "numerics.nf4_products",
        NUMERICS,
        "far from float64",
        arithmetic.PRODUCT,
        arithmetic.off(2**-6),
    ),
    "unrepeatable": _later(
        "the last bits of the logits differ from pass to pass",
        "repeatable",
        NUMERICS,
        "different logits",
        arithmetic.last_bit,
    ),
}

_OTHERS: dict[str, Case] = {
    "nan in file": _in_file(
        "NaN in a norm of the file", "weights_finite", DATAERR, f"{NORM}.weight", NAN
    ),
    "nan scale in file": _in_file(
        "NaN as a scale of scales in the file",
        "weights_finite",
        DATAERR,
        f"{LAYER}.weight.nested_absmax",
        NAN,
    ),
    "weight missing": Case(
        "the file lacks one weight, which transformers fills at random",
        ("load.weights_from_checkpoint",),
        DATAERR,
        broken_files.WEIGHT,
        files=broken_files.BREAKINGS["missing weight"],
        kind="llama-bf16",
    ),
    "fewer layers": Case(
        "config.json says one layer less than the weights have",
        ("load.nothing_left_over",),
        DATAERR,
        "model.layers.1.",
        files=broken_files.BREAKINGS["fewer layers"],
        kind="llama-bf16",
    ),
    "no tokenizer": Case(
        "the model came without a tokenizer",
        ("load.tokenizer",),
        DATAERR,
        "without a tokenizer",
        replaces={_LOAD: memory.without_tokenizer},
    ),
    "huge in file": replace(
        _in_file(
            "a norm of 3e38 in the file",
            "loss_finite headroom_finite",
            DATAERR,
            f"{NORM}.weight",
            3e38,
        ),
        named="suspected weights",
    ),
    "device lost": _later(
        "the driver reports an illegal access in a step",
        "gather",
        NODE_UNFIT,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        arithmetic.illegal_access,
    ),
    "no memory": _later(
        "a step does not fit into the device's memory",
        "gather",
        HW_MISMATCH,
        "out of device memory",
        arithmetic.no_memory,
    ),
    "no loss": _later(
        "the model's forward returns no loss", "gather", INTERNAL, "no loss", arithmetic.no_loss
    ),
}

_WARNINGS: dict[str, Case] = {
    "unrepeatable without evidence": _later(
        "V100: the last bits of the logits differ; no result of that hardware is committed yet",
        "repeatable",
        OK,
        "only a warning",
        arithmetic.last_bit,
        kind="llama-nf4",
        profile=V100_ON_CPU,
    ),
    "little room": _later(
        "V100: an activation of 30000, a bit below float16's largest number",
        "headroom",
        OK,
        "below float16's largest number",
        arithmetic.output(30000.0, _LLAMA_LAYER),
        kind="llama-nf4",
        profile=V100_ON_CPU,
    ),
    "slow": Case(
        "V100: float16 no faster than float32, as emulated or throttled",
        ("numerics.speed",),
        OK,
        "slower than a healthy one",
        kind="llama-nf4",
        profile=replace(V100_ON_CPU, floors=V100.floors),
    ),
    "wrong direction": _later(
        "every gradient has the wrong sign",
        "loss_falls",
        OK,
        "did not fall",
        arithmetic.all_gradients(-1.0),
    ),
    "checkpointing off": _later(
        "gradient checkpointing was asked for, and is off",
        "gradient_checkpointing",
        OK,
        "is off",
        arithmetic.no_checkpointing,
    ),
    "no generation": _later(
        "the model cannot generate", "generation", OK, "cannot generate", arithmetic.no_generation
    ),
}

_UNSEEN: dict[str, Case] = {
    "packed bit": _later(
        "one bit of a packed weight", "", OK, "", memory.packed_bit, shows="weights"
    ),
    "weight changed": _later(
        "one number of a norm, finite", "", OK, "", memory.weight(1.5), shows="weights"
    ),
    "head untied": _later(
        "the head no longer the embedding, and twice as large",
        "",
        OK,
        "",
        memory.untied,
        shows="weights",
    ),
    "rotary changed": _later(
        "one rotary frequency, which no file holds",
        "",
        OK,
        "",
        memory.buffer_value(0.5),
        shows="logits",
    ),
    "attention off": _replaced(
        "a kernel of attention whose results are 1/64 too large",
        "",
        OK,
        "",
        "torch.nn.functional:scaled_dot_product_attention",
        arithmetic.off(2**-6),
        shows="logits",
    ),
}

GROUPS: dict[str, dict[str, Case]] = {
    "The load: 76, the same on every node": _LOADED,
    "The adapter: 76": _ADAPTER,
    "Training: 76": _TRAINING,
    "Numbers: 80, another node may have them right": _NUMBERS,
    "The device and its kernels: 80": _DEVICE,
    "Where the cause is another": _OTHERS,
    "What only warns": _WARNINGS,
    "What one boot cannot see": _UNSEEN,
}
CASES: dict[str, Case] = {
    name: case for group in (HEALTHY, *GROUPS.values()) for name, case in group.items()
}
