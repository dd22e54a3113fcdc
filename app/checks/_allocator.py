"""What torch's allocator makes of PYTORCH_ALLOC_CONF, which it reads when it first needs a device.

Options and bounds are those of torch 2.14 and 2.10 (`c10/core/AllocatorConfig.cpp`,
`c10/cuda/CUDAAllocatorConfig.cpp`); a test asks the installed torch. It raises at the first option
that it does not take, and its message names no variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_COMMA = re.compile(r",(?![^\[]*\])")  # not of a list in brackets
# As C++ reads numbers: what follows one (the MB of 128MB) is ignored.
_WHOLE = re.compile(r"[-+]?([0-9]{1,18})(?![0-9])")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_MOST_THREADS = 128


def wrong_options(value: str) -> list[str]:
    """The parts of a value that torch would refuse, as they stand there."""
    parts = [part.strip() for part in _COMMA.split(value)]
    if not parts[-1]:
        del parts[-1]  # one comma at the end does no harm
    return [part for part in parts if not _is_taken(part)]


def _is_taken(part: str) -> bool:
    key, colon, text = (each.strip() for each in part.partition(":"))
    return bool(colon) and key in OPTIONS and OPTIONS[key](text)


def _switch(text: str) -> bool:
    return text in ("True", "False")


def _from(least: int) -> Callable[[str], bool]:
    """Whole numbers, in MB where the option's name says so."""

    def is_taken(text: str) -> bool:
        found = _WHOLE.match(text)
        # C++ takes a negative number for a huge one.
        return found is not None and (text.startswith("-") or int(found[1]) >= least)

    return is_taken


def _fraction(*, ends: bool) -> Callable[[str], bool]:
    """From 0 to 1, with its ends or without."""

    def is_taken(text: str) -> bool:
        found = _NUMBER.match(text)
        if found is None:
            return False
        number = float(found[0])
        return 0 <= number <= 1 if ends else 0 < number < 1

    return is_taken


def _power_of_2(text: str) -> bool:
    found = _WHOLE.match(text)
    return found is not None and int(found[1]).bit_count() == 1


def _divisions(text: str) -> bool:
    """One number for all sizes, or a list of `size:number`, where `>` stands for all above."""
    if not text.startswith("["):
        return _power_of_2(text)
    inside = text.strip("[] ").removesuffix(",")
    pairs = [pair.partition(":") for pair in inside.split(",")] if inside else []
    return all(
        (size.strip() == ">" or _power_of_2(size.strip()))
        and (number.strip() == "0" or _power_of_2(number.strip()))
        for size, _, number in pairs
    )


def _threads(text: str) -> bool:
    found = _WHOLE.match(text)
    return found is not None and _power_of_2(text) and int(found[1]) <= _MOST_THREADS


OPTIONS: dict[str, Callable[[str], bool]] = {
    "backend": ("native", "cudaMallocAsync").__contains__,
    "garbage_collection_threshold": _fraction(ends=False),
    "large_segment_size_mb": _from(11),
    "max_non_split_rounding_mb": _from(20),
    "max_split_size_mb": _from(20),
    "per_process_memory_fraction": _fraction(ends=True),
    "pinned_num_register_threads": _threads,
    "roundup_power2_divisions": _divisions,
    "pinned_max_cached_size_mb": _from(0),
    "pinned_max_round_threshold_mb": _from(0),
    "pinned_reserve_segment_size_mb": _from(1),
    **dict.fromkeys(
        (
            *("expandable_segments", "graph_capture_record_stream_reuse", "pinned_free_catch_all"),
            *("pinned_use_background_threads", "pinned_use_cuda_host_register"),
            *("release_lock_on_cudamalloc", "throw_on_cudamalloc_oom"),
        ),
        _switch,
    ),
}
