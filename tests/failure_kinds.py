"""The tables of docs/failures.md: kinds of failure, and where each is caught."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tests.boots import ROOT

DOCUMENT = ROOT / "docs" / "failures.md"

# Every kind that public reports name, most frequent first.
_NAMES = """
    no_kernel_image bnb_native_missing safetensors_header gpu_not_visible hf_home_unwritable
    driver_too_old fp16_overflow_gemma peft_targets bf16_pre_ampere meta_tensor
    unsloth_version_skew gpu_leak_visible triton_no_lcuda nan_sampling ecc gpu_busy
    tokenizers_fork unscale_fp16 sigterm nccl_shm require_cuda cpu_offload to_4bit
    bnb_no_gpu_support fabric_802 xet_stall import_order safetensors_truncated gpu_occupied
    nvml_mismatch triton_no_cc uid_no_passwd glibc_too_old xformers_mismatch uvm_missing
    shm_small multi_gpu_map xid dtype_mismatch hub_429 mig slurm_gpu_env fwd_compat_804
    hub_auth host_oom_137 triton_bf16_ptx offline_cache_miss disk_full peft_target_type
    lora_no_grad triton_no_python_h triton_cache_unwritable tty_prompt bf16_emulated_silently
    quant_state_missing weights_missing adapter_keys amp_scaler_bf16 nvml_lib_missing cuda_stub
    json_nan offline_freeze timm_missing torch_cpu_wheel node_blackhole exit_code_policy
    env_types gemma3n_oob kernel_old tls_clock gemma3n_compile
"""
KINDS = _NAMES.split()


@dataclass(frozen=True, slots=True)
class Row:
    """One kind. `codes` have the words that stand behind a status, empty where none do."""

    kind: str
    what: str
    stage: str
    checks: tuple[str, ...]
    codes: Mapping[str, str]
    seen: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that provoke it, as `module::name`."""
        return tuple(re.findall(r"`(test_\w+::test_\w+)`", self.seen))


def _codes(cell: str) -> dict[str, str]:
    """Statuses, with the words that stand behind them."""
    found = re.findall(r"(-|\d+)(?: \(([^)]+)\))?(?:, |$)", cell)
    assert "".join(code for code, _ in found) == re.sub(r" \([^)]+\)|, ", "", cell), cell
    return dict(found)


def _ids(cell: str) -> tuple[str, ...]:
    return tuple(re.findall("`([^`]+)`", cell))


def _cells() -> list[list[str]]:
    """Every line of a table, without its head."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return [each for each in cells if each[0] not in {"kind", "what is wrong", "---"}]


@cache
def rows() -> tuple[Row, ...]:
    """The table of the kinds."""
    return tuple(
        Row(cells[0].strip("`"), cells[1], cells[2], _ids(cells[3]), _codes(cells[4]), cells[5])
        for cells in _cells()
        if len(cells) == 6
    )


@cache
def others() -> tuple[Row, ...]:
    """The table of what is not on the list."""
    return tuple(
        Row("", cells[0], "", _ids(cells[1]), _codes(cells[2]), "")
        for cells in _cells()
        if len(cells) == 3
    )
