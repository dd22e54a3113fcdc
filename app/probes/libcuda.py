"""Where Triton finds libcuda to link to, by its own rule (`backends/nvidia/driver.py`)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from app.facts.toolchain import LIBCUDA, LibcudaFacts
from app.facts.words import error_text, one_line
from app.probes.elf import ElfError, ElfFile, own_machine
from app.probes.files import read_bytes
from app.probes.wheel import package_folder

_LDCONFIG = "/sbin/ldconfig"  # by this path in Triton too
_VARIABLE = "TRITON_LIBCUDA_PATH"
# Where the loader looks by itself (x86-64), and where NVIDIA's container tools put the driver.
_FOLDERS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"),
    *("/lib", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"),
)
_LIBRARIES = re.compile(rb"""^libraries\s*=\s*\[\s*['"]([\w.+-]+)['"]""", re.MULTILINE)
_LARGEST_SOURCE = 256 * 1024


def find_libcuda(environ: Mapping[str, str], deadline_s: float) -> LibcudaFacts:
    """The folders that Triton would hand to the linker, and the file that they lead to."""
    listed, trouble = _listed(deadline_s)
    variable = tuple(filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")))
    given = environ.get(_VARIABLE)
    folders: tuple[str, ...]
    if given:
        folders, asked, problem = (given,), _VARIABLE, ""
    elif trouble:
        folders, asked, problem = (), _LDCONFIG, trouble
    else:
        asked = _LDCONFIG if listed else "LD_LIBRARY_PATH"
        folders = listed or variable
        problem = "" if any(map(_holds, folders)) else _nowhere(listed)
    places = (*variable, *listed, *folders, *_FOLDERS)
    present = next((f"{folder}/{LIBCUDA}" for folder in places if _holds(folder)), "")
    held = [f"{folder}/{LIBCUDA}" for folder in folders if _holds(folder)] or [present]
    broken = _trouble(held[0]) if present and all(map(_trouble, held)) else ""
    return LibcudaFacts(() if problem else folders, asked, problem, present, broken)


def _nowhere(listed: tuple[str, ...]) -> str:
    if listed:
        return f"{_LDCONFIG} -p lists {LIBCUDA} in {', '.join(map(one_line, listed))}: it is gone"
    return f"{_LDCONFIG} -p does not list {LIBCUDA}, and LD_LIBRARY_PATH leads to none"


def linked_name() -> str:
    """What the installed Triton links to: `cuda` before 3.4, the file's full name since."""
    folder = package_folder("triton", sys.path)
    if folder is not None:
        try:
            source, _ = read_bytes(folder / "backends/nvidia/driver.py", _LARGEST_SOURCE)
        except OSError:
            return LIBCUDA
        found = _LIBRARIES.search(source)
        if found is not None:
            return found[1].decode()
    return LIBCUDA


def _listed(deadline_s: float) -> tuple[tuple[str, ...], str]:
    """Folders of the loader's cache that hold libcuda, and why it could not be asked."""
    try:
        done = subprocess.run(
            [_LDCONFIG, "-p"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"{_LDCONFIG} -p gave no answer within {deadline_s:g} s"
    except OSError as error:
        return (), f"{_LDCONFIG} cannot be run: {error.strerror}"
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return (), f"{_LDCONFIG} -p failed: {one_line(last[0]) if last else done.returncode}"
    lines = done.stdout.decode(errors="ignore").splitlines()
    return tuple(str(Path(line.split()[-1]).parent) for line in lines if LIBCUDA in line), ""


def _holds(folder: str) -> bool:
    return Path(folder, LIBCUDA).exists()


def _trouble(file: str) -> str:
    """Why a file is no library for this process; a linker skips those of another machine."""
    try:
        with ElfFile(Path(file)) as found:
            machine = found.machine
    except (OSError, ElfError) as error:
        return error_text(error)
    return "" if own_machine() in (machine, None) else "it is for another machine"
