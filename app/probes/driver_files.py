"""The driver's files in this container: devices in /dev, libraries on the loader's path, versions.

Nothing is loaded and no device is opened here: a constructor or a first open can hang.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.facts.gpu import LibraryFile, LibraryKind
from app.probes.cgroups import text_of
from app.probes.elf import ElfError, ElfFile, OtherClassError, own_machine
from app.probes.mounts import Mount, kind_of, mounts

CUDA, NVML, JIT = "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"
# Two that this boot loads, and the compiler that libcuda loads by itself for PTX.
LIBRARIES = (CUDA, NVML, JIT)

# /dev/dxg is the device of Windows' subsystem for Linux, which has no /dev/nvidia*.
_DEVICE = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm|dxg")
# Where glibc's loader looks last, Debian's folders first.
_FOLDERS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
_CACHE_BYTES = 8 * 1024**2  # ld.so.cache of a large image is some 200 KB
_VERSION = re.compile(r"\b(\d{3,4}\.\d+(?:\.\d+)*)\b")
_IN_NAME = re.compile(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)*)$")
# elf.h: e_machine of the machines that this driver is made for; another one accepts any.


def device_files(devices: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names of NVIDIA's device files, and those that this user may not open, with the errno."""
    try:
        names = sorted(name for name in os.listdir(devices) if _DEVICE.fullmatch(name))  # noqa: PTH208 - names are what is asked for
    except OSError:
        names = []
    denied = {
        name: errno.EACCES for name in names if not os.access(devices / name, os.R_OK | os.W_OK)
    }
    return tuple(names), denied


def kernel_driver(proc: Path) -> str:
    """The version of the loaded kernel module, empty when it does not say."""
    found = _VERSION.search(text_of(proc / "driver/nvidia/version"))
    return found[1] if found else ""


def driver_libraries(
    environ: Mapping[str, str], driver: str, proc: Path, *, in_image: bool
) -> tuple[LibraryFile, ...]:
    """What the loader would take for each name, judged by path, bytes and mounts.

    `driver` is the kernel module's version, `in_image` whether an image is known to be ours.
    """
    cached = _cached()
    table = mounts(proc)
    contained = in_image or _in_container(environ, table)
    found = []
    for name in LIBRARIES:
        path = _first(name, environ, cached)
        if path is not None:
            found.append(_described(name, path, driver, table if contained else None))
    return tuple(found)


def _first(name: str, environ: Mapping[str, str], cached: Mapping[str, list[str]]) -> Path | None:
    """The file that the loader takes, else one that it passes over (a link to nothing)."""
    passed_over = None
    for path in _candidates(name, environ, cached):
        if not os.path.lexists(path):
            continue
        if not _passed_over(path):
            return path
        passed_over = passed_over or path
    return passed_over


def _candidates(
    name: str, environ: Mapping[str, str], cached: Mapping[str, list[str]]
) -> Iterator[Path]:
    """In the loader's order (ld.so(8)): LD_LIBRARY_PATH, its cache, the system's folders."""
    text = environ.get("LD_LIBRARY_PATH", "")
    for folder in re.split("[:;]", text) if text else ():
        yield Path(folder or ".") / name
    yield from map(Path, cached.get(name, ()))
    yield from (Path(folder) / name for folder in _FOLDERS)


def _cached() -> dict[str, list[str]]:
    """Paths of the driver's libraries in the loader's cache, by name.

    The cache ends in NUL-terminated names and paths (glibc, dl-cache.h).
    """
    found: dict[str, list[str]] = {}
    try:
        with Path("/etc/ld.so.cache").open("rb") as file:
            content = file.read(_CACHE_BYTES)
    except OSError:
        return found
    for name in LIBRARIES:
        for match in re.finditer(rb"\0(/[^\0]*/" + re.escape(name.encode()) + rb")(?=\0)", content):
            found.setdefault(name, []).append(os.fsdecode(match[1]))
    return found


def _passed_over(path: Path) -> bool:
    """Whether the loader goes on to the next folder: no file, no right, another machine's."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False  # a folder is an error to it
        return _header(path) == "other"
    except OSError:
        return True


def _described(name: str, path: Path, driver: str, table: tuple[Mount, ...] | None) -> LibraryFile:
    real = Path(os.path.realpath(path))
    found = _IN_NAME.search(real.name)
    version = found[1] if found else ""
    fits = version == driver if version and driver else None
    kind = _kind(path, real)
    of_node = table is None or _mounted(real, table)
    if kind == "driver" and not of_node and _brought(path, fits):
        kind = "image"
    return LibraryFile(name, str(real), kind, version, fits, of_node)


def _kind(path: Path, real: Path) -> LibraryKind:
    """`driver` unless the bytes or the folder tell another kind."""
    try:
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            return "broken"
        if status.st_size == 0:
            return "empty"
        if _header(real) != "whole":
            return "broken"
    except OSError:
        return "broken"
    folders = {*path.parent.parts, *real.parent.parts}
    if "stubs" in folders:
        return "stub"
    # NVIDIA's packages and conda's: /usr/local/cuda-13.0/compat, $CONDA_PREFIX/cuda-compat.
    return "compat" if folders & {"compat", "cuda-compat"} else "driver"


def _header(path: Path) -> str:
    """`whole`, `other` (another machine's, which the loader passes over) or `bad`. May raise."""
    try:
        with ElfFile(path) as file:
            if own_machine() not in (file.machine, None):
                return "other"
            return "whole" if file.is_whole() else "bad"
    except OtherClassError:
        return "other"
    except ElfError:
        return "bad"


def _in_container(environ: Mapping[str, str], table: tuple[Mount, ...]) -> bool:
    """Whether the root is an image's: engines leave a file or a variable, or mount an overlay."""
    return (
        kind_of(Path("/"), table) == "overlay"
        or "KUBERNETES_SERVICE_HOST" in environ
        or "container" in environ
        or any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    )


def _mounted(real: Path, table: tuple[Mount, ...]) -> bool:
    points = {mount.point for mount in table} - {"/"}
    return any(str(folder) in points for folder in (real, *real.parents))


def _brought(path: Path, fits: bool | None) -> bool:  # noqa: FBT001 - three values
    """Whether the image has brought a file that is no mount: it is not the node's by its version.

    One of the kernel module's version may be mounted in a way that is not seen from inside. A file
    without a version in a folder of its own may be anything: only a system folder tells.
    """
    return fits is False or (fits is None and str(path.parent) in _FOLDERS)
