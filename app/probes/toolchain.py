"""Compiles a small file as Triton will, beside the other probes of the stage.

Triton builds C against Python.h while a model runs, so a missing header or linker shows up minutes
into a boot, and as another error. One compile (some 60 ms of processor time) goes the whole way;
only where it fails are smaller ones tried, to tell what is missing by what fails and not by the
compiler's words.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.facts.host import cache_folders
from app.facts.scratch import COMPILED  # whoever ends a boot removes it
from app.facts.toolchain import Attempt, Attempts, Ended, LibcudaFacts, ToolchainFacts
from app.facts.words import one_line
from app.plan import Plan
from app.probes.compiler import CompilerRun
from app.probes.libcuda import find_libcuda, linked_name
from app.probes.ptxas import find_ptxas

# A compiler on a cold network disk takes some seconds; a third of the stage's own deadline.
DEADLINE_S = 20.0
_LAST_WAIT_S = 0.1
_ROOM = 256 * 1024  # bytes; a compile writes less
_LIBC = "#include <stdbool.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <dlfcn.h>\n"
_PYTHON = (
    "#include <Python.h>\n"
    f"#if (PY_VERSION_HEX >> 16) != {sys.hexversion >> 16}\n"
    "#error Python.h is of another version of Python\n"
    "#endif\n"
)
_CODE = "int bootguard_probe(void) { return 0; }\n"
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_FLAGS = ("-O3", "-shared", "-fPIC", "-Wno-psabi")  # Triton's


def deadline_of(stage_s: float) -> float:
    """The compiler's own deadline within that of the stage, 0 for none: its hang must be named."""
    return min(DEADLINE_S, stage_s / 2) if stage_s > 0 else DEADLINE_S


@contextmanager
def compiling(
    plan: Plan, environ: Mapping[str, str], deadline_s: float = DEADLINE_S, *, why_not: str = ""
) -> Iterator[Toolchain]:
    """Start the compiler; `Toolchain.facts` waits for it. Nothing is left behind.

    `why_not` says why nothing is to be tried here: gcc without a process to be had tries again for
    half a minute.
    """
    if not plan.profile.needs_gpu:
        why_not = f"{plan.profile.name} compiles nothing for a GPU"
    toolchain = Toolchain(plan, environ, deadline_s, why_not)
    try:
        toolchain.start()
        yield toolchain
    finally:
        toolchain.close()


