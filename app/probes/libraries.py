"""Has every native library of an environment loaded, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from app.facts.libraries import LibrariesFacts, LoadFacts

_MODULE = "app.probes.libraries_child"


def probe_libraries(folder: Path, environ: Mapping[str, str], deadline_s: float) -> LibrariesFacts:
    """Load what lies below `folder`; `environ` must let a child import this package."""
    command = [sys.executable, "-P", "-B", "-m", _MODULE, str(folder)]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return LibrariesFacts(_told(error.stdout or b""), f"no end within {deadline_s:g} s")
    except OSError as error:
        return LibrariesFacts(problem=f"no process: {error.strerror}")
    problem = ""
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        problem = f"the loading process ended with {done.returncode}: {last}"
    return LibrariesFacts(_told(done.stdout), problem)


def _told(output: bytes) -> tuple[LoadFacts, ...]:
    """The whole lines; the last one may be cut off."""
    whole = output[: output.rfind(b"\n") + 1]
    lines = [json.loads(line) for line in whole.splitlines()]
    return tuple(LoadFacts(each["path"], each["error"], tuple(each["lacks"])) for each in lines)
