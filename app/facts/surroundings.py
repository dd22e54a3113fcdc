"""Facts of what others have set up around the boot: variables, proxies, certificates.

Standard library only. Never a value that may be a secret: of a proxy only what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})  # as the hub's client reads a switch
# The variables whose values the host stage judges. None of them carries a secret.
WATCHED: frozenset[str] = frozenset(
    (
        *("ACCELERATE_MIXED_PRECISION", "ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU"),
        *("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM"),
        "CUDA_LAUNCH_BLOCKING",
        *("LD_PRELOAD", "LOCAL_RANK", "MASTER_ADDR", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"),
        *("PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTORCH_ALLOC_CONF"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_LOGS"),
        "TRITON_INTERPRET",
    )
)


@dataclass(frozen=True, slots=True)
class ProxyFacts:
    """A variable that names a proxy, or hosts without one, and what a client cannot make of it."""

    variable: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TrustFacts:
    """A file or folder of certificates, or of keys, that a variable names.

    `problem` is empty when it is good.

    `clients` are those that read the variable, as words.
    """

    variable: str
    path: str
    clients: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the environment says to the libraries of the stack, besides settings and folders.

    `missing_preloads` are libraries of LD_PRELOAD that are not there. `unknown_logs` are names in
    TORCH_LOGS that the installed torch does not know, `log_file_problem` is why torch cannot open
    the file that TORCH_LOGS_OUT names.
    `offline` is the variable that forbids the network, if any.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    proxies: tuple[ProxyFacts, ...] = ()
    trust: tuple[TrustFacts, ...] = ()
    missing_preloads: tuple[str, ...] = ()
    unknown_logs: tuple[str, ...] = ()
    log_file_problem: str = ""
    offline: str | None = None


def offline_variable(environ: Mapping[str, str]) -> str | None:
    """The first variable that forbids the network, None when none does.

    The hub's client reads these; any of them means all of them to Unsloth.
    """
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if environ.get(name, "").upper() in _TRUE), None)
