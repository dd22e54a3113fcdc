"""Standard streams that never decide how a boot ends, nor when: closed, full, broken or unread.

A leaf: imports nothing of the app. Text goes past Python's buffers, in pieces that the other end
has room for, so that a reader who stalls costs a bounded time and then lines, not the boot. Only a
file on a volume that hangs can still hold us: no system call can be taken back from there.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

PATIENCE_S = 1.0
# A reader that keeps us waiting no longer than this for each piece is slow, not stalled: then the
# wait is free, or a flood would lose lines to a healthy reader (4096 bytes in 0.1 s are 40 kB/s).
_PACE_S = 0.1
# Spent patience comes back in this share of the time that passes: waiting for a reader who stalls
# again and again takes no more of a boot than that.
_REFILL = 0.1
_LONGEST = 5.0  # of one text, in patiences: a long one at a slow reader's pace ends too
_PIECE = select.PIPE_BUF  # a pipe that polls as writable takes so much without waiting
# The kernel or the file system cannot write without waiting if asked to by a flag of the call.
_NO_SUCH_FLAG = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ESPIPE))


def ensure_open() -> None:
    """Give standard input, output and error somewhere to go where the caller has closed them.

    Otherwise the next file that is opened gets the number, and is written to as if it were a log.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number. Children need it as much as we do.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


@dataclass
class _Reader:
    """What is known of a stream's other end."""

    patience_s: float  # left
    seen: float  # monotonic, of the last text
    lost: int = 0  # lines since it last took one
    cut: bool = False  # the last line that it took was not whole


_READERS: weakref.WeakKeyDictionary[TextIO, _Reader] = weakref.WeakKeyDictionary()


def left_out(n_lines: int) -> str:
    """What a stream is told once it takes text again."""
    return f"... {n_lines} lines left out: nobody read them in time\n"


def put(
    stream: TextIO,
    text: str,
    *,
    patience_s: float | None = None,
    told: Callable[[int], str] = left_out,
) -> bool:
    """Write at once, and return whether all of it was taken.

    A reader who stalls is waited for `PATIENCE_S` in all, and gets only what there is room for from
    then on; `told` makes the line that says how many were left out. `patience_s` is for this text
    alone. A stream that fails is turned to nowhere: Python would try again while it ends, and
    change the exit status to 120. One without a descriptor is written as it comes.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return _put_plainly(stream, text)
    now = time.monotonic()
    reader = _READERS.setdefault(stream, _Reader(PATIENCE_S, now))
    reader.patience_s = min(PATIENCE_S, reader.patience_s + _REFILL * (now - reader.seen))
    kept = reader.patience_s
    if patience_s is not None:
        reader.patience_s = patience_s
    longest = now + _LONGEST * (PATIENCE_S if patience_s is None else patience_s)
    try:
        return _put_now(number, reader, stream, text, told, longest)
    except OSError:
        _turn_to_nowhere(number)
        return False
    finally:
        reader.seen = time.monotonic()
        if patience_s is not None:
            reader.patience_s = kept


def _put_plainly(stream: TextIO, text: str) -> bool:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # a closed file object
        return False
    return True


def _put_now(
    number: int,
    reader: _Reader,
    stream: TextIO,
    text: str,
    told: Callable[[int], str],
    longest: float,
) -> bool:
    """First what was lost, on a line of its own, then the text, in one piece where it fits."""
    notice = told(reader.lost) if reader.lost else ""
    first = _encoded(stream, "\n" * reader.cut + notice)
    data = first + _encoded(stream, text)
    n_taken = _push(number, data, reader, longest)
    if n_taken:
        reader.cut = n_taken < len(data) and data[n_taken - 1 : n_taken] != b"\n"
    if n_taken >= len(first):
        reader.lost = 0
    rest = data[max(n_taken, len(first)) :]
    reader.lost += rest.count(b"\n") + (rest != b"" and not rest.endswith(b"\n"))
    return not rest


def _encoded(stream: TextIO, text: str) -> bytes:
    """As the stream would; what it has no character for is escaped, never a reason to fail."""
    encoding = stream.encoding or "utf-8"
    try:
        return text.encode(encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace")


def _push(number: int, data: bytes, reader: _Reader, longest: float) -> int:
    """Write what there is room for before patience ends; how many bytes were taken."""
    write = _way_to_write(number)
    gate = select.poll()
    gate.register(number, select.POLLOUT)
    at = 0
    while at < len(data):
        # Whole lines where they fit, so that what is lost begins with a line.
        end = data.rfind(b"\n", at, at + _PIECE) + 1 or at + _PIECE
        n_taken = write(data[at:end])
        at += n_taken
        if not n_taken and not _wait(gate, reader, longest):
            break
    return at


def _wait(gate: select.poll, reader: _Reader, longest: float) -> bool:
    """Wait for room as long as patience lasts; False when it has run out."""
    began = time.monotonic()
    left = min(reader.patience_s, longest - began)
    if left <= 0:
        return False
    ready = bool(gate.poll(left * 1000))
    waited = time.monotonic() - began
    if ready and waited < _PACE_S:
        # Room that is gone again when we come: others write there too. Not as fast as we can.
        time.sleep(0.001)
    else:
        reader.patience_s -= waited
    return ready


def _way_to_write(number: int) -> Callable[[bytes], int]:
    """A call that writes without waiting and returns how many bytes went: 0 where none could.

    The stream's own flags stay as they are: its description is shared with whoever gave it to us.
    """
    mode = os.fstat(number).st_mode
    if stat.S_ISCHR(mode) and os.isatty(number):
        return lambda piece: _to_terminal(number, piece)
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return lambda piece: _by_flag(number, piece)
    return lambda piece: _when_ready(number, piece)


def _by_flag(number: int, piece: bytes) -> int:
    """The call alone is told not to wait: others may fill a pipe between a poll and a write."""
    try:
        return os.pwritev(number, [piece], -1, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno not in _NO_SUCH_FLAG:
            raise
    return _when_ready(number, piece)


def _to_terminal(number: int, piece: bytes) -> int:
    """A terminal that is stopped or slow polls as writable for one byte: opened anew, not to wait.

    That may be another user's: then it is written to as any file.
    """
    try:
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return _when_ready(number, piece)
    try:
        return os.write(own, piece)
    except BlockingIOError:
        return 0
    finally:
        os.close(own)


def _when_ready(number: int, piece: bytes) -> int:
    gate = select.poll()
    gate.register(number, select.POLLOUT)
    if not gate.poll(0):
        return 0
    try:
        return os.write(number, piece)
    except BlockingIOError:
        return 0


def _turn_to_nowhere(number: int) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        if nowhere != number:  # a closed number is the lowest free one
            os.close(nowhere)
    except OSError:  # no descriptor left to open: the next text fails again, as quietly
        return