@dataclass(slots=True)
class Toolchain:
    """One probe: `start`, `facts`, `close`."""

    plan: Plan
    environ: Mapping[str, str]
    deadline_s: float
    why_not: str = ""
    _began: float = field(default_factory=time.monotonic)
    _folder: Path = field(default_factory=Path)
    _compiler: str = ""
    _include: str = ""
    _libcuda: LibcudaFacts = field(default_factory=LibcudaFacts)
    _temporary: OSError | None = None
    _runs: list[CompilerRun] = field(default_factory=list)

    def start(self) -> None:
        """Compile everything at once: what is expected to succeed."""
        if self.why_not:
            return
        temporary = cache_folders(self.environ, self.plan.profile).temporary.path
        self._folder = Path(temporary, COMPILED)
        self._compiler = self._find_compiler()
        self._include = _include_folder()
        self._libcuda = find_libcuda(self.environ, self.deadline_s / 2)
        if self._compiler or self._chosen:
            self._compile(_LIBC + _PYTHON, link=self._links)

    @property
    def _chosen(self) -> bool:
        """Whether CC names the compiler; Triton takes even an empty name."""
        return "CC" in self.environ

    @property
    def _links(self) -> bool:
        found = self._libcuda
        return bool(found.folders and found.present) and not found.broken

    def _find_compiler(self) -> str:
        """As `triton.runtime.build` of 3.6 and 3.8 does: $CC as it stands, gcc, then clang."""
        if self._chosen:
            return self.environ["CC"]
        path = self.environ.get("PATH", os.defpath)
        return shutil.which("gcc", path=path) or shutil.which("clang", path=path) or ""

    def _path_lacks(self) -> str:
        """As when a launcher starts with an empty environment: gcc finds its linker by PATH too."""
        usual = shutil.which("gcc", path=_USUAL_PATH) or shutil.which("clang", path=_USUAL_PATH)
        if self._chosen or usual is None:
            return ""
        if "PATH" not in self.environ:
            return "it is not set"
        where = os.path.dirname(usual)  # noqa: PTH120 - as text
        return "" if self._compiler else f"it does not lead to {where}, which has one"

    def facts(self) -> ToolchainFacts:
        """Wait for the compiler, at most until the deadline, and find out what failed."""
        if self.why_not:
            return ToolchainFacts(skipped=self.why_not)
        attempts = self._attempts()
        if attempts.first_failed is not None:
            self._look_at_room()
        trouble = self._temporary
        return ToolchainFacts(
            compiler=self._compiler,
            from_variable=self._chosen,
            path_lacks=self._path_lacks(),
            include=self._include,
            python_h=Path(self._include, "Python.h").is_file(),
            attempts=attempts,
            libcuda=self._libcuda,
            ptxas=find_ptxas(self.environ),
            temporary=one_line(trouble.strerror or str(trouble)) if trouble else "",
            errno=trouble.errno if trouble else None,
            deadline_s=self.deadline_s,
        )

    def _attempts(self) -> Attempts:
        """Everything at once, or, where that failed, piece by piece up to the one that fails."""
        if not self._runs:
            return Attempts()
        whole = self._result(self._runs[0])
        if not whole.failed:
            return Attempts(whole, whole, whole, whole if self._links else Attempt())
        if whole.ended in (Ended.LATE, Ended.NOT_STARTED):
            return Attempts(whole)
        pieces: list[Attempt] = []
        for source in ("", _LIBC, _LIBC + _PYTHON):
            run = self._compile(source, link=False)
            if run is None:
                break
            pieces.append(self._result(run))
            if pieces[-1].failed:
                break
        else:
            # Linking failed a moment ago and is not tried again: that was the first compile.
            pieces += [whole] if self._links else []
        return Attempts(*pieces)

    def _compile(self, source: str, *, link: bool) -> CompilerRun | None:
        """Start one compile; None, and why is noted, where the folder takes no file."""
        name = f"probe{len(self._runs)}"
        code, output = self._folder / f"{name}.c", self._folder / f"{name}.so"
        try:
            if not self._folder.is_absolute():
                raise OSError("it is not an absolute path")  # noqa: TRY301
            self._folder.mkdir(exist_ok=True)
            code.write_text(source + _CODE)
        except (OSError, ValueError) as error:
            self._temporary = error if isinstance(error, OSError) else OSError(str(error))
            return None
        command = [self._compiler, str(code), *_FLAGS, "-o", str(output)]
        if link:
            library = linked_name()
            command.append(f"-l:{library}" if ".so" in library else f"-l{library}")
            command += [f"-L{folder}" for folder in self._libcuda.folders]
        # What a compiler that is ended has in work goes with the folder.
        environ = {**self.environ, "TMPDIR": str(self._folder)}
        run = CompilerRun([*command, f"-I{self._include}"], environ, output)
        self._runs.append(run)
        return run

    def _result(self, run: CompilerRun) -> Attempt:
        """Within what is left of the deadline that all runs share."""
        return run.result(max(self._began + self.deadline_s - time.monotonic(), _LAST_WAIT_S))

    def _look_at_room(self) -> None:
        """Whether it was the disk and not the compiler."""
        try:
            (self._folder / "room").write_bytes(b"\1" * _ROOM)
        except OSError as error:
            self._temporary = error

    def close(self) -> None:
        """End what still works, and remove every file."""
        for run in self._runs:
            run.close()
        if self._folder.is_absolute():
            with contextlib.suppress(ValueError):  # a NUL byte
                shutil.rmtree(self._folder, ignore_errors=True)


def _include_folder() -> str:
    """Where Triton looks for Python.h: Debian's default scheme is not that of its headers."""
    scheme = sysconfig.get_default_scheme()
    return sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
