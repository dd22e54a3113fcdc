"""Jobs for boots in containers, named by `BOOT_JOB=tests.containers.jobs:NAME`.

They leave files in the report folder, by which a test follows them from outside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

FOLDER = Path("/reports")
READY = "job-ready"
SAVED = "job-saved"
SAVED_CODE = 7
ZOMBIES = "job-zombies.json"
_FOR_EVER_S = 3600.0


def waits(_model: object, _tokenizer: object, _report: object) -> None:
    """Ready, and then nothing for an hour; signals find Python's own defaults."""
    (FOLDER / READY).touch()
    time.sleep(_FOR_EVER_S)


def saves(_model: object, _tokenizer: object, _report: object) -> int:
    """As a trainer with a checkpoint to save: takes 3 s after a TERM, then leaves by itself."""
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, note)
    (FOLDER / READY).touch()
    while not asked:
        time.sleep(0.05)
    time.sleep(3.0)
    (FOLDER / SAVED).touch()
    return SAVED_CODE


def orphans(_model: object, _tokenizer: object, _report: object) -> None:
    """Leaves grandchildren without a parent: some end while the job runs, some never do."""
    for _ in range(20):
        _daemon(0.1)
    for _ in range(3):
        _daemon(_FOR_EVER_S)
    time.sleep(3.0)
    states = [_state(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit()]
    (FOLDER / ZOMBIES).write_text(json.dumps(states.count("Z")), encoding="utf-8")


def _daemon(seconds: float) -> None:
    """Forks twice with a session of its own between, so that nobody of ours is its parent."""
    sys.stdout.flush()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(seconds)
        os._exit(0)
    os.waitpid(middle, 0)


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(") ")[2][0]
