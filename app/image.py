"""What the image says about itself: a file baked in at build time.

A leaf: imports only `app.errors`, `app.outcome`, `app.plan` and `app.profiles`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.errors import BootError
from app.outcome import Fault
from app.plan import Baked
from app.profiles import PROFILES

IMAGE_FILE = Path("/opt/bootguard/image.json")


def _profile_name(name: str) -> str:
    if name not in PROFILES:
        raise ValueError(f"one of {', '.join(PROFILES)}")
    return name


Text = Annotated[str, Field(min_length=1)]


class Image(BaseModel):
    """The profile an image was built for, and what it was built from.

    A newer build may write more fields: they are ignored. `minimum_driver` is the major version of
    the NVIDIA driver, None for an image without CUDA; `architectures` are those of torch's wheel,
    such as `sm_90`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    profile: Annotated[str, AfterValidator(_profile_name)]
    lock_digest: Text
    versions: dict[str, str]
    architectures: list[str]
    minimum_driver: int | None
    base_digest: Text

    def baked(self) -> Baked:
        """What checks compare with: the part that a plan carries."""
        return Baked(
            self.lock_digest, self.versions, tuple(self.architectures), self.minimum_driver
        )


def _broken(path: Path, actual: str) -> BootError:
    return BootError(
        "image broken: its description cannot be used",
        fault=Fault.INTERNAL,
        expected=f"{path} describes the image",
        actual=actual,
        source="written when the image is built",
        next_step="pull or build the image again",
    )


def read_image(path: Path = IMAGE_FILE) -> Image | None:
    """The image this process runs in; None outside an image, where the file does not exist."""
    try:
        content = path.read_bytes()
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
