"""Measures an image: bytes on disk, bytes that a push would send, and its largest parts.

    python scripts/image_size.py IMAGE [--base IMAGE] [--budget NAME] [--json FILE] [--exact]

A push sends each layer through gzip, and so does this, in part (`image_layers.py`; all of it with
`--exact`): the error is 0.4 %. What a registry says may differ by one per cent, since its client
has a compressor of its own. Parts are Python distributions (by their RECORD) and packages of the
system (by dpkg's lists); each has its share of the chunks that its files lie in.

With `--budget` what our layers add to the base is compared with `docker/budget.json`: more is an
error, and so is a budget that is more than 3 % above, since the next growth would pass unseen below
it. The base is left out: it differs by where the image is built.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.image_layers import Census, Part, read_saved  # noqa: E402 - the root has to be there first

BUDGET = ROOT / "docker" / "budget.json"
LARGEST = 10
_SLACK = 0.03  # that a budget may lie above what was measured
_STEP = 10_000_000  # bytes that a new budget is rounded up to
_GB = 1e9


@dataclass(frozen=True)
class Size:
    """What was measured; `base_bytes` and `base_disk_bytes` are the base's share of it."""

    image: str
    disk_bytes: int
    compressed_bytes: int
    base_bytes: int
    base_disk_bytes: int
    parts: list[Part]

    @property
    def own_compressed_bytes(self) -> int:
        """What our layers add to the base."""
        return self.compressed_bytes - self.base_bytes

    @property
    def own_disk_bytes(self) -> int:
        """The same on disk."""
        return self.disk_bytes - self.base_disk_bytes


def measured(image: str, base: str | None, *, exact: bool) -> Size:
    """Run `docker save`, and read it to its end. Raises SystemExit where the engine fails."""
    of_base = len(json.loads(_inspected(base, "{{json .RootFS.Layers}}"))) if base else 0
    disk, base_disk = (int(_inspected(each, "{{.Size}}")) if each else 0 for each in (image, base))
    census = Census(exact=exact)
    command = ["docker", "save", image]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as save:
        layers = read_saved(save.stdout, census) if save.stdout else []
    if save.returncode:
        raise SystemExit(f"docker save {image} ended with {save.returncode}")
    return Size(image, disk, sum(layers), sum(layers[:of_base]), base_disk, census.parts())


def _inspected(image: str, form: str) -> str:
    command = ["docker", "image", "inspect", "--format", form, image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout


def told(size: Size) -> str:
    """For people."""
    base = f"{size.base_bytes / _GB:.2f} of it the base"
    sizes = f"{size.compressed_bytes / _GB:.2f} GB compressed ({base})"
    lines = [
        f"{size.image}: {sizes}, {size.disk_bytes / _GB:.2f} GB on disk",
        "  compressed     on disk  part",
    ]
    lines += [
        f"  {part.compressed_bytes / _GB:7.3f} GB  {part.disk_bytes / _GB:7.3f} GB  {part.name}"
        for part in size.parts[:LARGEST]
    ]
    return "\n".join(lines)


def over_budget(size: Size, budget: Mapping[str, int]) -> list[str]:
    """What is wrong with an image's budget."""
    wrong = []
    for name, limit in budget.items():
        found = int(getattr(size, name))
        least = math.ceil(found / _STEP) * _STEP
        if found > limit:
            wrong.append(
                f"{size.image} is over its budget: {name} is {found}, and {BUDGET.name} allows "
                f"{limit}. Find what came in (the parts are above) and take it out of the image "
                f"(docker/slim.txt); a budget of {least} has to be argued for"
            )
        elif found < limit * (1 - _SLACK):
            wrong.append(
                f"{size.image} is more than {_SLACK:.0%} below its budget: {name} is {found}, and "
                f"{BUDGET.name} allows {limit}. Lower it to {least}"
            )
    return wrong


def main() -> None:
    """Measure, tell, and compare."""
    parser = argparse.ArgumentParser(description="measures an image")
    parser.add_argument("image")
    parser.add_argument("--base", help="the image that it was built from, to tell its share")
    parser.add_argument(
        "--budget", metavar="NAME", help=f"compare with this image of {BUDGET.name}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="all parts, for machines")
    parser.add_argument(
        "--exact", action="store_true", help="compress all, which takes twice as long"
    )
    given = parser.parse_args()
    size = measured(given.image, given.base, exact=given.exact)
    print(told(size), flush=True)
    if given.json:
        given.json.write_text(json.dumps(asdict(size), indent=1) + "\n", encoding="utf-8")
    if given.budget:
        limits = json.loads(BUDGET.read_text(encoding="utf-8"))[given.budget]
        if wrong := over_budget(size, limits):
            raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
