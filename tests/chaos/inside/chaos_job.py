"""The jobs of chaos boots: `BOOT_JOB=chaos_job:main` strikes as the stages do."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from types import FrameType
from typing import Any


def main(_model: Any, _tokenizer: Any, _report: Any) -> int:
    """Strike; 0 when that came to nothing."""
    importlib.import_module("chaos_faults").strike()
    return 0


def fails(_model: Any, _tokenizer: Any, _report: Any) -> int:
    """A status of the job's own."""
    importlib.import_module("chaos_faults").strike()
    return 7


def saves(_model: Any, _tokenizer: Any, _report: Any) -> int:
    """A trainer that takes 4 s to save a checkpoint once it is told to end, then leaves with 9."""
    told: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, note)
    importlib.import_module("chaos_faults").strike()
    while not told:
        time.sleep(0.02)
    time.sleep(4)
    sys.stderr.write("checkpoint saved\n")
    return 9


def counts(_model: Any, _tokenizer: Any, _report: Any) -> int:
    """Ends with 0 once HUP, USR1 and USR2 have come."""
    told: set[int] = set()
    wanted = {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}

    def note(number: int, _frame: FrameType | None) -> None:
        told.add(number)

    for each in wanted:
        signal.signal(each, note)
    importlib.import_module("chaos_faults").strike()
    while told != wanted:
        time.sleep(0.02)
    return 0
