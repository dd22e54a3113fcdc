"""What the children of a boot have started and left behind: found and ended at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from app.probes.process import descendants

_KILL_S = 1.0


class Orphans:
    """Knows which descendants were there before the boot: a script may have become this process."""

    def __init__(self) -> None:
        self._before = frozenset(descendants(os.getpid()))

    def end(self, *, but: Collection[int]) -> bool:
        """Kill and reap all others; False where some hang in the kernel. Bounded.

        Orphans come to this process as their parent (a subreaper, or process 1), so that also one
        that has left its group and session is found.
        """
        end = time.monotonic() + _KILL_S
        while found := [pid for pid in descendants(os.getpid()) if not self._kept(pid, but)]:
            if time.monotonic() >= end:
                return False
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in found:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)
        return True

    def _kept(self, pid: int, but: Collection[int]) -> bool:
        return pid in but or pid in self._before
