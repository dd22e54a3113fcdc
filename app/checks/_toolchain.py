"""Judges of what Triton compiles with. The checks are listed in `app.checks.host`."""

from __future__ import annotations

import errno

from app.checks import Check
from app.facts.disk import fault_of as disk_fault
from app.facts.host import HostFacts
from app.facts.toolchain import LIBCUDA, Attempt, Ended, ToolchainFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_FULL = (errno.EAGAIN, errno.ENOMEM)  # no process could be had
_TEMPORARY = frozenset(("TMPDIR", "TEMP", "TMP"))
_REBUILD = "use this profile's image, or"


def c_compiler(facts: HostFacts, _plan: Plan) -> Finding:
    """One that runs, assembles, links and has libc's headers: each can be missing by itself."""
    found = facts.toolchain
    if found.skipped:
        return skipped(found.skipped)
    if found.temporary:
        return _no_folder(found, facts)
    expected = "a C compiler as Triton finds it (CC, else gcc, else clang) that makes a library"
    if not found.compiler and not found.from_variable:
        return failed(
            "there is no C compiler: neither gcc nor clang is on the PATH, and CC is not set",
            expected=expected,
            actual="no gcc, no clang",
            next_step=f"{_set_path(found)}{_REBUILD} install gcc and libc6-dev in it; Triton needs "
            "them at run time",
        )
    name = one_line(found.compiler) or "an empty CC"
    for attempt, what in ((found.attempts.bare, ""), (found.attempts.libc, " with libc's headers")):
        if attempt.failed:
            return failed(
                f"the C compiler {name} does not work{what}: {_how(attempt, found)}",
                expected=expected,
                actual=f"{_said(found)}: {_how(attempt, found)}",
                next_step=_compiler_step(found, attempt, headers=bool(what)),
                fault=_compiler_fault(found, attempt),
            )
    return passed(f"{name} compiles", expected=expected, actual=_said(found))


def python_h(facts: HostFacts, _plan: Plan) -> Finding:
    """Of this interpreter and of its version, as a compile sees it."""
    found = facts.toolchain
    if found.skipped:
        return skipped(found.skipped)
    expected = f"{found.include}/Python.h of this version of Python"
    attempt = found.attempts.python
    if attempt.ended is Ended.LATE:
        return _late(found, expected)
    absent = attempt.ended is Ended.NOT_TRIED and not found.python_h
    if absent or attempt.failed:
        why = f"there is no Python.h in {found.include}"
        if found.python_h:
            why = f"Python.h cannot be compiled with: {_how(attempt, found)}"
        return failed(
            why,
            expected=expected,
            actual=_how(attempt, found) or "no such file",
            next_step=f"{_REBUILD} install the headers of this Python in it (python3-dev)",
        )
    if attempt.ended is Ended.NOT_TRIED:
        return skipped("Python.h is there; without a compiler it was not tried")
    return passed("Python.h compiles", expected=expected, actual=found.include)


def libcuda_link(facts: HostFacts, _plan: Plan) -> Finding:
    """Triton links its helpers to the driver, and looks for it in places of its own."""
    found = facts.toolchain
    if found.skipped:
        return skipped(found.skipped)
    libcuda, attempt = found.libcuda, found.attempts.linked
    expected = f"{LIBCUDA} where Triton looks for it, and a linker that takes it"
    if not libcuda.present:
        return skipped(f"this node has no {LIBCUDA}, and the gpu stage says so")
    if libcuda.broken:
        return skipped(
            f"{libcuda.present} is no library ({libcuda.broken}): the gpu stage judges it"
        )
    if libcuda.problem or attempt.failed:
        return _not_linked(found, expected)
    if attempt.ended is Ended.NOT_TRIED:
        return skipped("without a compiler that works linking was not tried")
    return passed(f"{LIBCUDA} links, by {libcuda.asked}", expected=expected, actual=libcuda.present)


def _not_linked(found: ToolchainFacts, expected: str) -> Finding:
    """Triton does not find it, or the linker does not take it."""
    libcuda, attempt = found.libcuda, found.attempts.linked
    folder = one_line(libcuda.present.removesuffix(f"/{LIBCUDA}"))
    if libcuda.problem:
        return failed(
            f"Triton will not find {LIBCUDA}, which lies in {folder}: {libcuda.problem}",
            expected=expected,
            actual=libcuda.problem,
            next_step=f"set TRITON_LIBCUDA_PATH={folder}, or run ldconfig in the image",
        )
    if attempt.ended is Ended.LATE:
        return _late(found, expected)
    step = f"{_REBUILD} look at {one_line(libcuda.present)} and the linker of the image"
    of_variable = libcuda.asked.isupper()
    return failed(
        f"nothing can be linked to {LIBCUDA}: {_how(attempt, found)}",
        expected=expected,
        actual=f"looked in {', '.join(map(one_line, libcuda.folders))} ({libcuda.asked})",
        next_step=f"set {libcuda.asked} to {folder}" if of_variable else step,
        fault=Fault.CONFIG if of_variable else None,
    )


