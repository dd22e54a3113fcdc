"""What a boot set out to do, after validation: settings, profile and resolved model in one value.

A leaf: imports only `app.config` and `app.profiles`. Plain frozen dataclasses, so that the plan
crosses the pipe to the worker and is made in-process by `boot_gemma` without reading any variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.config import ModelRequest
from app.profiles import Profile

DownloadT = Literal["if-missing", "never"]
VerifyT = Literal["off", "size", "sha256"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model that is really loaded, decided by the cache stage.

    `model_id` is the repository or folder after name mapping, `revision` a commit hash where there
    is one, `folder` the local files, `reason` why it is this one.
    """

    model_id: str
    revision: str | None
    folder: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Baked:
    """What the image says that it holds (`app.image.Image`).

    `architectures` are those of torch's wheel, such as `sm_90`; `minimum_driver` is the major
    version of the NVIDIA driver, None for an image without CUDA; `cuda` is the release that torch
    was built for, such as `13.0`, None where the image does not tell.
    """

    lock_digest: str
    versions: Mapping[str, str]
    architectures: tuple[str, ...]
    minimum_driver: int | None
    cuda: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One boot. `resolved` is None until the cache stage has found the files.

    `baked` is None outside an image.
    """

    profile: Profile
    request: ModelRequest
    report_dir: Path
    revision: str | None = None
    download: DownloadT = "if-missing"
    verify: VerifyT = "size"
    allow_pickle: bool = False
    steps: int = 3
    job: str | None = None  # package.module:function, called with the guarded model
    resolved: Resolved | None = None
    baked: Baked | None = None
