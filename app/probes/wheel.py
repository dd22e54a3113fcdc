"""Reads what torch's and bitsandbytes' wheels were built for, without importing either."""

from __future__ import annotations

import functools
import json
import os
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from app.facts.packages import TorchBuild, XformersBuild
from app.facts.words import error_text
from app.plan import Baked
from app.probes.elf import ElfError, ElfFile
from app.probes.files import read_bytes

# torch keeps the list as one text, and `torch._C._cuda_getArchFlags()` gives it out.
_FLAGS = re.compile(rb"\0((?:(?:sm|compute)_\d{2,3}[af]? ?)+)\0")
_HOLDER = "lib/libtorch_python.so"
_CHUNK = 1024 * 1024  # the text lies 0.8 MB into 15 MB of constants in torch 2.14.1
_OVERLAP = 4096
_ASSIGNED = re.compile(
    rb"""^(cuda|hip|xpu)\b[^=\n]*=\s*(?:None|['"]([^'"\n]*)['"])""", re.MULTILINE
)
_VERSION_FILE_LIMIT = 64 * 1024
# Fat binaries as nvcc embeds them: one header for each device link, then one for each kernel image.
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the images
_IMAGE = struct.Struct("<HHIQ12xI")  # kind, version, bytes of header and of content, architecture
_KINDS = {1: "compute", 2: "sm"}  # PTX, machine code
_MOST_IMAGES = 10_000


def torch_architectures(
    baked: Baked | None, path: Sequence[str] | None = None
) -> tuple[tuple[str, ...], str]:
    """Architectures such as `sm_90`, and who says so; empty, and why, where it cannot be known.

    `path` is where modules are looked for, `sys.path` by default.
    """
    if baked is not None:
        return baked.architectures, "image.json"
    folder = package_folder("torch", sys.path if path is None else path)
    if folder is None:
        return (), "torch is not installed"
    return _flags_in(folder / _HOLDER)


def package_folder(name: str, path: Sequence[str]) -> Path | None:
    """Where a top-level package would be imported from; None where there is none on the path."""
    try:
        spec = PathFinder.find_spec(name, path)
    except (ImportError, OSError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.submodule_search_locations:
        return None  # nowhere, or the folder that an uninstalled package leaves behind
    return Path(spec.origin).parent


def installed_folder(name: str) -> Path | None:
    """The folder of an installed package, found without its import.

    The current folder is on the path of `python -m app.boot` and holds nothing that is installed.
    """
    return package_folder(name, [entry for entry in sys.path if not _is_here(entry)])


def _is_here(entry: str) -> bool:
    """Whether this is the working folder, which may have been removed."""
    try:
        return Path(entry).samefile(os.curdir)
    except OSError:
        return False


@functools.cache
def _flags_in(library: Path) -> tuple[tuple[str, ...], str]:
    """The text among the library's constants."""
    try:
        with ElfFile(library) as file:
            place = file.sections().get(".rodata")
            if place is None:
                return (), f"{library.name} has no section for constants"
            found = _search(file, *place)
    except (OSError, ElfError) as error:
        return (), f"{library.name}: {error_text(error)}"
    return (found, library.name) if found else ((), f"{library.name} lists no CUDA architectures")


def _search(file: ElfFile, offset: int, size: int) -> tuple[str, ...]:
    """The first list of at least two, else a single name: that could be a word of its own."""
    single: tuple[str, ...] = ()
    for start in range(0, size, _CHUNK):
        chunk = file.read(offset + start, min(_CHUNK + _OVERLAP, size - start))
        for match in _lists(chunk):
            names = tuple(match[1].decode().split())
            if len(names) > 1:
                return names
            single = single or names
    return single


def _lists(chunk: bytes) -> Iterator[re.Match[bytes]]:
    """Matches of the whole text; a plain search for its beginning is what costs no time."""
    for beginning in (b"\0sm_", b"\0compute_"):
        at = chunk.find(beginning)
        while at >= 0:
            if match := _FLAGS.match(chunk, at):
                yield match
            at = chunk.find(beginning, at + 1)


def torch_build(path: Sequence[str] | None = None) -> TorchBuild | None:
    """What torch/version.py says of the wheel; None where torch is not installed."""
    folder = package_folder("torch", sys.path if path is None else path)
    if folder is None:
        return None
    try:
        text, _ = read_bytes(folder / "version.py", _VERSION_FILE_LIMIT)
    except (OSError, ValueError) as error:
        return TorchBuild(problem=f"torch/version.py: {error_text(error)}")
    said = {
        match[1]: (match[2] or b"").decode(errors="replace") for match in _ASSIGNED.finditer(text)
    }
    if b"cuda" not in said:
        return TorchBuild(problem="torch/version.py says nothing of CUDA")
    other = next((name.decode() for name in (b"hip", b"xpu") if said.get(name)), "")
    return TorchBuild(cuda=said[b"cuda"] or None, other=other)


def xformers_build(path: Sequence[str]) -> XformersBuild | None:
    """What xFormers was built for, as its own `_cpp_lib.py` reads it; None where that is not told.

    Its list names capabilities: `8.0+PTX` is sm_80 with compute_80.
    """
    folder = package_folder("xformers", path)
    if folder is None:
        return None
    try:
        text, _ = read_bytes(folder / "cpp_lib.json", _VERSION_FILE_LIMIT)
        told = json.loads(text)
        torch, listed = told["version"]["torch"], told["env"]["TORCH_CUDA_ARCH_LIST"] or ""
        names = [name.replace(".", "") for name in re.split(r"[\s;]+", listed) if name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    binaries = [f"sm_{name.removesuffix('+PTX')}" for name in names]
    ptx = [f"compute_{name.removesuffix('+PTX')}" for name in names if name.endswith("+PTX")]
    return XformersBuild(str(torch), (*binaries, *ptx))


@functools.cache
def kernel_architectures(library: Path) -> tuple[tuple[str, ...], str]:
    """Architectures of the kernels embedded in a library, and why there are none.

    Raises nothing. Some 60 headers are read of the 26 MB of bitsandbytes' largest library.
    """
    try:
        with ElfFile(library) as file:
            place = file.sections().get(".nv_fatbin")
            if place is None:
                return (), f"{library.name} holds no CUDA kernels"
            found = dict.fromkeys(_images(file, *place))
    except (OSError, ElfError) as error:
        return (), f"{library.name}: {error_text(error)}"
    return tuple(found), "" if found else f"{library.name} holds no CUDA kernels"


def _images(file: ElfFile, offset: int, size: int) -> Iterator[str]:
    """Walk from header to header; the kernels themselves are stepped over."""
    at, end = offset, offset + size
    for _ in range(_MOST_IMAGES):
        if at + _FATBIN.size > end:
            return
        magic, _, header, content = _FATBIN.unpack(file.read(at, _FATBIN.size))
        if magic != _FATBIN_MAGIC:
            at += 8  # links are aligned, with zeros between them
            continue
        image, stop = at + header, at + header + content
        while image + _IMAGE.size <= min(stop, end):
            kind, _, head, body, architecture = _IMAGE.unpack(file.read(image, _IMAGE.size))
            if kind in _KINDS:
                yield f"{_KINDS[kind]}_{architecture}"
            if head < _IMAGE.size:
                raise ElfError("a fat binary is broken")
            image += head + body
        at = max(stop, at + _FATBIN.size)
