"""One attempt at a download: a child, watched. It ends by itself, at a stall, or at the deadline.

Progress is what is written into the repository's folder of the cache, by whomever (another boot
may download the same file, and ours waits for it), and what the child has received.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.facts.cache import RoomFacts
from app.facts.disk import fault_of
from app.facts.words import listed
from app.outcome import Fault
from app.probes.fetch_progress import File, Progress
from app.probes.hub_answer import Cause, death_of, from_json
from app.probes.hub_cache import INCOMPLETE, blob_sizes
from app.probes.room import room_of

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_S = 1.0
_REAP_S = 5.0
# To its first word the child only imports: a second, or many on a cold network file system.
_FIRST_WORD_S = 120.0
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True)
class Done:
    """A snapshot that is complete."""

    folder: Path
    commit: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The download was not begun."""


@dataclass
class Attempt:
    """What one attempt is given, and what it learns on the way."""

    request: Mapping[str, Any]
    environ: Mapping[str, str]
    base: Path
    stall_s: float
    until: float  # monotonic
    told: Callable[[Progress], None]
    progress: Progress = field(default_factory=Progress)
    room: RoomFacts | None = None

    def run(self, *, xet: bool) -> Done | Cause | NoRoom:
        """Start the child, and see it to its end."""
        try:
            child = _start(self.environ, xet=xet)
        except OSError as error:
            fault = fault_of(error.errno) or Fault.TEMPORARY
            return Cause(fault, names=(type(error).__name__,), number=error.errno)
        watched = _Watched(self, child)
        try:
            return watched.end()
        finally:
            watched.kill()


def _start(environ: Mapping[str, str], *, xet: bool) -> subprocess.Popen[bytes]:
    search = [str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in environ.items() if name not in _TOKENS}
    return subprocess.Popen(
        # -P: what lies in the current folder must not shadow a module.
        [sys.executable, "-P", "-m", "app.probes.fetch_child", str(os.getpid())],
        env={
            **kept,
            # With telemetry the client also asks who runs it, at every start.
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **({} if xet else {"HF_HUB_DISABLE_XET": "1"}),
            "PYTHONPATH": os.pathsep.join(search),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


class _Watched:
    """The child while it runs, and what of it is on the disk."""

    def __init__(self, attempt: Attempt, child: subprocess.Popen[bytes]) -> None:
        self._attempt, self._child = attempt, child
        self._rest = b""
        self._received = 0
        self._status: int | None = None
        self._waiting: tuple[str, ...] = ()
        self._sizes: dict[str, int] = {}
        self._moved = time.monotonic()
        self._spoke = False
        self._open: set[Path] = set()

    def end(self) -> Done | Cause | NoRoom:
        """Whatever it ends with."""
        attempt = self._attempt
        line = json.dumps(attempt.request).encode() + b"\n"
        if not self._write(line):
            return self._died()
        next_look = time.monotonic()
        while True:
            found = self._take()
            if found is not None:
                return found
            now = time.monotonic()
            if now >= next_look:
                next_look = now + min(_LOOK_S, attempt.stall_s / 4)
                self._look()
            if now >= attempt.until:
                return Cause(Fault.TEMPORARY, about="late", status=self._trouble())
            if now - self._moved > (attempt.stall_s if self._spoke else _FIRST_WORD_S):
                return self._stalled()

    def kill(self) -> None:
        """End it, and remove what it has begun and nobody can go on with."""
        self._note_open()
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even KILL ends what hangs there
            self._child.wait(_REAP_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        for path in self._open:
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self, line: bytes) -> bool:
        if self._child.stdin is None:
            raise AssertionError("its standard input is a pipe")
        try:
            self._child.stdin.write(line)
        except BrokenPipeError:
            return False
        return True

    def _take(self) -> Done | Cause | NoRoom | None:
        """Wait a moment for what it says."""
        if self._child.stdout is None:
            raise AssertionError("its standard output is a pipe")
        timeout = min(0.25, self._attempt.stall_s / 4)
        if not select.select([self._child.stdout], [], [], timeout)[0]:
            return None
        chunk = os.read(self._child.stdout.fileno(), 65536)
        if not chunk:
            return self._died()
        if not self._spoke:
            self._spoke = True
            self._move(grown=True)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            found = self._heard(json.loads(line))
            if found is not None:
                return found
        return None

    def _heard(self, event: Mapping[str, Any]) -> Done | Cause | NoRoom | None:
        match event:
            case {"done": {"folder": str(folder), "commit": str(commit)}}:
                return Done(Path(folder), commit)
            case {"cause": cause}:
                return from_json(cause)
            case {"listing": {"files": files}}:
                return self._listed(files)
            case {"progress": {"received": received, "status": status, "waiting": waiting}}:
                self._move(grown=received > self._received)
                self._received, self._status = received, status
                self._waiting = tuple(waiting)
        return None

    def _listed(self, files: list[dict[str, Any]]) -> NoRoom | None:
        """It is known what is to come: is there room for it."""
        attempt = self._attempt
        attempt.progress = Progress(tuple(File(**file) for file in files))
        attempt.room = room_of(attempt.base, attempt.progress.missing_bytes(attempt.base))
        if attempt.room.too_little:
            return NoRoom()
        self._move(grown=True)
        self._write(b"go\n")
        return None

    def _look(self) -> None:
        """What has been written since the last look."""
        sizes = blob_sizes(self._attempt.base)
        grown = [name for name, size in sizes.items() if size > self._sizes.get(name, 0)]
        self._sizes = sizes
        self._move(grown=bool(grown))
        self._note_open()
        self._tell(grown)

    def _move(self, *, grown: bool) -> None:
        if grown:
            self._moved = time.monotonic()

    def _note_open(self) -> None:
        """The unfinished files that are the child's: no other process goes on with them."""
        folder = Path(f"/proc/{self._child.pid}/fd")
        with contextlib.suppress(OSError):
            for each in folder.iterdir():
                with contextlib.suppress(OSError):
                    path = each.readlink()
                    if path.name.endswith(INCOMPLETE) and path.parent.name == "blobs":
                        self._open.add(path)

    def _tell(self, grown: list[str]) -> None:
        if self._attempt.progress.files:
            self._attempt.progress.measure(self._attempt.base, self._sizes, grown, self._received)
            self._attempt.told(self._attempt.progress)

    def _trouble(self) -> int | None:
        """The last answer of the hub, where that was an error."""
        bad = 400
        return self._status if self._status is not None and self._status >= bad else None

    def _stalled(self) -> Cause:
        text = f"no new byte for {self._attempt.stall_s:g} s (BOOT_STALL_TIMEOUT_S)"
        if self._waiting:
            text += f", waiting for {listed(self._waiting, 3)}, which another process holds"
        elif self._trouble():
            text += f" after HTTP {self._trouble()}"
        return Cause(
            Fault.TEMPORARY,
            about="stall",
            status=self._trouble(),
            locks=self._waiting,
            said=text,
        )

    def _died(self) -> Cause:
        """It has ended without a word."""
        self._note_open()
        try:
            code = self._child.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return Cause(Fault.INTERNAL, about="died", said="it said no more, and did not end")
        return death_of(code)
