"""The numbers and bits by which NVML describes a board, and words for them."""

from __future__ import annotations

# nvml.h, nvmlClocksEventReasons*.
_REASONS = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
# What the board does by itself to protect itself: clocks at a half or less, whatever software asks.
HARDWARE_SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
# nvml.h, NVML_COMPUTEMODE_*, the same as CUDA's CU_COMPUTEMODE_*.
_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
PROHIBITED = 2
# nvml.h, NVML_GPU_FABRIC_STATE_*.
_FABRIC = ("not_supported", "not_started", "in_progress", "completed")
FABRIC_NOT_SUPPORTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 0, 2, 3


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Names of the bits that are set; one that the header does not know by its number."""
    named = tuple(name for bit, name in _REASONS if mask & bit)
    rest = mask & ~sum(bit for bit, _ in _REASONS)
    return (*named, hex(rest)) if rest else named


def compute_mode_word(mode: int) -> str:
    """`default`, `exclusive_process`, ..., or the number."""
    return _word(_MODES, mode)


def fabric_word(state: int) -> str:
    """`completed`, `in_progress`, ..., or the number."""
    return _word(_FABRIC, state)


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)
