"""Makes and writes image.json: what a proven image says about itself."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path

from app.bake._packages import changes
from app.bake.scene import Scene
from app.errors import BootError
from app.facts.driver_branches import least_driver
from app.facts.words import error_text, one_line
from app.image import Image
from app.outcome import Fault
from app.probes.wheel import torch_architectures
from app.text_file import write_text

UNPINNED = "unpinned"
_PINNED = re.compile(r"(.+)@(sha256:[0-9a-f]{64})")


def split_base(base: str) -> tuple[str, str]:
    """Name and digest of a base image as `FROM` takes it; without a digest it is unpinned."""
    found = _PINNED.fullmatch(base)
    return (found[1], found[2]) if found else (base, UNPINNED)


def built_at(environ: Mapping[str, str]) -> int:
    """Now, or SOURCE_DATE_EPOCH where the build is to be the same each time. Raises BootError."""
    given = environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return int(time.time())
    if not re.fullmatch(r"\d{1,12}", given):
        raise BootError(
            "SOURCE_DATE_EPOCH is no time",
            fault=Fault.CONFIG,
            expected="whole seconds since 1970",
            actual=one_line(given),
            source="the variable of the build",
            next_step="set it to the time of the commit, or unset it",
        )
    return int(given)


def describe(
    scene: Scene, *, lock_digest: str, base: tuple[str, str], revision: str, built: int
) -> Image:
    """The image as proven."""
    torch = scene.packages.torch
    cuda = torch.cuda if torch else None
    return Image(
        profile=scene.plan.profile.name,
        lock_digest=lock_digest,
        versions=dict(sorted(scene.packages.versions.items())),
        architectures=list(torch_architectures(None, [str(scene.site)])[0]),
        minimum_driver=least_driver(cuda),
        base=base[0],
        base_digest=base[1],
        cuda=cuda,
        revision=revision,
        python=platform.python_version(),
        built=built,
        changes=changes(scene) if scene.derived else {},
    )


def write(image: Image, output: Path) -> None:
    """Put it there whole, for everybody to read. Raises BootError."""
    try:
        write_text(output, image.model_dump_json(indent=2) + "\n", replace=True)
        output.chmod(0o644)
    except OSError as error:
        raise BootError(
            "the description cannot be written",
            fault=Fault.INTERNAL,
            expected=f"{output} in a folder that can be written",
            actual=error_text(error),
            source=str(output),
            next_step="run the proof as the user that builds the image (USER 0), or name another "
            "file (--output)",
        ) from error