def ptxas(facts: HostFacts, _plan: Plan) -> Finding:
    """Triton runs it for every kernel; copies of an image's files can lose the right to be run."""
    found = facts.toolchain
    if found.skipped:
        return skipped(found.skipped)
    tool = found.ptxas
    if not tool.file:
        return skipped("Triton is not installed, as host.packages says")
    expected = "ptxas, as Triton brings it or TRITON_PTXAS_PATH names it, as a program"
    if not tool.problem:
        return passed("ptxas can be run", expected=expected, actual=tool.file)
    return failed(
        f"ptxas cannot be run: {tool.problem} ({one_line(tool.file)})",
        expected=expected,
        actual=tool.problem,
        next_step="unset TRITON_PTXAS_PATH"
        if tool.from_variable
        else f"{_REBUILD} install triton anew on a file system that is not mounted noexec",
        fault=Fault.CONFIG if tool.from_variable else None,
    )


def _set_path(found: ToolchainFacts) -> str:
    """The cheapest way out, where it is one."""
    return f"set PATH ({one_line(found.path_lacks)}), or " if found.path_lacks else ""


def _no_folder(found: ToolchainFacts, facts: HostFacts) -> Finding:
    """The disk and not the compiler: mostly the folders' own check has named it."""
    if any(each.problem and each.folder.variable in _TEMPORARY for each in facts.caches):
        return skipped("the temporary folder takes no file, as host.caches_writable says")
    return failed(
        f"the C compiler could not be tried: the temporary folder takes no file: {found.temporary}",
        expected="a temporary folder with room for a small file",
        actual=found.temporary,
        next_step="make room in the temporary folder, or point TMPDIR at one that can be written",
        fault=disk_fault(found.errno) or Fault.CONFIG,
    )


def _late(found: ToolchainFacts, expected: str) -> Finding:
    return failed(
        f"the compiler {one_line(found.compiler)} gave no answer within {found.deadline_s:g} s",
        expected=expected,
        actual=f"still running after {found.deadline_s:g} s",
        next_step="look at the disk that holds the compiler and its headers, or try again later",
        fault=Fault.TEMPORARY,
    )


def _how(attempt: Attempt, found: ToolchainFacts) -> str:
    """In words how an attempt ended."""
    match attempt.ended:
        case Ended.NOT_STARTED:
            return f"it cannot be started ({attempt.why})"
        case Ended.KILLED:
            return f"it died of signal {attempt.why}"
        case Ended.LATE:
            return f"it gave no answer within {found.deadline_s:g} s"
    return attempt.why


def _said(found: ToolchainFacts) -> str:
    """Who named the compiler."""
    return f"CC={one_line(found.compiler)}" if found.from_variable else one_line(found.compiler)


def _compiler_fault(found: ToolchainFacts, attempt: Attempt) -> Fault | None:
    if attempt.ended is Ended.LATE or attempt.errno in _FULL:
        return Fault.TEMPORARY
    if found.from_variable and attempt is found.attempts.bare:
        return Fault.CONFIG  # whoever set CC can mend it
    return None


def _compiler_step(found: ToolchainFacts, attempt: Attempt, *, headers: bool) -> str:
    if attempt.ended is Ended.LATE:
        return "look at the disk that holds the compiler, or try again later"
    if attempt.errno in _FULL:
        return "raise the limits (pids.max, ulimit -u, memory), or try again later"
    if headers:
        return f"{_REBUILD} install libc's headers in it (libc6-dev)"
    if found.from_variable:
        return (
            "unset CC, or set it to the path of one compiler without options: Triton runs the "
            "whole text as a program's name"
        )
    return f"{_set_path(found)}{_REBUILD} install gcc and binutils in it as a whole"


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.c_compiler",
        Fault.INTERNAL,
        "one compile with Triton's flags",
        c_compiler,
        cause="The image has no C compiler (gcc or clang), one without its assembler, linker or "
        "libc's headers, or CC names a program that is none. Triton compiles C on the node, while "
        "the model runs.",
        fix="Install gcc and libc6-dev in the image; unset CC, or set it to a compiler's path "
        "without options. After a deadline look at the disk that holds the compiler.",
    ),
    Check(
        "host.python_h",
        Fault.INTERNAL,
        "one compile with Triton's flags",
        python_h,
        cause="The headers of the Python that runs are not installed (distributions have them in "
        "a package of their own), or they are of another version.",
        fix="Install python3-dev in the image, for the same Python that runs bootguard.",
    ),
    Check(
        "host.libcuda_link",
        Fault.INTERNAL,
        "triton.backends.nvidia.driver: TRITON_LIBCUDA_PATH, ldconfig -p, LD_LIBRARY_PATH",
        libcuda_link,
        cause="The driver's libcuda.so.1 is mounted where the loader finds it, and not listed by "
        "ldconfig -p, where Triton looks; or TRITON_LIBCUDA_PATH leads elsewhere; or the linker "
        "refuses the file.",
        fix="Set TRITON_LIBCUDA_PATH to the folder that holds libcuda.so.1, or run ldconfig in "
        "the container.",
    ),
    Check(
        "host.ptxas",
        Fault.INTERNAL,
        "triton.knobs: TRITON_PTXAS_PATH, else Triton's own",
        ptxas,
        cause="The file has lost its executable bit on the way into the image, lies on a mount "
        "with noexec, or TRITON_PTXAS_PATH names something else.",
        fix="Install triton anew, outside of noexec mounts; unset TRITON_PTXAS_PATH.",
    ),
)
