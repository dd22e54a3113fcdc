"""Judges of the cache stage: is it known which model this is, and is all of it here, unharmed."""

from __future__ import annotations

from app.checks import Check
from app.facts.cache import ROOM_FACTOR, CacheFacts, VerifyFacts
from app.facts.disk import fault_of
from app.facts.host import size
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped, unread, warned
from app.plan import Plan

_ADDED = f"{ROOM_FACTOR - 1:.0%}"


def resolved(facts: CacheFacts, _plan: Plan) -> Finding:
    """One repository at one commit, or one folder."""
    if facts.failure is not None:
        return facts.failure
    where = facts.model_id + (f" at {facts.revision}" if facts.revision else "")
    expected = f"the files of {facts.requested_id}"
    if facts.ignored_revision is not None:
        return warned(
            f"BOOT_REVISION is not used: {facts.reason}",
            expected=f"revision {facts.ignored_revision}",
            actual=where,
            next_step="unset BOOT_REVISION, or name a repository of the hub",
        )
    return passed(f"{where} ({facts.reason})", expected=expected, actual=str(facts.folder))


def room(facts: CacheFacts, _plan: Plan) -> Finding:
    """The disk of the cache takes what has to be downloaded, and some more."""
    found = facts.room
    if found is None:
        return skipped("nothing had to be downloaded")
    needed = size(found.wanted_bytes)
    expected = f"{needed} free: what is missing, and {_ADDED} more"
    if found.tells_nothing:
        return warned(
            f"{found.folder} does not tell its free space, and {needed} are to come",
            expected=expected,
            actual=found.problem or "0 bytes free, by a file system in user space (FUSE)",
            next_step="see that there is room, or set HF_HOME to a local disk",
        )
    free = size(found.free_bytes)
    if found.too_little:
        return failed(
            f"the download needs {needed}, and {free} are free at {found.folder}",
            expected=expected,
            actual=f"{free} free",
            next_step="free space there, set HF_HOME to a folder on a larger disk, or take another "
            "node",
        )
    return passed(f"{needed} needed, {free} free", expected=expected, actual=f"{free} free")


def complete(facts: CacheFacts, _plan: Plan) -> Finding:
    """Everything that the folder itself promises is in it."""
    if facts.folder is None:
        return skipped("the model was not found")
    expected = "every file that the folder's index names, and no link that leads nowhere"
    if facts.list_problem:
        return _not_listed(facts)
    if facts.missing:
        return _missing(facts, expected)
    if not facts.files:
        return _no_file(facts, expected)
    n_bytes = sum(entry.n_bytes or 0 for entry in facts.files)
    return passed(
        f"{len(facts.files)} files, {n_bytes:,} bytes",
        expected=expected,
        actual=f"{len(facts.files)} files",
    )


def _not_listed(facts: CacheFacts) -> Finding:
    denied = fault_of(facts.list_errno) is Fault.CONFIG
    return failed(
        f"{facts.folder} cannot be listed: {facts.list_problem}",
        expected="a folder that this uid may read",
        actual=facts.list_problem,
        next_step="give this uid the right to read and enter it"
        if denied
        else "look at the mount, or take another node",
        fault=Fault.CONFIG if denied else Fault.READ_ERROR,
    )


def _missing(facts: CacheFacts, expected: str) -> Finding:
    if facts.origin == "folder":
        return skipped(f"{facts.missing[0]} is missing: the checkpoint stage judges local folders")
    again = "delete the repository's folder in the cache, and let it be downloaded again"
    other = "the hub has no more: take a BOOT_REVISION that has them, or another repository"
    return failed(
        f"{len(facts.missing)} file(s) of {facts.folder} are missing: {facts.missing[0]}",
        expected=expected,
        actual=f"missing: {listed(facts.missing)}",
        next_step=other if facts.whole else again,
    )


def _no_file(facts: CacheFacts, expected: str) -> Finding:
    """Nothing at all is an absent model (a volume that is not mounted), not a broken one."""
    if facts.folders:
        return _only_folders(facts)
    return failed(
        f"{facts.folder} holds no file",
        expected=expected,
        actual="no file",
        next_step="mount the model there, or correct BOOT_BASE_MODEL_ID",
        fault=Fault.MODEL_ABSENT,
    )


