"""Variables of others that change what is trained, or that break an import without a name.

A leaf: imports only `app.settings_errors` and `app.settings_numbers`. Read in unsloth and
unsloth_zoo 2026.10.9, accelerate 1.15.0, huggingface_hub 1.33.0, datasets 4.8.5, transformers
5.17.0 and torch 2.14.1; a test looks for each refused name in the installed sources. Kernels,
caches, logs and the options of trainers stay the user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from app.settings_errors import Problem, shown
from app.settings_numbers import NUMBERS, WHOLE_NUMBERS

REFUSED_PREFIX = "UNSLOTH_FORCE_"
_FORCED = "it overrides what Unsloth decides from the device and the model"

# Refused by name, whatever the value: unsetting one is easy, and a reader need not know which
# values each reader of it takes for off.
REFUSED: dict[str, str] = {
    "UNSLOTH_FORCE_FLOAT32": "it turns the float16 path with float32 norms on for any model",
    "UNSLOTH_FORCE_CUSTOM_DTYPE": "it picks the dtypes of the load, and older releases execute it",
    "UNSLOTH_FORCE_CPU": "it trains on the CPU though there is a GPU",
    "UNSLOTH_ALLOW_CPU": "it takes the CPU for a CUDA device",
    "UNSLOTH_ZOO_DISABLE_GPU_INIT": "it reports the CPU as the device",
    "UNSLOTH_CPU_BF16": "it overrides which dtype the CPU computes in",
    "UNSLOTH_CPU_FP16": "it overrides which dtype the CPU computes in",
    "UNSLOTH_CPU_FROZEN_BF16": "it keeps frozen weights in bfloat16 when float32 was asked for",
    "UNSLOTH_CPU_LOAD_IN_4BIT": "it switches 4-bit off on the CPU; use BOOT_LOAD_IN_4BIT",
    "UNSLOTH_FP8_TO_NF4": "it overrides whether an 8-bit checkpoint becomes 4-bit",
    "UNSLOTH_FP8_TO_NF4_QUANTIZE_16BIT": "it packs layers that the checkpoint kept in 16 bits",
    "UNSLOTH_HIGH_PRECISION_LAYERNORM": "it changes the dtype that norms compute in",
    "UNSLOTH_UPCAST_LAYERNORM": "it casts norms to float32",
    "UNSLOTH_DISABLE_FLOAT32_UPCAST": "it keeps norms from float32",
    "UNSLOTH_BFLOAT16_MIXED_PRECISION": "it generates in bfloat16 on any hardware",
    "UNSLOTH_FREEZE_NORM_RUNNING_STATS": "it lets frozen batch norms drift during training",
    "UNSLOTH_RETURN_HIDDEN_STATES": "it makes models return hidden states in place of logits",
    "UNSLOTH_ALLOW_IGNORED_CONFIG": "it trains another network than the checkpoint describes",
    "UNSLOTH_SKIP_TRANSFORMERS_QUANT_STATE_CHECK": "it silences the check for lost 4-bit state",
    "UNSLOTH_ALLOW_UNSAFE_PT2_LOAD": "it executes what a .pt2 file holds",
    "UNSLOTH_TOKENIZERS_V1": "it swaps the tokenizers package for one outside the image's lock",
    "UNSLOTH_TOKENIZERS_V1_PATH": "it imports a package from a folder outside the image's lock",
    "UNSLOTH_USE_MODELSCOPE": "only the Hugging Face hub is verified; HF_ENDPOINT names a mirror",
    "UNSLOTH_TP_SIZE": "it splits the model over ranks, which this release does not support",
    "UNSLOTH_PP_SIZE": "it splits the model over ranks, which this release does not support",
}

# Each counts the processes of one job. Slurm's counts the step's: arrays are not ranks. The last
# three are those of MPI, and accelerate takes each of them for WORLD_SIZE.
_RANKS = (
    *("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
)

_COUNT = re.compile(r"[0-9]{1,9}")
_INDEX = re.compile(r"-1|[0-9]{1,9}")  # accelerate takes -1 for "not set"
_SECONDS = re.compile(r"[1-9][0-9]{0,8}")
# What huggingface_hub, datasets and unsloth agree on; `2`, `t` or `y` mean "online" to them.
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off", re.IGNORECASE)
# accelerate's own (`utils.environment.str_to_bool`), which an empty value breaks too.
_FLAG = re.compile(r"y|yes|t|true|on|1|n|no|f|false|off|0", re.IGNORECASE)
# As Python's `int` and `float` read them.
_WHOLE = re.compile(r"\s*[-+]?[0-9]{1,18}\s*")
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?\s*", re.IGNORECASE)
# An option of torch's allocator; its list in brackets is cut out before.
_OPTION = re.compile(r"[^:;=\[\]]+:[^:;\[\]]+|[^:;=\[\]]+:\[\]")

# Of accelerate's `DynamoBackend`, which takes lower case too.
DYNAMO_BACKENDS = frozenset(
    (
        *("AOT_EAGER", "AOT_TORCHXLA_TRACE_ONCE", "AOT_TS_NVFUSER", "CUDAGRAPHS", "EAGER"),
        *("FX2TRT", "HPU_BACKEND", "INDUCTOR", "NEURON", "NO", "NVPRIMS_NVFUSER", "OFI"),
        *("ONNXRT", "TENSORRT", "TORCHXLA_TRACE_ONCE", "TVM"),
    )
)

# As `logging` knows them; it takes neither lower case nor numbers as text.
_LEVEL = re.compile(r"CRITICAL|FATAL|ERROR|WARN|WARNING|INFO|DEBUG|NOTSET")
_ANY_LEVEL = re.compile(_LEVEL.pattern, re.IGNORECASE)

_A_SWITCH = "1, true, yes, on, 0, false, no or off"
_A_LEVEL = "DEBUG, INFO, WARNING, ERROR or CRITICAL"
_OPTIONS = "option:value, several separated by commas"


def _are_options(value: str) -> bool:
    """Whether torch's allocator can take the value apart; it aborts where it runs past the end."""
    text = re.sub(r"\[[^\[\]]+\]", "[]", "".join(value.split()))
    return all(_OPTION.fullmatch(each) for each in text.split(",") if each)


