"""The judge of room: bytes and files that the boot's folders have left, by disk."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import Check
from app.checks._reach import fetches
from app.facts.disk import FULL
from app.facts.host import ROOM_FOR_MODEL, FolderFacts, HostFacts, size
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, Severity, passed, skipped, warned
from app.plan import Plan
from app.profiles import GIB

_ROOM_FOR_CACHES = GIB  # Triton and Inductor: hundreds of MB after a few runs
_ROOM_FOR_REHEARSAL = GIB // 4  # the tiny model and its generated code: tens of MB
_ROOM_FOR_REPORT = 4 * 2**20  # some 50 KB each, and those of earlier boots beside it
# A rehearsal makes about 60 files, kernels of a training run some thousand.
_FILES = 1000
_FILES_FOR_REHEARSAL = 100


def disk(facts: HostFacts, plan: Plan) -> Finding:
    """Only warns: what is needed depends on what is cached already.

    Folders of one file system share its room, so needs are added up by device.
    """
    known = [  # of folders with another problem their own check tells enough
        each
        for each in (*facts.caches, facts.report)
        if each.free_bytes is not None and (not each.problem or each.errno in FULL)
    ]
    if not [each for each in known if each is not facts.report]:
        return skipped("no cache folder's file system says how much is free")
    need = _needs(known, facts, plan)
    files = _FILES_FOR_REHEARSAL if plan.profile.rehearsal else _FILES
    low = [each for each in known if (each.free_bytes or 0) < need[_disk_of(each)]]
    few = [
        each
        for each in known
        if need[_disk_of(each)] and each.free_inodes is not None and each.free_inodes < files
    ]
    expected = "; ".join(
        f"{size(room)} on the disk of {listed(_purposes(known, place), 3)}"
        for place, room in need.items()
        if room
    )
    actual = "; ".join(f"{each.folder.purpose} {size(each.free_bytes)} free" for each in known)
    if few:
        return warned(
            f"{few[0].folder.purpose}: only {few[0].free_inodes} more files (inodes) fit on "
            f"{one_line(few[0].folder.path)}",
            expected=f"room for {files} files",
            actual=f"{few[0].free_inodes} inodes free",
            next_step=f"remove files there, or move it with {few[0].folder.variable}",
        )
    if low:
        return _low(low[0], expected, actual)
    return passed(
        f"at least {size(min(f.free_bytes or 0 for f in known))} free",
        expected=expected,
        actual=actual,
    )


def _low(found: FolderFacts, expected: str, actual: str) -> Finding:
    """Little room; a program that answers for a file system may not know how much there is."""
    path, move = one_line(found.folder.path), f"move it with {found.folder.variable}"
    if found.on_fuse and not found.free_bytes:
        return warned(
            f"{found.folder.purpose}: the file system of {path} ({found.file_system}) reports no "
            "free room, as many of its kind do",
            expected=expected,
            actual=actual,
            next_step=f"see that its store has room, or {move}",
        )
    return warned(
        f"{found.folder.purpose}: only {size(found.free_bytes)} free on {path}",
        expected=expected,
        actual=actual,
        next_step=f"free space there, or {move}",
    )


def _disk_of(found: FolderFacts) -> object:
    """What tells one file system from another; a folder by itself where that is not known."""
    return found.folder.path if found.device is None else found.device


def _purposes(known: Iterable[FolderFacts], place: object) -> list[str]:
    return [each.folder.purpose for each in known if _disk_of(each) == place]


def _needs(known: Iterable[FolderFacts], facts: HostFacts, plan: Plan) -> dict[object, int]:
    """Bytes that should be free before the boot, by disk."""
    rehearsal = plan.profile.rehearsal
    fetched = not rehearsal and fetches(plan, facts)
    needs: dict[object, int] = {}
    generated: set[object] = set()
    for each in known:
        place = _disk_of(each)
        needs.setdefault(place, 0)
        if each is facts.report:
            needs[place] += _ROOM_FOR_REPORT
        elif each is facts.hub:
            needs[place] += ROOM_FOR_MODEL if fetched else 0
        elif place not in generated:
            generated.add(place)
            needs[place] += _ROOM_FOR_REHEARSAL if rehearsal else _ROOM_FOR_CACHES
    return needs


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.disk",
        Fault.CONFIG,
        "statvfs; 12 GiB for a 4-bit model of 8 GB, 1 GiB for generated code",
        disk,
        Severity.WARNING,
        cause="The node's disk is full of images and of earlier jobs' caches, a quota is used up, "
        "or a container writes to its own small layer and no volume.",
        fix="Free space or inodes there, or point HF_HOME and XDG_CACHE_HOME at a larger volume.",
    ),
)
