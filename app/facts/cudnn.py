"""Which cuDNN still runs on which device. Standard library only."""

from __future__ import annotations

# NVIDIA's support matrix: 9.11 drops every device below 7.5.
FIRST_WITHOUT, OLDEST_SINCE = (9, 11), (7, 5)
# cuDNN 9 writes 9.10.2 as 91002, cuDNN 8 wrote 8.9.7 as 8907 (cudnn_version.h).
_SINCE_9 = 90_000


def release(number: int) -> tuple[int, int, int]:
    """What `cudnnGetVersion` says, in three numbers."""
    major, rest = divmod(number, 10_000 if number >= _SINCE_9 else 1000)
    return (major, *divmod(rest, 100))


def serves(version: tuple[int, ...], capability: tuple[int, int]) -> bool:
    """Whether this release has kernels for that compute capability."""
    return capability >= OLDEST_SINCE or version[:2] < FIRST_WITHOUT
