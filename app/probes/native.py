"""Compares what the stack's compiled libraries need with what the loader would find here.

The loader itself is not asked: loading torch takes a second, and its libraries' constructors run.
So this looks wider than the loader does, and calls missing only what is nowhere.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.facts.packages import BitsandbytesFacts, NativeFacts
from app.facts.words import error_text
from app.probes.elf import ElfError, Library, own_machine, read_library
from app.probes.files import read_bytes
from app.probes.node import glibc_version

# The compiled parts that an import of the stack loads first, by package.
_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "torch": (
        *("lib/libc10.so", "lib/libtorch_cpu.so", "lib/libtorch_python.so"),
        *("lib/libc10_cuda.so", "lib/libtorch_cuda.so"),  # absent from a wheel without CUDA
    ),
    "triton": ("_C/libtriton.so",),
}
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LARGEST_CACHE = 8 * 1024 * 1024
# Where glibc's loader looks without a variable or its cache, on the distributions in use.
_LOADER_FOLDERS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
# The driver's: a node has them and an image does not, and the gpu stage looks at them.
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-\w+)\.so\.\d+")
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")
_STDCXX = "libstdc++.so.6"


@dataclass(frozen=True, slots=True)
class Natives:
    """All that was looked at, and whose C and C++ libraries it was compared with."""

    facts: tuple[NativeFacts, ...]
    glibc: str
    libstdcxx: str
    libstdcxx_by: str


def probe_native(
    modules: Mapping[str, Path | None],
    bitsandbytes: BitsandbytesFacts | None,
    environ: Mapping[str, str],
    path: Sequence[str],
    glibc: str | None = None,
) -> Natives:
    """Look at the libraries of these packages; `glibc` is this process's version by default."""
    loader = _Loader(environ, path)
    glibc = glibc_version() if glibc is None else glibc
    found = [folder / name for package, folder in _folders(modules) for name in _LIBRARIES[package]]
    files = [file for file in found if file.is_file()]
    if bitsandbytes is not None and bitsandbytes.file and not bitsandbytes.problem:
        files.append(Path(bitsandbytes.file))
    facts = tuple(_judge(file, loader, glibc) for file in files)
    standard = loader.find(_STDCXX, ())
    by_variable = standard is not None and str(standard.parent) in loader.by_variable
    return Natives(facts, glibc, str(standard or ""), "LD_LIBRARY_PATH" if by_variable else "")


def _folders(modules: Mapping[str, Path | None]) -> Iterator[tuple[str, Path]]:
    for package in _LIBRARIES:
        folder = modules.get(package)
        if folder is not None:
            yield package, folder


class _Loader:
    """Where libraries are found: the loader's places, and those that torch fills itself."""

    def __init__(self, environ: Mapping[str, str], path: Sequence[str]) -> None:
        self.by_variable = tuple(filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")))
        self._path = path

    @functools.cached_property
    def _cache(self) -> bytes:
        """The loader's cache, whose texts end in NUL (glibc's dl-cache.h)."""
        try:
            return read_bytes(_LOADER_CACHE, _LARGEST_CACHE)[0]
        except OSError:
            return b""

    def _cached(self, name: str) -> Iterator[str]:
        """Paths that the cache has for a name, in its order."""
        end = b"/" + os.fsencode(name) + b"\0"
        at = self._cache.find(end)
        while at >= 0:
            start = self._cache.rfind(b"\0", 0, at) + 1
            yield os.fsdecode(self._cache[start : at + len(end) - 1])
            at = self._cache.find(end, at + 1)

    @functools.cached_property
    def _of_packages(self) -> tuple[str, ...]:
        """Where NVIDIA's wheels put theirs; torch loads them from there by itself."""
        folders = (
            str(folder)
            for entry in self._path
            if Path(entry, "nvidia").is_dir()
            for folder in Path(entry, "nvidia").glob("*/lib")
        )
        torch = (str(Path(entry, "torch", "lib")) for entry in self._path)
        return (*folders, *torch, str(Path(sys.base_prefix, "lib")), str(Path(sys.prefix, "lib")))

    def find(self, name: str, search: Sequence[str]) -> Path | None:
        """The first file of that name; `search` is what the library itself asks for."""
        for folder in (*self.by_variable, *search):
            if os.path.exists(file := f"{folder}/{name}"):  # noqa: PTH110 - thousands of these
                return Path(file)
        for file in self._cached(name):
            if _is_ours(Path(file)):
                return Path(file)
        for folder in (*_LOADER_FOLDERS, *self._of_packages):
            if os.path.exists(file := f"{folder}/{name}"):  # noqa: PTH110
                return Path(file)
        return None


@functools.cache
def _read(file: Path) -> Library | None:
    """None for what is no library; whoever needs it is judged without its versions."""
    try:
        return read_library(file)
    except (OSError, ElfError):
        return None


_own_machine = functools.cache(own_machine)


def _is_ours(file: Path) -> bool:
    """Not of another machine: the cache lists those of 32 bits too."""
    found = _read(file)
    return found is not None and _own_machine() in (found.machine, None)


def _judge(file: Path, loader: _Loader, glibc: str) -> NativeFacts:
    """What one library lacks here."""
    try:
        library = read_library(file)
    except (OSError, ElfError) as error:
        return NativeFacts(str(file), problem=error_text(error))
    own = str(file.parent)
    search = [folder.replace("${ORIGIN}", own).replace("$ORIGIN", own) for folder in library.search]
    search.append(own)
    lacks = [
        name
        for name in library.needed
        if not _DRIVER.fullmatch(name) and loader.find(name, search) is None
    ]
    versions = [
        f"{version} ({name})"
        for name, wanted in library.needs.items()
        for version in _unmet(name, wanted, loader, search, glibc)
    ]
    return NativeFacts(str(file), tuple(lacks), tuple(versions))


def _unmet(
    name: str, wanted: Sequence[str], loader: _Loader, search: Sequence[str], glibc: str
) -> list[str]:
    """Symbol versions that are not offered; of glibc's by number, of C++'s by the file's list."""
    of_glibc = {each: match[1] for each in wanted if (match := _GLIBC.fullmatch(each))}
    unmet = [each for each, number in of_glibc.items() if glibc and _key(number) > _key(glibc)]
    if name == _STDCXX and (found := loader.find(name, search)) is not None:
        library = _read(found)
        if library is not None and library.offers:
            unmet += [each for each in wanted if each not in library.offers]
    return unmet


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
