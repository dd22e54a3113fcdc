"""A fresh clone of this checkout, with what is not committed yet, as the build's context."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def clone(folder: Path, *, private: bool = False) -> Path:
    """Copy what git would. `private` gives it to its owner alone, as a umask of 077 does."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        source, target = ROOT / name, folder / name
        if not name or not source.is_file():  # one that was removed and is still in the index
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
        target.chmod(mode & 0o700 if private else mode)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o700 if private else 0o755)
    return folder
