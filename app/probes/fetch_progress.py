"""How far a download is, and how that is told: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.facts.words import listed
from app.probes.hub_cache import INCOMPLETE

_LINE_EVERY_S = 5.0
_BAR_EVERY_S = 0.5
_BAR_WIDTH = 30  # columns
_MB = 1e6


@dataclass(frozen=True, slots=True)
class File:
    """One file that is wanted: its size in bytes, the name of its blob, whether it was here."""

    name: str
    size: int
    blob: str
    here: bool


@dataclass
class Progress:
    """How far a download is, in bytes of the files that are wanted."""

    files: tuple[File, ...] = ()
    done_bytes: int = 0
    now: str = ""  # the files that grow

    @property
    def total_bytes(self) -> int:
        """Of all files, those that were here already among them."""
        return sum(file.size for file in self.files)

    def missing_bytes(self, base: Path) -> int:
        """What is still to be written, equal files once."""
        missing = {file.blob: file.size for file in self.files if not file.here}
        return sum(size for blob, size in missing.items() if not (base / "blobs" / blob).exists())

    def measure(
        self, base: Path, blobs: Collection[str], grown: Iterable[str], received: int = 0
    ) -> None:
        """Look at the blobs; `grown` are those that were written to of late.

        A blob that is being written is named by its hash, a number of its own and an ending.
        `received` counts what came over the network, and is written somewhat later.
        """
        sizes: dict[str, int] = {}
        for name in blobs:
            with contextlib.suppress(OSError):
                n_bytes = (base / "blobs" / name).stat().st_size
                blob = name.partition(".")[0]
                sizes[blob] = max(n_bytes, sizes.get(blob, 0))
        here = sum(file.size for file in self.files if file.here)
        written = sum(
            min(file.size, sizes.get(file.blob, 0)) for file in self.files if not file.here
        )
        self.done_bytes = min(self.total_bytes, here + max(written, received))
        begun = [name for name in blobs if name.endswith(INCOMPLETE)]
        starts = {name.partition(".")[0] for name in list(grown) or begun}
        self.now = listed([f.name for f in self.files if f.blob in starts and not f.here], 2)


class Teller:
    """Tells of a download as often as somebody wants to read of it."""

    def __init__(
        self,
        what: str,
        say: Callable[[str], object],
        terminal: Terminal | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._say, self._terminal, self._now = what, say, terminal, now
        self._at, self._bytes = now(), 0
        self._began = False

    def __call__(self, progress: Progress) -> None:
        """Tell, if it is time."""
        if not self._began:
            self._began, self._bytes = True, progress.done_bytes
        seconds = self._now() - self._at
        if seconds < (_LINE_EVERY_S if self._terminal is None else _BAR_EVERY_S):
            return
        rate = max(0, progress.done_bytes - self._bytes) / seconds
        if self._terminal is None or not self._terminal.draw(progress, rate):
            self._terminal = None
            if seconds < _LINE_EVERY_S:
                return
            self._say(self.line(progress, rate))
        self._at, self._bytes = self._now(), progress.done_bytes

    def line(self, progress: Progress, rate: float) -> str:
        """One line: how much of how much, how fast, and what."""
        done, total = progress.done_bytes, progress.total_bytes
        percent = f" ({100 * done // total} %)" if total else ""
        now = f", {progress.now}" if progress.now else ""
        return (
            f"downloading {self._what}: {done / _MB:,.1f} of {total / _MB:,.1f} MB{percent}, "
            f"{rate / _MB:.1f} MB/s{now}"
        )

    def end(self) -> None:
        """Take the bar away."""
        if self._terminal is not None:
            self._terminal.clear()


class Terminal:
    """A line of a terminal that is drawn over and over, never waited for.

    The bar is rich's, and its line is ours: rich hides the cursor while it draws, and a boot that
    is killed then would leave the terminal without one.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def of(cls, path: str) -> Terminal | None:
        """The terminal that this descriptor of a process is, None where it is none or not ours.

        Opened anew, so that only our writes do not wait.
        """
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.isatty(number):
            return cls(number)
        os.close(number)
        return None

    def draw(self, progress: Progress, rate: float) -> bool:
        """Draw the bar; False for a terminal that is gone."""
        return self._put(f"\r\x1b[K{self._text(progress, rate)}\r")

    def clear(self) -> None:
        """Empty the line, and let go."""
        self._put("\r\x1b[K")
        os.close(self._number)

    def _put(self, text: str) -> bool:
        try:
            os.write(self._number, text.encode())
        except BlockingIOError:  # stopped, or slow: the next one may pass
            return True
        except OSError:
            return False
        return True

    def _text(self, progress: Progress, rate: float) -> str:
        from rich.console import Console
        from rich.filesize import decimal
        from rich.progress_bar import ProgressBar

        try:
            width = os.get_terminal_size(self._number).columns or 80
        except OSError:
            width = 80
        total = max(1, progress.total_bytes)
        told = f" {decimal(progress.done_bytes)} of {decimal(total)}, {decimal(int(rate))}/s "
        if width <= _BAR_WIDTH + len(told):  # in two lines it could not be drawn over
            return told.strip()[: width - 1]
        names = progress.now[: width - _BAR_WIDTH - len(told) - 1]
        console = Console(width=_BAR_WIDTH, force_terminal=True, color_system="standard")
        with console.capture() as drawn:
            bar = ProgressBar(total=total, completed=progress.done_bytes, width=_BAR_WIDTH)
            console.print(bar, end="")
        return f"{drawn.get().rstrip()}{told}{names}"