# A wrong value of these ends in an exception without a name (or in an abort) while a package is
# imported or a trainer is made, or is silently taken for something else. Each was tried on a CPU,
# but for those of UNSLOTH, which stand at the top of modules that only a GPU imports.
_TYPES: dict[str, tuple[Callable[[str], object], str]] = {
    "RANK": (_INDEX.fullmatch, "a whole number"),
    "LOCAL_RANK": (_INDEX.fullmatch, "a whole number"),
    "LOCAL_WORLD_SIZE": (_COUNT.fullmatch, "a whole number"),
    "HF_HUB_ETAG_TIMEOUT": (_SECONDS.fullmatch, "whole seconds, at least 1"),
    "HF_HUB_DOWNLOAD_TIMEOUT": (_SECONDS.fullmatch, "whole seconds, at least 1"),
    "HF_HUB_OFFLINE": (_SWITCH.fullmatch, _A_SWITCH),
    "TRANSFORMERS_OFFLINE": (_SWITCH.fullmatch, _A_SWITCH),
    "HF_DATASETS_OFFLINE": (_SWITCH.fullmatch, _A_SWITCH),
    "HF_DATASETS_IN_MEMORY_MAX_SIZE": (_NUMBER.fullmatch, "a number of bytes"),
    **dict.fromkeys(
        (
            *("ACCELERATE_CPU_AFFINITY", "ACCELERATE_DEBUG_MODE", "ACCELERATE_ENABLE_RICH"),
            *("ACCELERATE_DYNAMO_USE_DYNAMIC", "ACCELERATE_DYNAMO_USE_FULLGRAPH"),
            "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
            *("ACCELERATE_INIT_INCLUDE_BUFFERS", "ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED"),
            *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM", "FORK_LAUNCHED"),
            "USE_TORCH_XLA",
        ),
        (_FLAG.fullmatch, _A_SWITCH),
    ),
    "ACCELERATE_MIXED_PRECISION": (
        re.compile(r"|no|fp16|bf16|fp8", re.IGNORECASE).fullmatch,
        "no, fp16, bf16 or fp8",
    ),
    "ACCELERATE_DYNAMO_BACKEND": (
        lambda value: value.upper() in DYNAMO_BACKENDS,
        "no, inductor, eager or another backend of accelerate's",
    ),
    "ACCELERATE_FP8_BACKEND": (re.compile(r"NO|AO|TE|MSAMP").fullmatch, "NO, AO, TE or MSAMP"),
    "ACCELERATE_TORCH_DEVICE": (
        re.compile(r"(cpu|cuda)(:(0|[1-9][0-9]{0,2}))?").fullmatch,
        "cuda, cuda:0 or cpu",
    ),
    "ACCELERATE_LOG_LEVEL": (_ANY_LEVEL.fullmatch, _A_LEVEL),
    "PYTORCH_MATCHER_LOGLEVEL": (_ANY_LEVEL.fullmatch, _A_LEVEL),
    "LOGLEVEL": (_LEVEL.fullmatch, f"{_A_LEVEL}, in upper case"),
    "PYTORCH_ALLOC_CONF": (_are_options, _OPTIONS),
    "PYTORCH_CUDA_ALLOC_CONF": (_are_options, _OPTIONS),
    "TORCH_DISTRIBUTED_DEBUG": (
        re.compile(r"OFF|INFO|DETAIL", re.IGNORECASE).fullmatch,
        "OFF, INFO or DETAIL",
    ),
    "TORCHINDUCTOR_WORKER_START": (
        re.compile(r"subprocess|fork|spawn").fullmatch,
        "subprocess, fork or spawn",
    ),
    **dict.fromkeys(WHOLE_NUMBERS, (_WHOLE.fullmatch, "a whole number")),
    **dict.fromkeys(NUMBERS, (_NUMBER.fullmatch, "a number")),
    # transformers reads its own docstrings when it is imported, and 2 takes them away. Python
    # takes any other text for 1.
    "PYTHONOPTIMIZE": (
        re.compile(r"(?!\s*\+?0*([2-9]|[1-9][0-9]+)\s*$).*", re.DOTALL).fullmatch,
        "unset, 0 or 1",
    ),
}


