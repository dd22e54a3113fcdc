"""Samples the process of a stage while it runs, so that slow can be told from stuck."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.facts.process import Sample
from app.report import Activity, utc_now

# Below this much of one core, and this many bytes in a second, a process does nothing: threads
# that wait in a loop burn a percent or two.
_BUSY_SHARE = 0.05
_READ_BYTES_PER_S = 64 * 1024
_SHORTEST_S = 0.5  # to be judged: one tick of the kernel's clock (10 ms) is no progress
# Memory in use and busy percent of the device, None where neither is known.
GpuLook = Callable[[], tuple[int | None, int | None]]


class Heartbeat:
    """Sums up the samples of one stage; `begin` starts the next one."""

    def __init__(
        self,
        look: Callable[[int], Sample],
        gpu: GpuLook,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._gpu, self._now = look, gpu, now
        self._first = self._last = Sample()
        self._last_at = self._moved_at = now()
        self._samples = self.peak_bytes = 0

    def begin(self, pid: int) -> None:
        """A stage begins in this process."""
        self._first = self._last = self._look(pid)
        self._last_at = self._moved_at = self._now()
        self._samples = self.peak_bytes = 0

    def beat(self, pid: int) -> Activity:
        """Look at the process: what it did since the stage began."""
        found, now = self._look(pid), self._now()
        passed = now - self._last_at
        if passed >= _SHORTEST_S:
            busy = found.cpu_s - self._last.cpu_s >= _BUSY_SHARE * passed
            read = found.read_bytes - self._last.read_bytes >= _READ_BYTES_PER_S * passed
            if busy or read:
                self._moved_at = now
            self._last, self._last_at = found, now
        self._samples += 1
        self.peak_bytes = max(self.peak_bytes, found.rss_bytes)
        memory, percent = self._gpu()
        return Activity(
            seen=utc_now(),
            samples=self._samples,
            rss_bytes=found.rss_bytes,
            rss_peak_bytes=self.peak_bytes,
            read_bytes=max(0, found.read_bytes - self._first.read_bytes),
            cpu_s=round(max(0.0, found.cpu_s - self._first.cpu_s), 2),
            idle_s=round(now - self._moved_at, 1),
            state=found.state,
            gpu_memory_bytes=memory,
            gpu_busy_percent=percent,
        )


def told(activity: Activity, seconds: float) -> str:
    """The activity in one line, `seconds` after the stage began."""
    parts = [
        f"{seconds:.0f} s",
        f"{activity.rss_bytes / 2**30:.1f} GiB resident",
        f"{activity.read_bytes / 2**20:.0f} MiB read",
        f"{activity.cpu_s:.0f} s of processor time",
    ]
    if activity.gpu_memory_bytes is not None:
        parts.append(f"{activity.gpu_memory_bytes / 2**30:.1f} GiB on the device")
    if activity.gpu_busy_percent is not None:
        parts.append(f"device {activity.gpu_busy_percent} % busy")
    if activity.idle_s >= 10:  # noqa: PLR2004 - shorter waits are not worth a word
        parts.append(f"nothing moved for {activity.idle_s:.0f} s")
    return ", ".join(parts)
