"""Hardware profiles: one frozen value each, every number with its source.

A leaf: imports nothing of the app. Feature code reads these fields and never branches on a name;
adding a card is adding a value here (and a Dockerfile).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Floors:
    """What a healthy card of this class surely reaches; a throttled or emulating one does not.

    `matmul_flops` in floating operations per second and `copy_bytes` in bytes read and written per
    second, both of the compute dtype; `speedup` is the matmul's against float32 on the same card.
    """

    matmul_flops: float
    copy_bytes: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a class of hardware is and what a model on it may contain.

    Dtypes are torch's names without the module, for instance `float16`. `quant_dtypes` are allowed
    as `quant_state.dtype` and `Linear4bit.compute_dtype`, `float_dtypes` for every other floating
    parameter or buffer except LoRA, which is always float32. `environment` is set before any heavy
    import. `step_tokens` is the length of the training batch, None for `BOOT_MAX_SEQ_LENGTH`;
    `cast_dtypes` are the dtypes to which the cast of the checkpoint is looked at; `floors` None
    where no speed is promised. `evidence` is the committed result of this hardware, by its file:
    without one, what only hardware can calibrate (tolerances of products and losses, repeatable
    logits) does no more than warn. Speed and headroom always only warn.
    """

    name: str
    title: str
    device: str  # torch device type
    compute_capability: tuple[int, int] | None
    compute_dtype: str
    quant_dtypes: tuple[str, ...]
    float_dtypes: tuple[str, ...]
    forbidden_dtypes: tuple[str, ...]
    dtype_reason: str
    min_driver: int | None  # major version of the NVIDIA driver
    min_memory_bytes: int
    rehearsal: bool
    default_model: str
    environment: tuple[tuple[str, str], ...]
    step_tokens: int | None
    cast_dtypes: tuple[str, ...]
    floors: Floors | None
    evidence: str

    @property
    def needs_gpu(self) -> bool:
        """Whether a CUDA device is part of what is asked for."""
        return self.device == "cuda"


# Without this Unsloth 2026.10.9 trains on the CPU when it finds no GPU, and exits 0.
_GPU_ENVIRONMENT = (("UNSLOTH_DISABLE_CPU_FALLBACK", "1"),)

V100 = Profile(
    name="v100",
    title="NVIDIA V100 (Volta)",
    device="cuda",
    compute_capability=(7, 0),
    compute_dtype="float16",
    quant_dtypes=("float16",),
    float_dtypes=("float16", "float32"),
    forbidden_dtypes=("bfloat16", "float64"),
    dtype_reason="compute capability 7.0 has no bfloat16 units (they start at 8.0)",
    # CUDA 12 minor-version compatibility starts at driver 525; R580 is the last branch with Volta.
    min_driver=525,
    min_memory_bytes=15 * GIB,  # the smaller board is sold as 16 GB, and reports a little less
    rehearsal=False,
    default_model="unsloth/gemma-3n-E2B-it",
    environment=_GPU_ENVIRONMENT,
    step_tokens=None,
    cast_dtypes=("float16",),
    # A third of the data sheet's 112 (PCIe) to 125 (SXM2) TFLOPS and 900 GB/s; float32 has 14 to 16
    # TFLOPS there, and emulated bfloat16 is slower than that. No card has been measured yet.
    floors=Floors(matmul_flops=37e12, copy_bytes=300e9, speedup=2.0),
    evidence="",
)

H100 = Profile(
    name="h100",
    title="NVIDIA H100 (Hopper)",
    device="cuda",
    compute_capability=(9, 0),
    compute_dtype="bfloat16",
    quant_dtypes=("bfloat16",),
    float_dtypes=("bfloat16", "float32"),
    forbidden_dtypes=("float16", "float64"),
    dtype_reason="compute capability 9.0 has bfloat16 units; float16 would lose small gradients",
    min_driver=580,  # the first branch that runs CUDA 13
    min_memory_bytes=75 * GIB,  # the smallest Hopper board has 80 GB
    rehearsal=False,
    default_model="unsloth/gemma-3n-E2B-it",
    environment=_GPU_ENVIRONMENT,
    step_tokens=None,
    cast_dtypes=("bfloat16",),
    # A third of the slowest Hopper board's data sheet (PCIe: 756 TFLOPS dense, 2.0 TB/s, and 51
    # TFLOPS in float32). No card has been measured yet.
    floors=Floors(matmul_flops=250e12, copy_bytes=650e9, speedup=2.0),
    evidence="",
)

CPU = Profile(
    name="cpu",
    title="rehearsal on a CPU",
    device="cpu",
    compute_capability=None,
    compute_dtype="float32",
    # A checkpoint packed with bfloat16 keeps it in quant state and compute dtype on a CPU.
    quant_dtypes=("float32", "bfloat16"),
    float_dtypes=("float32", "bfloat16"),
    forbidden_dtypes=("float16", "float64"),
    dtype_reason="a rehearsal computes in float32, which every CPU has",
    min_driver=None,
    min_memory_bytes=0,
    rehearsal=True,
    default_model="rehearsal:gemma3n",
    environment=(
        ("CUDA_VISIBLE_DEVICES", ""),
        ("UNSLOTH_DISABLE_CPU_FALLBACK", "0"),  # takes back what an image for a GPU may have set
        # Threads that spin for each other on shared cores: three steps of the rehearsal model
        # took 31 s beside one busy process on 2 cores, and 1.3 s with this.
        ("OMP_WAIT_POLICY", "PASSIVE"),
    ),
    step_tokens=256,  # a rehearsal proves the way, not the length; 4096 would take minutes
    cast_dtypes=("bfloat16", "float16"),  # what either card would make of the same files
    floors=None,
    evidence="bench/results/cpu.json",
)

PROFILES: MappingProxyType[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (V100, H100, CPU)}
)
