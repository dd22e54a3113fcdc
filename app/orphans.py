"""What the children of a boot have started and left behind: found and ended at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from app.probes.process import descendants


class Orphans:
    """Knows which descendants were there before the boot: a script may have become this process.

    Orphans come to this process as their parent (a subreaper, or process 1), so that also one that
    has left its group and session is found.
    """

    def __init__(self) -> None:
        self._before = tuple(descendants(os.getpid()))

    def end(self, *, but: Collection[int], seconds: float) -> bool:
        """Kill and reap all of the boot's; False where some are still there after that time."""
        end = time.monotonic() + seconds
        while found := self._ours(but):
            if time.monotonic() >= end:
                return False
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap(but=but)
            time.sleep(0.005)
        return True

    def reap(self, *, but: Collection[int]) -> None:
        """Bury those that have ended: a job's daemons, for hours, would use up the process numbers.

        `but` are children whose status somebody else waits for.
        """
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_ALL, 0, flags) is None:
                return  # nobody has ended: no need to look at every process of the machine
        except ChildProcessError:
            return
        for pid in self._ours(but):
            with contextlib.suppress(ChildProcessError):  # no child of ours, or not yet
                os.waitpid(pid, os.WNOHANG)

    def _ours(self, but: Collection[int]) -> list[int]:
        """Descendants of the boot; what was there before keeps what it has started since."""
        kept = {*but, *self._before}
        kept.update(below for pid in self._before for below in descendants(pid))
        return [pid for pid in descendants(os.getpid()) if pid not in kept]
