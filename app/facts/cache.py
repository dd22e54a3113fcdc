"""Facts of the cache stage: which model it is and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.outcome import Finding
from app.plan import Resolved

OriginT = Literal["folder", "rehearsal", "hub"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the model folder; `n_bytes` is None where a link leads nowhere."""

    name: str
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The model as asked for, as resolved, and the files on this machine.

    `failure` says why there is no folder; it is None exactly when `folder` is set. `revision` is a
    commit hash where there is one. `ignored_revision` is a revision that was asked for and has no
    meaning for this origin. `missing` are files that the folder's own index names and that are not
    there. `list_problem` is why the folder could not be listed, with the system's number.
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
    list_problem: str = ""
    list_errno: int | None = None
    failure: Finding | None = None

    @property
    def resolved(self) -> Resolved | None:
        """What later stages load, None when nothing was found."""
        if self.folder is None:
            return None
        return Resolved(self.model_id, self.revision, self.folder, self.reason)
