"""Entry point: `python -m app.boot`. Settings come from the environment; see `--help`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # run as a file: its folder's parent is the import root
    sys.path[0] = str(Path(__file__).resolve().parent.parent)


def main() -> int:
    """Run one boot and return its exit status."""
    from app.streams import ensure_open, put

    ensure_open()
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        from app.usage import usage_text  # help must not wait for the rest

        put(sys.stdout, usage_text())
        return 0
    from app.supervisor import supervise

    return supervise(arguments, dict(os.environ))


if __name__ == "__main__":
    raise SystemExit(main())
