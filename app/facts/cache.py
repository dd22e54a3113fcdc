"""Facts of the cache stage: which model it is and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.facts.checkpoint import CheckpointFacts, printable
from app.outcome import Finding
from app.plan import Plan, Resolved
from app.sections import Model

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


def model_section(plan: Plan, cache: CacheFacts, checkpoint: CheckpointFacts) -> Model:
    """The report's `model`: as asked, as resolved, as found on disk."""
    architectures = checkpoint.config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    quantised = checkpoint.quantization_config or {}
    return Model(
        requested_id=plan.request.base_model_id,
        resolved_id=cache.model_id,
        revision=cache.revision,
        reason=cache.reason,
        folder=str(checkpoint.folder),
        model_type=printable(str(checkpoint.config.get("model_type", ""))),
        architecture=printable(str(first)),
        n_shards=len(checkpoint.shards),
        n_bytes=sum(shard.n_bytes for shard in checkpoint.shards),
        n_tensors=len(checkpoint.tensors),
        n_packed=len(checkpoint.packed),
        quantization={
            printable(str(key)): printable(value) if isinstance(value, str) else value
            for key, value in quantised.items()
            if isinstance(value, str | bool | int)
        },
    )
