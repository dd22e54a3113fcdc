"""What exceptions amount to by class and number, and that the step guard says so.

CUDA cannot be had on the machines that run this. The doubles below stand in for torch 2.14's
exception classes by module, name and attributes; where a test needs the real ones it says `stack`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from app.blame import accelerator, blamed, of_line, of_number, out_of_device_memory
from app.errors import BootError, number_told, system_error
from app.facts.process import DeviceMemory
from app.outcome import Fault, Finding, Status
from app.pipeline import Part, Stage, run_stage, unexpected
from app.profiles import GIB
from tests.test_pipeline import Session, Told


class OutOfMemoryError(RuntimeError):
    """Stands in for torch.OutOfMemoryError: raised by the caching allocator, no attributes."""


class AcceleratorError(RuntimeError):
    """Stands in for torch.AcceleratorError: a failed CUDA call, its number in `error_code`."""

    error_code: int


OutOfMemoryError.__module__ = AcceleratorError.__module__ = "torch"


def cuda(code: int | None) -> AcceleratorError:
    error = AcceleratorError("CUDA error: some words\nCUDA kernel errors might be reported later")
    if code is not None:
        error.error_code = code
    return error


def raised(error: Exception, *behind: Exception) -> Exception:
    """As libraries mask things: an exception from the ones behind it, innermost last."""
    outer = error
    for cause in behind:
        outer.__cause__ = cause
        outer = cause
    return error


def fault_of(error: BaseException) -> Fault | None:
    found = blamed(error)
    return found.fault if found else None


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MemoryError(), Fault.HARDWARE_MISMATCH),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Fault.HARDWARE_MISMATCH),
        (OSError(errno.EIO, "Input/output error"), Fault.READ_ERROR),
        (OSError(errno.ENOSPC, "No space left on device"), Fault.READ_ERROR),
        (OSError(errno.ESTALE, "Stale file handle"), Fault.READ_ERROR),
        (PermissionError(errno.EACCES, "Permission denied"), Fault.CONFIG),
        (OSError(errno.EROFS, "Read-only file system"), Fault.CONFIG),
        (FileNotFoundError(errno.ENOENT, "No such file"), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), None),
        (OSError("no number at all"), None),
        (KeyError("x"), None),
        (AssertionError(), None),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), Fault.HARDWARE_MISMATCH),
        (cuda(700), Fault.NODE_UNFIT),
        (cuda(None), Fault.NODE_UNFIT),
        (RuntimeError("CUDA error: out of memory"), None),  # words alone decide nothing
    ],
    ids=repr,
)
def test_class_and_number_decide_however_deep_they_lie(
    error: Exception, fault: Fault | None
) -> None:
    assert fault_of(error) is fault
    assert fault_of(raised(RuntimeError("masked"), ValueError("again"), error)) is fault


def test_a_known_finding_behind_another_exception_is_kept() -> None:
    ours = BootError("known", fault=Fault.DATA_INVALID)
    assert blamed(raised(RuntimeError("masked"), ours)) is ours.finding


def test_a_class_of_that_name_from_elsewhere_is_not_torchs() -> None:
    other = type("OutOfMemoryError", (RuntimeError,), {"__module__": "somebody.elses"})
    assert blamed(other("x")) is None
    derived = type("Mine", (OutOfMemoryError,), {"__module__": "somebody.elses"})
    assert fault_of(derived("x")) is Fault.HARDWARE_MISMATCH


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # What Rust's safetensors raises on a folder of tmpfs: an OSError without errno.
        ("No such device (os error 19)", errno.ENODEV),
        ("Error while serializing: I/O error: No space left on device (os error 28)", 28),
        # What torch 2.14's CPU allocator and its shared memory raise: bare RuntimeErrors.
        ("you tried to allocate 4 bytes. Error code 12 (Cannot allocate memory)", errno.ENOMEM),
        ("unable to resize file </torch_1> to the right size: File too large (27)", errno.EFBIG),
        ("[Errno 5] Input/output error: 'x'", errno.EIO),
        ("[Errno 5] Input/output error, then [Errno 28] No space left on device", errno.ENOSPC),
        ("expected 4 tensors, found more (5)", None),
        ("[Errno 5] of something else", None),
        ("(os error 99999)", None),
        ("", None),
    ],
)
def test_a_number_in_words_counts_only_with_the_systems_own(text: str, number: int | None) -> None:
    assert number_told(text) == number
    assert system_error(RuntimeError(text)) == number


def test_an_errno_of_its_own_comes_first() -> None:
    assert system_error(OSError(errno.EIO, "[Errno 28] No space left on device")) == errno.EIO


@pytest.mark.parametrize(
    ("memory", "fault", "least"),
    [
        # others hold 48 GiB
        (DeviceMemory(2 * GIB, 80 * GIB, 30 * GIB, 29 * GIB), Fault.TEMPORARY, 0),
        # all of it is ours, but for our own context
        (DeviceMemory(2 * GIB, 80 * GIB, 77 * GIB, 76 * GIB), Fault.HARDWARE_MISMATCH, 0),
        # others hold some, and the card is too small anyway
        (DeviceMemory(1 * GIB, 8 * GIB, 2 * GIB, 2 * GIB), Fault.HARDWARE_MISMATCH, 15 * GIB),
    ],
)
def test_out_of_device_memory_passes_only_where_others_hold_it(
    memory: DeviceMemory, fault: Fault, least: int
) -> None:
    found = out_of_device_memory(memory, "torch's words", least_bytes=least)
    assert found.fault is fault
    for figure in (memory.free_bytes, memory.total_bytes, memory.own_bytes, memory.others_bytes):
        assert f"{figure / GIB:.1f} GiB" in found.reason
    assert found.actual == "torch's words"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (2, Fault.HARDWARE_MISMATCH),  # a context that finds no room
        (46, Fault.TEMPORARY),  # another process holds the device exclusively
        (209, Fault.HARDWARE_MISMATCH),  # no kernels for this device in the image
        (214, Fault.NODE_UNFIT),  # ECC
        (710, Fault.INTERNAL),  # a device-side assertion: the same on every node
        (1, Fault.INTERNAL),
        (719, Fault.NODE_UNFIT),  # launch failure
        (802, Fault.NODE_UNFIT),
        (12345, Fault.NODE_UNFIT),
    ],
)
def test_a_failed_call_of_cuda_is_the_nodes_unless_no_node_would_take_it(
    code: int, fault: Fault
) -> None:
    found = accelerator(code, "words")
    assert found.fault is fault
    assert found.next_step
    assert code == 2 or f"error {code}" in found.reason


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("MemoryError", Fault.HARDWARE_MISMATCH),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate", Fault.HARDWARE_MISMATCH),
        ("torch.OutOfMemoryError: CUDA out of memory.", Fault.HARDWARE_MISMATCH),
        ("OSError: [Errno 28] No space left on device: 'x'", Fault.READ_ERROR),
        ("ValueError: MemoryError", None),
        ("", None),
    ],
)
def test_a_printed_exception_is_judged_by_the_same(line: str, fault: Fault | None) -> None:
    found = of_line(line)
    assert (found.fault if found else None) is fault


def test_the_file_that_failed_is_named() -> None:
    found = of_number(errno.EROFS, "told", "/cache/a\nb")
    assert found is not None
    assert found.reason == "Read-only file system (EROFS) at /cache/a\\u000ab"


def guard(step: Callable[[], str]) -> Finding:
    """What the step guard makes of it."""
    told = Told()
    run_stage(Stage("s", (Part(step, ()),)), Session(), told)
    (record,) = told.checks
    return Finding(record.status, record.reason, record.expected, record.actual, record.next_step,
                   record.fault, record.source)  # fmt: skip


def test_the_guard_says_class_cause_and_place() -> None:
    def full() -> str:
        cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/blob")
        raise RuntimeError("the library's own words") from cause

    found = guard(full)
    assert (found.status, found.fault) == (Status.FAIL, Fault.READ_ERROR)
    assert found.reason == "No space left on device (ENOSPC) at /cache/blob"
    assert "RuntimeError: the library's own words" in found.actual
    assert "<- OSError" in found.actual
    assert "test_blame.py" in found.actual
    assert all((found.expected, found.source, found.next_step))


def test_what_nobody_foresaw_stays_ours() -> None:
    assert unexpected(KeyError("x")).fault is Fault.INTERNAL


def test_a_library_that_leaves_the_process_is_an_error_like_others() -> None:
    def step() -> str:
        raise SystemExit(0)

    assert guard(step).fault is Fault.INTERNAL


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, GeneratorExit])
def test_the_guard_lets_pass_what_is_no_error(leaving: type[BaseException]) -> None:
    def step() -> str:
        raise leaving

    with pytest.raises(leaving):
        guard(step)


@pytest.mark.stack
def test_torchs_real_classes_are_known_by_their_names() -> None:
    """Made here and not by a device; that CUDA sets `error_code` is torch's Exceptions.h."""
    import torch

    assert fault_of(torch.OutOfMemoryError("CUDA out of memory")) is Fault.HARDWARE_MISMATCH
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert fault_of(error) is Fault.NODE_UNFIT
    vars(error)["error_code"] = 710
    assert fault_of(error) is Fault.INTERNAL


