"""The CUDA device's own account of its memory, asked when an allocation on it has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app import blame
from app.errors import BootError, causes
from app.facts.process import DeviceMemory


def memory() -> DeviceMemory | None:
    """Read now; None where the device does not answer any more, or there is none."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(
            free, total, torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
        )
    except (RuntimeError, AssertionError):  # of CUDA, and of torch without it
        return None


def out_of_memory(error: BaseException, *, least_bytes: int = 0) -> BootError | None:
    """Need against free, where the exception or a cause of it is torch's OutOfMemoryError."""
    import torch

    for cause in causes(error):
        if isinstance(cause, torch.OutOfMemoryError):
            told = blame.short(cause)
            return BootError.of(blame.out_of_device_memory(memory(), told, least_bytes=least_bytes))
    return None


@contextmanager
def accounted(*, least_bytes: int = 0) -> Iterator[None]:
    """Say need against free of whatever in this block runs out of device memory.

    Raises:
        BootError: for torch's OutOfMemoryError, also behind another exception. All else as it is.
    """
    try:
        yield
    except Exception as error:
        known = out_of_memory(error, least_bytes=least_bytes)
        if known is None or isinstance(error, BootError):
            raise
        raise known from error
