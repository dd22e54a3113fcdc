"""One run of a compiler: started, waited for within a time, and judged by what it wrote."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.facts.toolchain import Attempt, Ended
from app.facts.words import one_line, signal_name
from app.probes.elf import ElfError, ElfFile, own_machine

_LARGEST_FILE = 16 * 1024 * 1024  # bytes that the compiler may write to any file
_LONGEST_TALK = 64 * 1024


class CompilerRun:
    """A compiler at work. It writes `output`, and what it says goes into memory."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], output: Path) -> None:
        """Start it. A program that cannot be started is a result, not an exception."""
        self._output = output
        self._problem = Attempt()
        self._process: subprocess.Popen[bytes] | None = None
        self._talk = os.fdopen(os.memfd_create("compiler"), "rb")
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._talk,
                process_group=0,  # with all that it starts it can be ended
            )
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            text = os.strerror(number) if number else str(error)
            self._problem = Attempt(Ended.NOT_STARTED, one_line(text), number)
            return
        limit = (_LARGEST_FILE, _LARGEST_FILE)
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limit)

    def result(self, seconds: float) -> Attempt:
        """How it ended; it is ended where it takes longer."""
        if self._process is None:
            return self._problem
        if not _ends(self._process, seconds):
            self._end(self._process)
            return Attempt(Ended.LATE, self._telling_line())
        status = self._process.wait()
        if status < 0:
            return Attempt(Ended.KILLED, signal_name(-status))
        if status:
            said = self._telling_line() or f"exit status {status}, and not a word"
            return Attempt(Ended.FAILED, said)
        useless = self._useless()
        return Attempt(Ended.USELESS, useless) if useless else Attempt(Ended.OK)

    def close(self) -> None:
        """End it where it still works."""
        if self._process is not None:
            self._end(self._process)
        self._talk.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it with all that it has started; one stuck in the kernel is left behind."""
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)

    def _useless(self) -> str:
        """Why this process could not load what was written; empty where it could."""
        try:
            with ElfFile(self._output) as made:
                machine = made.machine
        except FileNotFoundError:
            return "it wrote nothing"
        except (OSError, ElfError) as error:
            return f"it wrote no library: {error}"
        return "" if own_machine() in (machine, None) else "it makes code for another machine"

    def _telling_line(self) -> str:
        """The first line that names an error, else the last: compilers end in a summary."""
        handle = self._talk.fileno()
        start = max(0, os.fstat(handle).st_size - _LONGEST_TALK)
        text = os.pread(handle, _LONGEST_TALK, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "cannot" in line.lower()]
        return one_line((errors or lines[-1:] or [""])[0], 400)


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for its end, to the millisecond: `Popen.wait` looks every 50 ms only."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:  # a kernel before 5.3
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))
    finally:
        os.close(handle)
