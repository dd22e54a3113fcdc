"""Entry point: `python -m app.boot`. Settings come from the environment; see `--help`."""

from __future__ import annotations

import gc
import os
import sys
from types import TracebackType


def main() -> int:
    """Run one boot and return its exit status."""
    from app.signals import Signals
    from app.streams import ensure_open, put

    ensure_open()
    sys.excepthook = _leave  # until the supervisor has a better one
    # Before the slow imports: process 1 of a container has no default action for a TERM, and any
    # other one would end without a report.
    signals = Signals()
    signals.install()
    arguments = sys.argv[1:]
    if arguments[:1] in (["--help"], ["-h"]):
        from app.usage import usage_text  # help must not wait for the rest

        put(sys.stdout, usage_text())
        return 0
    from app.supervisor import supervise

    return supervise(arguments, dict(os.environ), signals)


def _leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What cannot even be imported, as under a tight limit of memory, must not look like a job's 1.

    PYTHONINSPECT brings a SystemExit here too.
    """
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        os._exit(error.code)
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, ImportError):
        step = "rebuild the environment, or the image, from its lock"
        sys.stderr.write(f"bootguard cannot start: {error}; {step}\n")
    os._exit(os.EX_SOFTWARE)


if __name__ == "__main__":
    # `-m` puts the working folder first on the path, a file as entry point its own: a `json.py`
    # there would shadow. Until here nothing is imported that Python has not loaded by itself.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    status = main()
    gc.freeze()  # else the interpreter's end looks for cycles in all modules, for 50 ms
    raise SystemExit(status)