_READERS = "what the libraries make of it at import"


def inherited_problems(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> list[Problem]:
    """What is wrong in the variables of others."""
    secrets = tuple(secrets)
    return _refused(environ) + _ranks(environ, secrets) + _types(environ, secrets)


def _refused(environ: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(
            name if name.isascii() and name.isprintable() else ascii(name)[1:-1],
            expected="unset",
            actual="set",
            suggestion=f"unset it: {REFUSED.get(name, _FORCED)}",
            source=_READERS,
        )
        for name in sorted(environ)
        if name in REFUSED or name.startswith(REFUSED_PREFIX)
    ]


def _ranks(environ: Mapping[str, str], secrets: tuple[str, ...]) -> list[Problem]:
    problems = []
    for name in _RANKS:
        value = environ.get(name, "1")
        number = int(value) if _COUNT.fullmatch(value) else 0
        if number == 1:
            continue
        suggestion = (
            "start one process: jobs of several ranks are not supported by this release"
            if number > 1
            else "unset it"
        )
        problems.append(Problem(name, "1 or unset", shown(value, secrets), suggestion, _READERS))
    return problems


def _types(environ: Mapping[str, str], secrets: tuple[str, ...]) -> list[Problem]:
    return [
        Problem(name, expected, shown(environ[name], secrets), "correct or unset it", _READERS)
        for name, (is_good, expected) in _TYPES.items()
        if name in environ and not is_good(environ[name])
    ]
