"""Loads every native library below a folder: `python -m app.bake.libraries_child FOLDER`.

Each is loaded in a fork of this process, so that one that crashes, hangs or leaves takes nothing
along and is named. All symbols are bound at once, as LD_BIND_NOW does: what is missing shows now
and not in a run. A line of JSON for each goes to standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from app.facts.words import signal_name
from app.probes.elf import ElfError, read_library

# What every process of the stack has loaded before the rest. torch's start-up makes the needs of
# the first one visible to all that comes later, and those of no other.
_FIRST = (
    ("torch/lib/libtorch_global_deps.so", os.RTLD_GLOBAL),
    ("torch/lib/libtorch_python.so", os.RTLD_LOCAL),
    ("triton/_C/libtriton.so", os.RTLD_LOCAL),
)
_LIBRARY = re.compile(r".+\.so(?:\.\d[\w.]*)?")
_MAGIC = b"\x7fELF"
_LONGEST_S = 120  # for one library; torch's largest takes some seconds from a cold disk
_LONGEST_ANSWER = 64 * 1024


def found(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Libraries by their name and programs by their first bytes; True for a library.

    A link to a file is passed over, since the file comes by itself; one to nothing is a library
    that cannot be loaded.
    """
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_symlink() and path.exists():
                continue
            if _LIBRARY.fullmatch(name):
                yield path, True
            elif _is_program(path):
                yield path, False


def _is_program(path: Path) -> bool:
    """An ELF file that may be run; scripts are the interpreter's business."""
    if not os.access(path, os.X_OK) or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def tried(path: Path, *, load: bool) -> tuple[str, tuple[str, ...]]:
    """The loader's error, empty where there is none, and which needed libraries are not found."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _answer(path, writer, load=load)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = [json.loads(line) for line in pipe.read(_LONGEST_ANSWER).splitlines()]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        return f"no end within {_LONGEST_S} s", ()
    if status < 0:
        return f"it ends the process that loads it: {signal_name(-status)}", ()
    if not told:
        return f"it ends the process that loads it, with status {status}", ()
    return told[0], tuple(told[1]) if len(told) > 1 else ()


def _answer(path: Path, writer: int, *, load: bool) -> None:
    """The fork's work: try, tell, leave. Lines of its own that a library prints are of no use."""
    try:
        signal.alarm(_LONGEST_S)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        error = _load(str(path)) if load else ""
        _tell(writer, error)
        if error or not load:
            _tell(writer, list(_absent(path)))
    finally:
        os._exit(0)


def _tell(writer: int, value: object) -> None:
    os.write(writer, json.dumps(value).encode() + b"\n")


def _load(name: str, mode: int = os.RTLD_LOCAL) -> str:
    """Why it cannot be loaded, in the loader's words; empty where it could."""
    try:
        ctypes.CDLL(name, mode | os.RTLD_NOW)
    except OSError as error:
        return str(error)
    return ""


def _absent(path: Path) -> Iterator[str]:
    """Libraries that it needs and that lie neither where it says nor where the loader looks."""
    try:
        library = read_library(path)
    except (OSError, ElfError):  # the loader has said so too
        return
    own = str(path.parent)
    places = [place.replace("${ORIGIN}", own).replace("$ORIGIN", own) for place in library.search]
    for name in library.needed:
        if not any(Path(place, name).exists() for place in places) and _load(name):
            yield name


def main(folder: Path) -> None:
    """Load what comes first into this process, then all in forks of it."""
    for name, mode in _FIRST:
        path = folder / name
        if path.exists() and not tried(path, load=True)[0]:
            _load(str(path), mode)
    for path, load in found(folder):
        error, lacks = tried(path, load=load)
        told = {"path": os.path.relpath(path, folder), "error": error, "lacks": lacks}
        print(json.dumps(told), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
