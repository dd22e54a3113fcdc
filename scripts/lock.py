"""Make every docker/requirements.*.txt from its .in file; `make lock` runs it.

uv resolves twice. The first pass starts from the committed lock, so that only what an
.in file asks for moves (`--upgrade` starts from nothing); the second writes, in uv's
own lock format, which file belongs to which hash. A lock keeps the hashes of the wheels
that the targets below can install and of nothing else: no source archive is ever
built, no address gets in, and a wheel that was built again has its newest build only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

DOCKER = Path(__file__).resolve().parent.parent / "docker"

# In this order, each with those it must fit beside: they share an environment.
LOCKS: dict[str, tuple[str, ...]] = {
    "uv": (),
    "build": ("uv",),
    "h100": (),
    "v100": (),
    "dev": ("h100", "build"),
}

# The two Pythons of the project; the last patch release stands for all of a minor one.
PYTHONS = ("3.11", "3.12")
PATCHES = ("0", "99")

# Ubuntu 24.04, which the images are made from, has glibc 2.39.
NEWEST_GLIBC_MINOR = 39
OLD_PLATFORMS = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")

HEADER = """\
# Made by scripts/lock.py (`make lock`) from requirements.{name}.in: do not edit.
# Linux x86-64, CPython 3.11 and 3.12, wheels only; every file is pinned by its hash.
"""


def supported_tags(python: str) -> frozenset[Tag]:
    """Every wheel tag that one Python on one of our machines accepts."""
    major, minor = (int(part) for part in python.split("."))
    manylinux = [f"manylinux_2_{glibc}_x86_64" for glibc in range(NEWEST_GLIBC_MINOR, 4, -1)]
    platforms = [*manylinux, *OLD_PLATFORMS, "linux_x86_64"]
    interpreter = f"cp{major}{minor}"
    return frozenset(
        (
            *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
            *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
        )
    )


TAGS = {python: supported_tags(python) for python in PYTHONS}


def wanted_by(marker: str | None) -> list[str]:
    """Return the Pythons for which a marker holds; refuse one that splits a minor release."""
    if marker is None:
        return list(PYTHONS)
    pythons = []
    for python in PYTHONS:
        holds = {
            Marker(marker).evaluate(
                {
                    "implementation_name": "cpython",
                    "os_name": "posix",
                    "platform_machine": "x86_64",
                    "platform_python_implementation": "CPython",
                    "platform_system": "Linux",
                    "python_full_version": f"{python}.{patch}",
                    "python_version": python,
                    "sys_platform": "linux",
                }
            )
            for patch in PATCHES
        }
        if len(holds) > 1:
            raise SystemExit(f"the marker {marker!r} splits Python {python}: a lock holds no half")
        if holds == {True}:
            pythons.append(python)
    return pythons


def newest_builds(wheels: list[dict[str, Any]], pythons: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (file name, sha256) of the wheels to keep: installable, the newest build of each."""
    tags = frozenset[Tag]().union(*(TAGS[python] for python in pythons))
    kept: dict[frozenset[Tag], tuple[tuple[int, str], str, str]] = {}
    for wheel in wheels:
        filename = wheel.get("name") or PurePosixPath(wheel["url"]).name
        _, _, build, wheel_tags = parse_wheel_filename(filename)
        if wheel_tags.isdisjoint(tags):
            continue
        order = (build[0], build[1]) if build else (-1, "")
        if wheel_tags not in kept or kept[wheel_tags][0] < order:
            kept[wheel_tags] = (order, filename, wheel["hashes"]["sha256"])
    for _, filename, sha256 in kept.values():
        yield filename, sha256


def requirement(package: dict[str, Any]) -> str:
    """Return one package as lines of a lock, or nothing where no target wants it."""
    pin = f"{package['name']}=={package['version']}"
    pythons = wanted_by(package.get("marker"))
    if not pythons:
        return ""
    wheels = dict(newest_builds(package.get("wheels", []), pythons))
    served = [parse_wheel_filename(filename)[3] for filename in wheels]
    for python in pythons:
        if all(wheel_tags.isdisjoint(TAGS[python]) for wheel_tags in served):
            raise SystemExit(f"{pin} has no wheel for Python {python} on Linux x86-64")
    if len(pythons) < len(PYTHONS):
        pin += f" ; python_version == '{pythons[0]}'"
    hashes = [f"--hash=sha256:{sha256}" for sha256 in sorted(wheels.values())]
    return " \\\n    ".join([pin, *hashes]) + "\n"


def resolve(
    name: str, beside: tuple[str, ...], scratch: Path, *, upgrade: bool
) -> list[dict[str, Any]]:
    """Return the packages of one set, each with its version, marker and files."""
    source, lock = DOCKER / f"requirements.{name}.in", DOCKER / f"requirements.{name}.txt"
    pins, files = scratch / lock.name, scratch / f"pylock.{name}.toml"
    if lock.exists() and not upgrade:
        pins.write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")
    compile_ = [
        *(str(Path(sys.executable).parent / "uv"), "pip", "compile", str(source), "--quiet"),
        *("--universal", "--python-version", PYTHONS[0], "--python", sys.executable),
        *("--no-build", "--no-header", "--no-annotate"),
        *(f"--constraint={DOCKER / f'requirements.{other}.txt'}" for other in beside),
    ]
    project = DOCKER.parent  # whose [tool.uv] environments keep other platforms out
    subprocess.run([*compile_, "--output-file", str(pins)], cwd=project, check=True)
    exact = ["--constraint", str(pins), "--format", "pylock.toml", "--output-file", str(files)]
    subprocess.run([*compile_, *exact], cwd=project, check=True)
    packages: list[dict[str, Any]] = tomllib.loads(files.read_text(encoding="utf-8"))["packages"]
    return packages


def main() -> None:
    """Make all locks, in their order, and say of each what it holds."""
    parser = argparse.ArgumentParser(description="Make every docker/requirements.*.txt.")
    parser.add_argument("--upgrade", action="store_true", help="move what no .in file pins")
    upgrade: bool = parser.parse_args().upgrade
    with tempfile.TemporaryDirectory() as scratch:
        for name, beside in LOCKS.items():
            packages = resolve(name, beside, Path(scratch), upgrade=upgrade)
            text = HEADER.format(name=name) + "".join(map(requirement, packages))
            lock = DOCKER / f"requirements.{name}.txt"
            lock.write_text(text, encoding="utf-8")
            print(f"docker/{lock.name}: {len(packages)} pins, {text.count('--hash=')} hashes")


if __name__ == "__main__":
    main()
