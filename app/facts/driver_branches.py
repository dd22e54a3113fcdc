"""Which driver a release of CUDA needs. Standard library only."""

from __future__ import annotations

import re

# The first driver branch that runs a major version of CUDA, each of its minor ones included
# (NVIDIA's CUDA compatibility guide, minor version compatibility).
FIRST_BRANCH = {11: 450, 12: 525, 13: 580}
# The older of the two locks, which either Dockerfile takes with `LOCK=v100`, and what torch's wheel
# in it was built for (the labels of stage lock-v100).
OLDER_LOCK, OLDER_CUDA = "v100", "12.8"
OLDER_ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


def cuda_major(release: str | None) -> int | None:
    """The major version of a release such as `13.0`; None where the text is none."""
    found = re.match(r"(\d{1,4})(?:\.|$)", release or "")
    return int(found[1]) if found else None


def cuda_of(branch: int) -> int:
    """The newest major version of CUDA that a driver branch runs by itself; 0 for none."""
    return max((cuda for cuda, first in FIRST_BRANCH.items() if first <= branch), default=0)


def least_driver(release: str | None) -> int | None:
    """Major version of the oldest driver that runs this release of CUDA; None where unknown."""
    major = cuda_major(release)
    return FIRST_BRANCH.get(major) if major is not None else None
