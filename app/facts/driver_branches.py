"""Which driver a release of CUDA needs. Standard library only."""

from __future__ import annotations

import re

# The first driver branch that runs a major version of CUDA, each of its minor ones included
# (NVIDIA's CUDA compatibility guide, minor version compatibility).
FIRST_BRANCH = {11: 450, 12: 525, 13: 580}


def cuda_major(release: str | None) -> int | None:
    """The major version of a release such as `13.0`; None where the text is none."""
    found = re.match(r"(\d{1,4})(?:\.|$)", release or "")
    return int(found[1]) if found else None


def least_driver(release: str | None) -> int | None:
    """Major version of the oldest driver that runs this release of CUDA; None where unknown."""
    major = cuda_major(release)
    return FIRST_BRANCH.get(major) if major is not None else None
