"""What the image says about itself: a file baked in at build time.

A leaf: imports only `app.errors`, `app.outcome`, `app.plan` and `app.profiles`.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.errors import BootError
from app.outcome import Fault
from app.plan import Baked
from app.profiles import PROFILES

IMAGE_FILE = Path("/opt/bootguard/image.json")
_LARGEST = 1024 * 1024  # bytes; 130 packages take 5 kB


def _profile_name(name: str) -> str:
    if name not in PROFILES:
        raise ValueError(f"one of {', '.join(PROFILES)}")
    return name


Text = Annotated[str, Field(min_length=1)]
# `5.17.0 -> 5.18.0`; `none` where a package was added or taken out.
Change = Annotated[str, Field(pattern=r"^\S+ -> \S+$")]
NONE = "none"


class Image(BaseModel):
    """The profile an image was built for, and what it was built from.

    `app.bake` writes it. A newer build may write more fields, which are ignored; an older one has
    written none of those with a default. `base` is the base image's name, `base_digest` its digest
    or `unpinned`. `versions` are all installed packages, `changes` those that an image derived from
    ours has moved away from the lock. `architectures` are those of torch's wheel, such as `sm_90`,
    `cuda` the release that it was built for, such as `13.0`; `minimum_driver` is the major version
    of the NVIDIA driver, None for an image without CUDA. `built` is in seconds since 1970, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    profile: Annotated[str, AfterValidator(_profile_name)]
    lock_digest: Text
    versions: dict[str, str]
    architectures: list[str]
    minimum_driver: int | None
    base_digest: Text
    base: str = ""
    cuda: str | None = None
    revision: str = ""
    python: str = ""
    built: int | None = None
    changes: dict[str, Change] = Field(default_factory=dict)

    def baked(self) -> Baked:
        """What checks compare with: the part that a plan carries."""
        return Baked(
            self.lock_digest,
            self.versions,
            tuple(self.architectures),
            self.minimum_driver,
            self.cuda,
        )

    def locked(self) -> dict[str, str]:
        """The versions as the lock has them: without what a derived image has changed."""
        found = dict(self.versions)
        for name, change in self.changes.items():
            before = change.partition(" -> ")[0]
            if before == NONE:
                found.pop(name, None)
            else:
                found[name] = before
        return found


def _broken(path: Path, actual: str) -> BootError:
    return BootError(
        "image broken: its description cannot be used",
        fault=Fault.INTERNAL,
        expected=f"{path} describes the image",
        actual=actual,
        source="written when the image is built",
        next_step="pull or build the image again",
    )


def _content(path: Path) -> bytes:
    """All of a regular file. A pipe mounted in its place would be waited for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(errno.EFBIG, "larger than any image's description", str(path))
    return content


def read_image(path: Path = IMAGE_FILE) -> Image | None:
    """The image this process runs in; None outside an image, where the file does not exist."""
    try:
        content = _content(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _broken(path, f"{type(error).__name__}: {error.strerror}") from error
    try:
        return Image.model_validate_json(content)
    except ValidationError as error:
        wrong = [
            ".".join(["image.json", *(str(part) for part in one["loc"])]) + f": {one['msg']}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise _broken(path, "; ".join(wrong)) from error
