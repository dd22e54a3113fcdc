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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from app.facts.cache import RoomFacts
from app.facts.disk import fault_of
from app.facts.host import size
from app.facts.words import listed
from app.outcome import Fault
from app.probes.fetch_child import Order
from app.probes.fetch_progress import File, Progress
from app.probes.fetch_request import Request
from app.probes.hub_answer import Cause, CauseError, death_of, from_json
from app.probes.hub_cache import INCOMPLETE, blob_sizes
from app.probes.room import room_of

LONGEST_WAIT_S = 30.0  # in a child, where the hub is busy; a longer wait is between two children
_ASK_TIMEOUT_S = 30.0  # for the commit
_ROOT = Path(__file__).resolve().parents[2]
_LOOK_S = 1.0
_REAP_S = 5.0
# To its first word the child only imports: a second, or many on a cold network file system.
_FIRST_WORD_S = 120.0
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FIRST_ERROR = 400  # of the statuses of HTTP


@dataclass(frozen=True, slots=True)
class Done:
    """A snapshot that is complete."""

    folder: Path
    commit: str


class Attempt:
    """A child that has been started, and what of it is on the disk.

    `room` is what it found that there is for the files, None until the hub has listed them. Raises
    CauseError, here and in `end`, for whatever is in the way of the files.
    """

    def __init__(
        self, request: Request, told: Callable[[Progress], None], *, xet: bool, locks: bool
    ) -> None:
        self.room: RoomFacts | None = None
        self._means, self._base, self._told = request.means, request.base, told
        self._stall_s = request.means.stall_s
        self._order = _order(request, locks=locks)
        self._progress = Progress()
        self._rest = b""
        self._received = 0
        self._status: int | None = None
        self._waiting: tuple[str, ...] = ()
        self._sizes: dict[str, int] = {}
        self._moved = time.monotonic()
        self._spoke = False
        self._open: set[Path] = set()
        self._child, self._to, self._from = _start(request.variables, xet=xet)

    def end(self) -> Done:
        """See it to its end."""
        self._write(json.dumps(asdict(self._order)))
        next_look = time.monotonic()
        while True:
            done = self._take()
            if done is not None:
                return done
            now = time.monotonic()
            if now >= next_look:
                next_look = now + min(_LOOK_S, self._stall_s / 4)
                self._look()
            if self._means.left_s <= 0:
                raise CauseError(Cause(Fault.TEMPORARY, about="late", status=self._trouble()))
            if now - self._moved > (self._stall_s if self._spoke else _FIRST_WORD_S):
                raise CauseError(self._stalled())

    def kill(self) -> None:
        """End it, and remove what it has begun and nobody can go on with."""
        self._note_open()
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even KILL ends what hangs there
            self._child.wait(_REAP_S)
        for pipe in (self._to, self._from):
            pipe.close()
        for path in self._open:
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self, line: str) -> None:
        """Tell it something; that it is gone is read off its other pipe."""
        with contextlib.suppress(BrokenPipeError):
            self._to.write(line.encode() + b"\n")

    def _take(self) -> Done | None:
        """Wait a moment for what it says."""
        timeout = min(0.25, self._stall_s / 4)
        if not select.select([self._from], [], [], timeout)[0]:
            return None
        chunk = os.read(self._from.fileno(), 65536)
        if not chunk:
            raise CauseError(self._died())
        if not self._spoke:
            self._spoke = True
            self._moved = time.monotonic()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            done = self._heard(json.loads(line))
            if done is not None:
                return done
        return None

    def _heard(self, event: Mapping[str, Any]) -> Done | None:
        match event:
            case {"done": {"folder": str(folder), "commit": str(commit)}}:
                return Done(Path(folder), commit)
            case {"cause": cause}:
                raise CauseError(from_json(cause))
            case {"listing": files}:
                self._listed(tuple(File(**file) for file in files))
            case {"progress": [received, status, waiting]}:
                self._move(grown=received > self._received)
                self._received, self._status = received, status
                self._waiting = tuple(waiting)
        return None

    def _listed(self, files: tuple[File, ...]) -> None:
        """It is known what is to come: is there room for it."""
        self._progress = Progress(files)
        self.room = room_of(self._base, self._progress.missing_bytes(self._base))
        if self.room.too_little:
            needed, free = size(self.room.wanted_bytes), size(self.room.free_bytes)
            raise CauseError(
                Cause(
                    Fault.READ_ERROR,
                    about="room",
                    said=f"it needs {needed}, and {free} are free",
                    step="free space there, or set HF_HOME to a folder on a larger disk",
                )
            )
        self._move(grown=True)
        self._write("go")

    def _look(self) -> None:
        """What has been written since the last look."""
        sizes = blob_sizes(self._base)
        grown = [name for name, length in sizes.items() if length > self._sizes.get(name, 0)]
        self._sizes = sizes
        self._move(grown=bool(grown))
        self._note_open()
        if self._progress.files:
            self._progress.measure(self._base, sizes, grown, self._received)
            self._told(self._progress)

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

    def _trouble(self) -> int | None:
        """The last answer of the hub, where that was an error."""
        return self._status if self._status and self._status >= _FIRST_ERROR else None

    def _stalled(self) -> Cause:
        text = f"no new byte for {self._stall_s:g} s (BOOT_STALL_TIMEOUT_S)"
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


def _order(request: Request, *, locks: bool) -> Order:
    stall_s = request.means.stall_s
    return Order(
        asked=request.asked,
        repository=request.repository,
        revision=request.plan.revision,
        cache=request.cache,
        token=request.token,
        endpoint=request.endpoint,
        pickles=request.plan.allow_pickle,
        locks=locks,
        ask_timeout_s=min(_ASK_TIMEOUT_S, stall_s),
        longest_wait_s=min(LONGEST_WAIT_S, stall_s / 2),
    )


def _start(
    environ: Mapping[str, str], *, xet: bool
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """The child, and its standard input and output."""
    search = [str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in environ.items() if name not in _TOKENS}
    try:
        child = subprocess.Popen(
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
    except OSError as error:
        fault = fault_of(error.errno) or Fault.TEMPORARY
        cause = Cause(fault, names=(type(error).__name__,), number=error.errno)
        raise CauseError(cause) from error
    if child.stdin is None or child.stdout is None:
        raise AssertionError("both are pipes")
    return child, child.stdin, child.stdout
