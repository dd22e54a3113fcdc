"""The sections of the report that stages fill in, as pydantic models.

Imports nothing of the app. Bytes are bytes, times seconds, dtypes torch's names without the module.
Floating values are None where they are not finite: JSON has no NaN, and the check says so.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


def printable(value: Any) -> Any:  # noqa: ANN401 - any JSON-like value in, the same shape out
    """Text that UTF-8 can carry: a file name's undecodable bytes come as lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


class Section(BaseModel):
    """Base of all report models: unknown fields are refused, values are not changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _printable(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic hands over anything
        return printable(data)


class Kernel(Section):
    """A kernel that was run on the device, in seconds: the first call, and one after it."""

    library: str
    name: str
    first_s: float
    again_s: float


class Software(Section):
    """What computes: interpreter, packages (from metadata) and how they were imported."""

    python: str
    packages: dict[str, str] = Field(default_factory=dict)
    cuda: str | None = None
    cudnn: int | None = None
    device_type: str = ""  # unsloth.DEVICE_TYPE
    wheel_architectures: list[str] = Field(default_factory=list)
    device: str = ""  # the card's name, or cpu
    kernels: list[Kernel] = Field(default_factory=list)


class Model(Section):
    """Which model: as asked, as resolved, as found on disk."""

    requested_id: str
    resolved_id: str
    revision: str | None = None
    reason: str = ""
    folder: str
    model_type: str = ""
    architecture: str = ""
    n_shards: int = 0
    n_bytes: int = 0
    n_tensors: int = 0
    n_packed: int = 0
    quantization: dict[str, str | bool | int] = Field(default_factory=dict)
    # Projections that must carry a LoRA pair, by their names in the files: part of the model ->
    # kind -> number. None where the names do not tell.
    lora_targets: dict[str, dict[str, int]] | None = None


class RequestedPrecision(Section):
    """What the settings ask for."""

    hardware: str
    load_in_4bit: bool


class ResolvedPrecision(Section):
    """What that becomes on this hardware, and why."""

    compute_dtype: str
    device: str
    reason: str
    forced_float32: bool  # what Unsloth's forced path must be for this family and dtype


class ObservedPrecision(Section):
    """One census of the model. `dtypes`: category -> dtype -> number of tensors."""

    dtypes: dict[str, dict[str, int]] = Field(default_factory=dict)
    n_parameters: int = 0
    n_buffers: int = 0
    n_packed_layers: int = 0
    n_dequantised: int = 0  # packed in the file, 16 or 32 bits in the model
    compute_dtypes: dict[str, int] = Field(default_factory=dict)
    quant_state_dtypes: dict[str, int] = Field(default_factory=dict)
    devices: dict[str, int] = Field(default_factory=dict)
    forced_float32: bool | None = None
    model_dtype: str = ""
    not_judged: list[str] = Field(default_factory=list)  # non-persistent buffers
    seconds: float = 0.0


class Offender(Section):
    """One tensor or module that breaks the precision contract."""

    name: str
    category: str
    expected: str
    actual: str


class Precision(Section):
    """Requested, resolved and observed apart; observed after `load`, `adapter` and `numerics`."""

    requested: RequestedPrecision
    resolved: ResolvedPrecision
    observed: dict[str, ObservedPrecision] = Field(default_factory=dict)
    offenders: list[Offender] = Field(default_factory=list)  # the first ten
    n_offenders: dict[str, int] = Field(default_factory=dict)  # category -> count


class Adapter(Section):
    """The LoRA adapter. `components`: part of the model -> kind of module -> number of pairs."""

    r: int
    alpha: float
    dropout: float
    n_pairs: int
    n_trainable: int  # scalar parameters
    n_total: int  # scalar parameters, packed ones counted unpacked
    components: dict[str, dict[str, int]] = Field(default_factory=dict)
    targets: list[str] = Field(default_factory=list)  # names of projections, without their path