@pytest.mark.stack
def test_torchs_real_allocator_out_of_host_memory_is_known_by_its_number() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert not isinstance(caught.value, MemoryError)
    assert fault_of(caught.value) is Fault.HARDWARE_MISMATCH


@pytest.mark.stack
def test_need_and_free_are_read_where_the_device_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures stand in for a card's; the exception is torch's, and masked as libraries do."""
    import torch

    from app.engine import device

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 30 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 29 * GIB)
    masked = raised(RuntimeError("step failed"), torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(BootError) as caught, device.accounted():
        raise masked
    assert caught.value.finding.fault is Fault.TEMPORARY
    assert "more than 29.0 GiB are needed and 2.0 GiB of 80.0 GiB" in caught.value.finding.reason
    assert caught.value.__cause__ is masked


@pytest.mark.stack
def test_a_device_that_does_not_answer_leaves_the_figures_out() -> None:
    """A machine without one stands in for it."""
    import torch

    from app.engine import device

    assert device.memory() is None
    with pytest.raises(BootError, match="could not be read"), device.accounted():
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(KeyError), device.accounted():
        raise KeyError("x")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         Fault.HARDWARE_MISMATCH),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
         Fault.NODE_UNFIT),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`",
         Fault.NODE_UNFIT),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Fault.NODE_UNFIT),
        ("cuDNN error: CUDNN_STATUS_ARCH_MISMATCH", Fault.HARDWARE_MISMATCH),
        ("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx(...)`", None),
        ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", None),
    ],
)  # fmt: skip
def test_a_library_on_the_device_is_known_by_its_status(text: str, fault: Fault | None) -> None:
    """torch raises these as bare RuntimeErrors, whatever the card has."""
    found, line = blamed(RuntimeError(text)), of_line(f"RuntimeError: {text}")
    assert (found and found.fault) == (line and line.fault) == fault
    assert blamed(ValueError(text)) is None
