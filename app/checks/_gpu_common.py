"""What the judges of the gpu stage share: which device and board they speak of, and why none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.facts.board import BoardFacts, NvmlFacts
from app.facts.driver_errors import NO_DEVICE, NO_PERMISSION, nvml_error
from app.facts.gpu import DeviceFacts, GpuFacts, LibraryFile
from app.facts.words import one_line
from app.outcome import Finding, skipped
from app.plan import Plan

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"  # what the toolkit mounts, from the image or the job
MAKE_AN_INSTANCE = (
    "take another node; make an instance on this one (nvidia-smi mig -cgi ... -C), or turn MIG off "
    "(nvidia-smi -mig 0)"
)
# The last branch that runs devices of a capability (release notes name what is no longer run).
_LAST_BRANCH = {(7, 0): 580}
_HIDDEN = frozenset({"", "NoDevFiles"})  # the last one is what Slurm sets without a request


def the_device(facts: GpuFacts) -> DeviceFacts | Finding:
    """The device to judge, or why there is none."""
    if not facts.looked:
        return skipped("the CUDA driver did not answer")
    if not facts.devices:
        return skipped("no device is visible")
    return facts.devices[0]


def the_board(facts: GpuFacts) -> BoardFacts | Finding:
    """The visible device's board; where CUDA shows no device, the only board that NVML knows."""
    problem = nvml_silent(facts.nvml)
    if facts.devices:
        board = facts.board_of(facts.devices[0])
        if board is None:
            device = facts.devices[0]
            name = one_line(device.uuid or device.pci or device.name)
            return skipped(problem or f"NVML knows no board of {name}")
    else:
        open_to_us = [one for one in facts.nvml.boards if one.handle_error != NO_PERMISSION]
        if len(open_to_us) != 1:
            n = len(open_to_us)
            return skipped(problem or f"CUDA shows no device, and NVML knows {n} boards")
        board = open_to_us[0]
    if board.handle_error:
        return skipped(f"NVML cannot open the board: {nvml_error(board.handle_error).told}")
    return board


def nvml_silent(nvml: NvmlFacts) -> str:
    """Why NVML has told nothing of the boards; empty where it has answered."""
    if nvml.load_error:
        return f"NVML is not there: {one_line(nvml.load_error, 400)}"
    if nvml.problem:
        return f"NVML did not answer: {one_line(nvml.problem, 400)}"
    if nvml.init_error is None:
        return "NVML was not asked: there is neither a device file nor a library of the driver"
    if nvml.init_error:
        return f"{one_line(nvml.call) or 'nvmlInit'} returned {nvml_error(nvml.init_error).told}"
    return ""


def not_told(board: BoardFacts, *fields: str) -> Finding:
    """A skip: NVML refused these facts, and with which of its numbers."""
    told = [
        f"{field}: {nvml_error(board.unread[field]).told}"
        for field in fields
        if field in board.unread
    ]
    return skipped(f"NVML does not tell {' and '.join(told or fields)}")


def lacks(facts: GpuFacts, needed: str) -> str:
    """How the launcher's variable leaves one of the driver's parts out; empty where it does not."""
    granted = facts.asked.get(CAPABILITIES)
    if granted is None or {needed, "all"} & {part.strip() for part in granted.split(",")}:
        return ""
    return f" ({CAPABILITIES}={one_line(granted)} lacks {needed})"


def named(device: DeviceFacts) -> str:
    """The device's name as it can stand in a finding."""
    return one_line(device.name) or "the device"


def has_devices(facts: GpuFacts) -> bool:
    """Whether devices are there, by their files or by NVML, whatever CUDA says."""
    return bool(numbered(facts) or facts.nvml.boards)


def board_name(board: BoardFacts) -> str:
    """What tells the board from others of its node."""
    return one_line(board.uuid or board.pci or f"board {board.index}")


def numbered(facts: GpuFacts) -> list[str]:
    """Device files of whole devices: /dev/nvidia0 and so on."""
    return [name for name in facts.device_files if name[-1:].isdigit()]


def empty_mig(facts: GpuFacts) -> bool:
    """Whether every board that we may use is in MIG mode and has no slice for CUDA to show."""
    if facts.devices:
        return False
    boards = [board for board in facts.nvml.boards if board.handle_error != NO_PERMISSION]
    none_shown = facts.n_devices == 0 or facts.init_error == NO_DEVICE
    return bool(boards) and all(
        board.mig_enabled and (board.mig_uuids == () or (board.mig_uuids is None and none_shown))
        for board in boards
    )


def compat_of(facts: GpuFacts) -> LibraryFile | None:
    """CUDA's forward compatibility, where that is the libcuda of this process."""
    return next((library for library in facts.libraries if library.kind == "compat"), None)


def leading(text: str) -> int | None:
    """The major version that a text begins with, None where it begins with none."""
    major = text.partition(".")[0]
    return int(major) if re.fullmatch(r"[0-9]{1,6}", major) else None


def outgrown(facts: GpuFacts, plan: Plan) -> int:
    """The last driver branch for the profile's hardware, where this node's is later; else 0.

    A driver that shows a device runs it, whatever its version.
    """
    major = leading(facts.driver or facts.nvml.driver)
    last = _LAST_BRANCH.get(plan.profile.compute_capability or (0, 0), 0)
    return last if last and major and major > last and not facts.looked else 0


def take_branch(last: int) -> str:
    """The way out of a driver that is too new."""
    return f"take a node with driver {last}, the last branch for this hardware"


def hidden_by(facts: GpuFacts) -> str:
    """How CUDA_VISIBLE_DEVICES leaves no device; empty where it does not, or nobody can tell.

    CUDA takes the devices before the first name that it cannot find, so the first one decides.
    """
    if facts.visible is None:
        return ""
    shown = f"CUDA_VISIBLE_DEVICES={one_line(facts.visible)!r}"
    first = facts.visible.partition(",")[0].strip()
    if first in _HIDDEN:
        return f"{shown} hides every device"
    names = [name.strip() for name in facts.visible.split(",")]
    if names.count(first) > 1:  # CUDA takes such a list for an error, and shows none
        return f"{shown} names a device twice"
    return f"{shown} names no device of this container" if _is_none(first, facts) else ""


def _is_none(name: str, facts: GpuFacts) -> bool:
    """Whether no device has this number or name, as far as NVML and /dev tell."""
    boards = [board for board in facts.nvml.boards if board.handle_error != NO_PERMISSION]
    if name.isascii() and name.isdigit():
        n = len(boards) if facts.nvml.boards else len(numbered(facts))
        return bool(n) and int(name[:9]) >= n
    if name.startswith("GPU-"):
        uuids = [board.uuid for board in boards]
        return bool(uuids) and all(uuids) and not any(uuid.startswith(name) for uuid in uuids)
    return _no_slice(name, boards) if name.startswith("MIG-") else True


def _no_slice(name: str, boards: Sequence[BoardFacts]) -> bool:
    """Whether no board has the slice of this name, as far as NVML tells of slices.

    The older names, of drivers before 470, hold their board's: MIG-GPU-<uuid>/<number>/<number>.
    """
    if not boards or any(board.handle_error or board.mig_enabled is None for board in boards):
        return False
    older = name.removeprefix("MIG-").partition("/")[0]
    if older.startswith("GPU-"):
        return not any(board.mig_enabled and board.uuid == older for board in boards)
    return not any(name in (board.mig_uuids or ()) for board in boards)
