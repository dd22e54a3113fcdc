"""What the judges of the gpu stage share: which device and board they speak of, and why none."""

from __future__ import annotations

import re
from dataclasses import replace

from app.facts.board import BoardFacts, NvmlFacts
from app.facts.driver_errors import (
    COMPAT_REFUSED,
    CUDA_MISMATCHES,
    NVML_MISMATCH,
    UNKNOWN,
    nvml_error,
)
from app.facts.gpu import DeviceFacts, GpuFacts, LibraryFile
from app.facts.words import one_line
from app.outcome import Finding, skipped

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"  # what the toolkit mounts, from the image or the job
WITHOUT_IT = "build the image without it: the container toolkit mounts the node's own"
# By which CUDA refuses a libcuda that is newer than the kernel module.
_REFUSED = CUDA_MISMATCHES | {COMPAT_REFUSED, UNKNOWN}


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
        n = len(facts.nvml.own_boards)
        if n != 1:
            return skipped(problem or f"CUDA shows no device, and NVML knows {n} boards")
        (board,) = facts.nvml.own_boards
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


def board_name(board: BoardFacts) -> str:
    """What tells the board from others of its node."""
    return one_line(board.uuid or board.pci or f"board {board.index}")


def counted(boards: int) -> str:
    """`1 board`, `4 boards`."""
    return f"{boards} board{'' if boards == 1 else 's'}"


def numbered(facts: GpuFacts) -> list[str]:
    """Device files of whole devices: /dev/nvidia0 and so on."""
    return [name for name in facts.device_files if name[-1:].isdigit()]


def compat_of(facts: GpuFacts) -> LibraryFile | None:
    """CUDA's forward compatibility, where that is the libcuda of this process."""
    compat = (library for library in libraries_of(facts) if library.kind == "compat")
    return next((library for library in compat if library.name.startswith("libcuda")), None)


def libraries_of(facts: GpuFacts) -> tuple[LibraryFile, ...]:
    """The driver's libraries, `compat` also where their work shows that they are.

    Toolkits before 1.17.4 mount the image's compat files among the node's own, its compiler of PTX
    beside its libcuda.
    """
    libcuda = next((each for each in facts.libraries if each.name.startswith("libcuda")), None)
    if libcuda is None or not newer_works(facts) or not _is_newer(libcuda, facts.driver):
        return facts.libraries
    return tuple(
        replace(each, kind="compat")
        if each.kind == "driver" and each.version == libcuda.version
        else each
        for each in facts.libraries
    )


def newer_works(facts: GpuFacts) -> bool:
    """Whether CUDA runs so that what of it is newer than the kernel module is meant to be.

    Compat files bring no NVML: one that is newer too comes from an update without a reboot.
    """
    nvml_differs = facts.nvml.init_error == NVML_MISMATCH or any(
        each.name.startswith("libnvidia-ml") and each.fits is False for each in facts.libraries
    )
    context_errors = {device.context_error for device in facts.devices}
    return facts.looked and bool(facts.devices) and not (nvml_differs or context_errors & _REFUSED)


def _is_newer(library: LibraryFile, driver: str) -> bool:
    return library.fits is False and _numbers(library.version) > _numbers(driver)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]{1,9}", version)]
