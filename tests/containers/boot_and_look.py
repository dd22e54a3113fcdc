"""Boots as `python -m app.boot` does, then looks round before the container ends.

When the first process of a container ends, the kernel kills all others, so that afterwards
nothing is ever left. What is left is therefore looked for here, in the boot's own process when it
has done everything else, and written to a file in the folder that the first argument names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LEFT = "left.json"
IMPORTING = "importing"
# Seconds that the import of the supervisor is to take longer, as from a cold network volume.
SLOWLY = "LOOK_IMPORT_S"


def others() -> list[str]:
    """All other processes of this PID namespace but an init above us: PID, state, name."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in {os.getpid(), os.getppid()}:
            continue
        try:
            before, _, after = (folder / "stat").read_text(encoding="utf-8").rpartition(") ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(f"{before}) {after[0]}")
    return found


class Slow:
    """A finder that finds nothing, and takes its time to look for the supervisor."""

    def __init__(self, folder: str, seconds: float) -> None:
        self._mark, self._seconds = Path(folder) / IMPORTING, seconds

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        """Leave a mark, and wait."""
        if name == "app.supervisor":
            self._mark.touch()
            end = time.monotonic() + self._seconds
            while time.monotonic() < end:  # no signal ends this
                time.sleep(0.05)


def main() -> None:
    """Boot, look, and leave with the boot's status."""
    folder, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    if SLOWLY in os.environ:
        sys.meta_path.insert(0, Slow(folder, float(os.environ[SLOWLY])))
    from app.boot import main as boot

    code = boot()
    (Path(folder) / LEFT).write_text(json.dumps(others()), encoding="utf-8")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
