"""Reads what faulthandler wrote when a process crashed, and the last lines that it printed.

A leaf: imports nothing of the app. The form is that of CPython 3.11 and 3.12 (`traceback.c`):

    Fatal Python error: Segmentation fault
    Current thread 0x00007f16 (most recent call first):
      File "/app/x.py", line 12 in f
    Extension modules: numpy.linalg (total: 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_LONGEST = 200  # lines in the report
_WIDEST = 500  # characters of one: the extension modules are hundreds of names on one line
_FATAL = "Fatal Python error: "
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_CURRENT = "Current thread "
_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
_PARTS = 3  # of a file's path: package, module, and the folder between
# An exception's last line (a dotted class name, alone or before a colon), the interpreter's own, or
# what bitsandbytes' native library prints of a failed CUDA call before it leaves the process.
_EXCEPTION = re.compile(
    r"Fatal Python error: |Error .+ at line \d+ in file |"
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)(?::|$)"
)
# Readers of files, or of memory that a file is mapped to, by a part of their module's path.
_READERS = (
    *("/safetensors/", "/torch/serialization.py", "/torch/storage.py", "/numpy/_core/memmap.py"),
    *("/transformers/core_model_loading.py", "/transformers/modeling_utils.py"),
    *("/tokenizers/", "/sentencepiece/", "/app/engine/file_tensors.py"),
)


def arranged(trace: Sequence[str]) -> list[str]:
    """The last dump, crashing thread first, at most 200 lines of it."""
    head, threads, tail = _split(trace)
    threads.sort(key=lambda thread: not thread[0].startswith(_CURRENT))
    lines = [*head, *(line for thread in threads for line in thread)]
    room = _LONGEST - len(tail)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]
    return [line.rstrip()[:_WIDEST] for line in (*lines, *tail)]


def innermost(trace: Sequence[str]) -> str:
    """The innermost Python frame of the crashing thread: `app/engine/x.py:12 f`; else empty."""
    for line in _crashing(trace):
        found = _FRAME.match(line)
        if found:
            file = "/".join(found["file"].split("/")[-_PARTS:])
            return f"{file}:{found['line']} {found['name'].strip()}"[:_WIDEST]
    return ""


def reads_files(trace: Sequence[str]) -> bool:
    """Whether the crashing thread was about to read a model's files, or memory mapped to them."""
    frames = [found["file"] for line in _crashing(trace) if (found := _FRAME.match(line))]
    return any(reader in file for file in frames for reader in _READERS)


def last_exception(output: Iterable[str]) -> str:
    """The last printed line that looks like an exception's, at most 300 characters; else empty."""
    return next((line[:300] for line in reversed([*output]) if _EXCEPTION.match(line)), "")


def _crashing(trace: Sequence[str]) -> list[str]:
    """Frames of the thread that crashed; one that Python did not start has none, and no mark."""
    _, threads, _ = _split(trace)
    return next((thread[1:] for thread in threads if thread[0].startswith(_CURRENT)), [])


def _split(trace: Sequence[str]) -> tuple[list[str], list[list[str]], list[str]]:
    """Head, threads and tail of the last dump; stacks of a deadline may have been written before.

    What is not understood stays where it is.
    """
    fatal = [i for i, line in enumerate(trace) if line.startswith(_FATAL)]
    head: list[str] = []
    threads: list[list[str]] = []
    tail: list[str] = []
    for line in trace[fatal[-1] :] if fatal else trace:
        if not line.strip():
            continue
        if _THREAD.match(line):
            threads.append([line])
        elif not threads:
            head.append(line)
        elif tail or line.startswith("Extension modules"):
            tail.append(line)
        else:
            threads[-1].append(line)
    return head, threads, tail[:1]
