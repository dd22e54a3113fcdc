"""Facts of the tools that Triton compiles with while a model runs. Standard library only.

What Triton needs was read in its own code (3.6 and 3.8, `runtime/build.py` and
`backends/nvidia/driver.py`): a C compiler, Python.h, the headers of libc, and libcuda to link to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

LIBCUDA = "libcuda.so.1"


class Ended(StrEnum):
    """How one run of the compiler ended."""

    NOT_TRIED = "not_tried"
    OK = "ok"
    NOT_STARTED = "not_started"  # there is no such program, or it may not be run
    FAILED = "failed"  # by its exit status
    KILLED = "killed"  # by a signal
    LATE = "late"  # still running at the deadline
    USELESS = "useless"  # it succeeded and wrote no library that this process could load


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the compiler. `why` is its most telling line, or what the system said.

    `errno` is the system's number where it could not be started.
    """

    ended: Ended = Ended.NOT_TRIED
    why: str = ""
    errno: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it was tried, and did not give what Triton needs."""
        return self.ended not in (Ended.NOT_TRIED, Ended.OK)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Compiles that grow: plain C, with libc's headers, with Python.h, linked to libcuda.

    The first that fails is the last one tried.
    """

    bare: Attempt = field(default_factory=Attempt)
    libc: Attempt = field(default_factory=Attempt)
    python: Attempt = field(default_factory=Attempt)
    linked: Attempt = field(default_factory=Attempt)

    @property
    def first_failed(self) -> Attempt | None:
        """What stopped the series, None where nothing did."""
        tried = (self.bare, self.libc, self.python, self.linked)
        return next((attempt for attempt in tried if attempt.failed), None)


@dataclass(frozen=True, slots=True)
class LibcudaFacts:
    """Where Triton looks for libcuda when it links.

    `folders` are those that it would give the linker, empty where there is a `problem`: why it
    finds none. `asked` is who named them, a variable or /sbin/ldconfig. `present` is the file that
    lies where the loader looks, empty where this node has none, and `broken` says why that file is
    no library.
    """

    folders: tuple[str, ...] = ()
    asked: str = ""
    problem: str = ""
    present: str = ""
    broken: str = ""


@dataclass(frozen=True, slots=True)
class PtxasFacts:
    """NVIDIA's assembler, which Triton brings along and runs for every kernel.

    `file` is what Triton would run, empty without a Triton; `problem` why it cannot be run;
    `from_variable` whether TRITON_PTXAS_PATH has named it.
    """

    file: str = ""
    problem: str = ""
    from_variable: bool = False


@dataclass(frozen=True, slots=True)
class ToolchainFacts:
    """What came out of compiling a file as Triton would.

    `skipped` says why nothing was tried. `compiler` is what Triton would run, empty where it finds
    none; `from_variable` whether CC has named it. `path_lacks` says what is wrong with PATH where
    it leads to no compiler though there is one. `temporary` and `errno` tell of a temporary folder
    that takes no file. `deadline_s` is the time that all attempts had together.
    """

    skipped: str = ""
    compiler: str = ""
    from_variable: bool = False
    path_lacks: str = ""
    include: str = ""
    python_h: bool = False
    attempts: Attempts = field(default_factory=Attempts)
    libcuda: LibcudaFacts = field(default_factory=LibcudaFacts)
    ptxas: PtxasFacts = field(default_factory=PtxasFacts)
    temporary: str = ""
    errno: int | None = None
    deadline_s: float = 0.0
