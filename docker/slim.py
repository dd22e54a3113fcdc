"""Takes out of the environment what no boot touches; `docker/slim.txt` lists it, with reasons.

    python slim.py LOCK PROFILE

The build runs it, with the environment's own interpreter and before anything is copied into the
image. What it took too much of, the image's proof (`app.bake`) misses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

_LIST = Path(__file__).with_name("slim.txt")
_ARCH_MISMATCH = 4  # of cusparseStatus_t


@dataclass
class Rules:
    """Patterns below site-packages, by what is done with the files that they find."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # though a pattern for removal finds them
    stripped: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)  # by a library that refuses every call

    @classmethod
    def read(cls, text: str, lock: str, profile: str) -> Rules:
        """The rules of a list that hold for one image."""
        rules = cls()
        marked = {"!": rules.kept, "~": rules.stripped, "=": rules.replaced}
        for line in text.splitlines():
            rule = line.partition("#")[0].strip()
            named, colon, rest = rule.partition(":")
            if colon and named not in {lock, f"{lock}/{profile}"}:
                continue
            rule = rest.strip() if colon else rule
            if rule:
                marked.get(rule[0], rules.removed).append(rule.lstrip("!~="))
        return rules


def slim(site: Path, rules: Rules) -> None:
    """Carry the rules out. Raises SystemExit that names every pattern without a find."""
    patterns = (*rules.removed, *rules.kept, *rules.stripped, *rules.replaced)
    found = {pattern: set(site.glob(pattern)) for pattern in patterns}
    if idle := [pattern for pattern, paths in found.items() if not paths]:
        raise SystemExit(f"{_LIST.name}: nothing is found by {', '.join(idle)}")
    kept = set[Path]().union(*(found[pattern] for pattern in rules.kept))
    for path in set[Path]().union(*(found[pattern] for pattern in rules.removed)) - kept:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)  # a folder within may be gone already
        else:
            path.unlink(missing_ok=True)
    for path in set[Path]().union(*(found[pattern] for pattern in rules.stripped)):
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)  # noqa: S607
    for path in set[Path]().union(*(found[pattern] for pattern in rules.replaced)):
        replace_cusparselt(path)


def replace_cusparselt(library: Path) -> None:
    """Put a library of the same name in its place, whose functions only refuse.

    They answer CUSPARSE_STATUS_ARCH_MISMATCH, the status for hardware that is not supported, and
    torch raises on it. Loading and linking go on as before.
    """
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    functions = re.findall(r"^(cusparseLt\w+) T ", symbols, re.MULTILINE)
    if not functions:
        raise SystemExit(f"{library.name} has no function of cuSPARSELt")
    source = "".join(f"int {name}(void) {{ return {_ARCH_MISMATCH}; }}\n" for name in functions)
    options = ["-shared", "-fPIC", "-s", f"-Wl,-soname,{library.name}", "-x", "c", "-"]
    library.unlink()
    subprocess.run(["gcc", *options, "-o", str(library)], input=source, text=True, check=True)  # noqa: S607


def drop_entry_points(site: Path) -> None:
    """Triton imports every backend that its entry points name."""
    for path in site.glob("triton-*.dist-info/entry_points.txt"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text(
            "".join(line for line in lines if "triton.backends.amd" not in line), "utf-8"
        )


def main() -> None:
    """Slim the environment that runs this."""
    site = Path(sysconfig.get_path("purelib"))
    lock, profile = sys.argv[1:]
    slim(site, Rules.read(_LIST.read_text(encoding="utf-8"), lock, profile))
    drop_entry_points(site)


if __name__ == "__main__":
    main()