def _only_folders(facts: CacheFacts) -> Finding:
    """One level too high: in the hub's cache, or where somebody keeps models."""
    caches = [name for name in facts.folders if name.startswith("models--")]
    if "snapshots" not in facts.folders and not caches:
        return skipped(f"it holds folders alone: {listed(facts.folders, 3)}, and no file")
    name = caches[0] if caches else facts.folder.name if facts.folder else ""
    repository = name.removeprefix("models--").replace("--", "/")
    return failed(
        f"{facts.folder} is a folder of the hub's cache, and the model is deeper in it",
        expected="a folder with config.json, tokenizer and *.safetensors",
        actual=f"the folders {listed(facts.folders, 3)}",
        next_step=f"set BOOT_BASE_MODEL_ID to {repository or 'the repository'} and HF_HUB_CACHE to "
        "the folder that holds models--*, or BOOT_BASE_MODEL_ID to the folder of one commit in "
        "snapshots/",
    )


def verified(facts: CacheFacts, plan: Plan) -> Finding:
    """What lies in the cache is what the hub has named it by."""
    found = facts.verified
    if found is None or found.nothing:
        return skipped(_why_not_verified(facts))
    what = "size" if plan.verify == "size" else "hash"
    expected = f"files of the {what} that the hub gave"
    if found.broken:
        return _broken(found, what, expected)
    if found.problem or found.late:
        return _unfinished(found)
    rest = f"; nothing to compare with: {listed(found.not_comparable, 3)}"
    return passed(
        f"{found.n_compared} files, {found.n_bytes:,} bytes, have the {what} that the hub gave"
        + (rest if found.not_comparable else ""),
        expected=expected,
        actual=f"{found.n_compared} files compared",
    )


def _why_not_verified(facts: CacheFacts) -> str:
    if facts.folder is None or facts.list_problem:
        return "there are no files to compare"
    if facts.verified is None:
        return "BOOT_VERIFY is off"
    what = facts.verified.skipped or listed(facts.verified.not_comparable, 3)
    return f"nothing to compare with: {what}"


def _unfinished(found: VerifyFacts) -> Finding:
    if found.problem:
        return unread(
            f"a file of the cache cannot be read: {found.problem}",
            expected="files that can be read to their end",
            actual=found.problem,
            next_step="look at the disk, or take another node",
            fault=fault_of(found.errno) or Fault.READ_ERROR,
        )
    return unread(
        f"only {found.n_compared} files ({found.n_bytes:,} bytes) were hashed in time",
        expected=f"all files within {found.late}",
        actual=f"{found.n_compared} files",
        next_step=f"raise {found.late}, or set BOOT_VERIFY=size",
        fault=Fault.TEMPORARY,
    )


def _broken(found: VerifyFacts, what: str, expected: str) -> Finding:
    first = found.broken[0]
    said = [f"{each.name}: {each.actual}, not {each.expected}" for each in found.broken]
    paths = [path for each in found.broken for path in each.paths]
    return failed(
        f"{first.name} has not the {what} that the hub gave"
        + (f" (+{len(found.broken) - 1} more)" if len(found.broken) > 1 else ""),
        expected=expected,
        actual=listed(said),
        next_step=f"delete {listed(paths)}, and let them be downloaded again",
    )


CHECKS: tuple[Check[CacheFacts], ...] = (
    Check(
        "cache.resolved",
        Fault.MODEL_ABSENT,
        "BOOT_BASE_MODEL_ID, BOOT_REVISION",
        resolved,
        cause="A name or revision that does not exist, a repository that the token may not read, "
        "a hub that is busy or cannot be reached, a cache that this uid may not read, or one that "
        "is not complete while downloads are forbidden.",
        fix="Follow the finding: correct BOOT_BASE_MODEL_ID or BOOT_REVISION, accept the licence "
        "and set HF_TOKEN, or fill the cache with `hf download` on a machine that reaches the hub.",
    ),
    Check(
        "cache.room",
        Fault.READ_ERROR,
        "the hub's listing and statvfs(2)",
        room,
        cause="The disk of the Hugging Face cache is full, of old snapshots or of other users' "
        "files, or the container's own layer is used instead of a mounted volume.",
        fix="Delete what is not needed (`hf cache ls`, `hf cache rm`), or set HF_HOME to a folder "
        "on a disk with room.",
    ),
    Check(
        "cache.complete",
        Fault.DATA_INVALID,
        "the folder's own index",
        complete,
        cause="A download or copy that was cut off, links of the cache copied without what they "
        "point to, a volume that is not mounted, or a folder that this uid may not list.",
        fix="Delete the repository's folder in the cache and boot again, or copy the folder anew "
        "with its links followed (`cp -rL`, `rsync -L`); give this uid the right to read it.",
    ),
    Check(
        "cache.verified",
        Fault.DATA_INVALID,
        "the hub's listing, and the names of the blobs",
        verified,
        cause="A copy of the cache that was cut off or altered, a disk that gives back other bytes "
        "than it was given, or a file that somebody edited in place.",
        fix="Delete the files that the finding names, the link and the blob, and boot again; with "
        "BOOT_VERIFY=sha256 every byte is compared.",
    ),
)
