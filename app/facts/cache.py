"""Facts of the cache stage: which model it is, where its files lie, and whether they are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.outcome import Finding
from app.plan import Resolved

OriginT = Literal["folder", "rehearsal", "hub"]
# Of what is to be downloaded: directories, links and the client's own small files besides.
ROOM_FACTOR = 1.1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the model folder; `n_bytes` is None where a link leads nowhere."""

    name: str
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class RoomFacts:
    """What a download needs and what the cache's file system has, in bytes.

    `needed_bytes` are the files that are not in the cache yet, as the hub lists them; `free_bytes`
    is what this uid may still write, None where the file system could not be asked (`problem` says
    why). `fuse` is a file system in user space, many of which report 0 for "no idea".
    """

    folder: str
    needed_bytes: int
    free_bytes: int | None = None
    fuse: bool = False
    problem: str = ""

    @property
    def wanted_bytes(self) -> int:
        """With what comes on top."""
        return int(self.needed_bytes * ROOM_FACTOR)

    @property
    def tells_nothing(self) -> bool:
        """Whether the free space is a number that means nothing."""
        return self.free_bytes is None or (self.free_bytes == 0 and self.fuse)

    @property
    def too_little(self) -> bool:
        """Whether the download would fill the disk."""
        if self.free_bytes is None or self.tells_nothing:
            return False
        return self.needed_bytes > 0 and self.free_bytes < self.wanted_bytes


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file of the cache that is not what the hub named it by; `paths` are to be deleted."""

    name: str
    expected: str
    actual: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyFacts:
    """How the files in the cache compare with what the hub has named them by.

    `n_compared` files had something to compare with, `not_comparable` had nothing. `skipped` says
    why nothing was compared at all. `problem` is why a file could not be read, with the system's
    number; `late` names the deadline, where the time was over before all were read.
    """

    n_compared: int = 0
    n_bytes: int = 0
    not_comparable: tuple[str, ...] = ()
    broken: tuple[BrokenFile, ...] = ()
    skipped: str = ""
    problem: str = ""
    errno: int | None = None
    late: str = ""

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to compare, and nothing went wrong either."""
        return not (self.n_compared or self.broken or self.problem or self.late)


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The model as asked for, as resolved, and the files on this machine.

    `failure` says why there is no folder; it is None exactly when `folder` is set. `revision` is a
    commit hash where there is one. `ignored_revision` is a revision that was asked for and has no
    meaning for this origin. `missing` are files that the folder's own index names and that are not
    there; `whole` says that the hub has no others. `folders` are those of a folder that has no
    file. `list_problem` is why the folder could not be listed, with the system's number. `room` is
    None where nothing had to be downloaded.
    """

    requested_id: str
    model_id: str
    origin: OriginT
    reason: str
    folder: Path | None = None
    revision: str | None = None
    ignored_revision: str | None = None
    downloaded: bool = False
    files: tuple[FileEntry, ...] = ()
    missing: tuple[str, ...] = ()
    whole: bool = False
    folders: tuple[str, ...] = ()
    list_problem: str = ""
    list_errno: int | None = None
    failure: Finding | None = None
    room: RoomFacts | None = None
    verified: VerifyFacts | None = None

    @property
    def resolved(self) -> Resolved | None:
        """What later stages load, None when nothing was found."""
        if self.folder is None:
            return None
        return Resolved(self.model_id, self.revision, self.folder, self.reason)
