"""What a kernel's exception amounts to: by class and number, and by words where it has neither."""

from __future__ import annotations

import errno

from app import blame
from app.engine import device
from app.errors import BootError, causes
from app.outcome import Fault, Finding, Status
from app.profiles import Profile

_TRITON = "Triton Error [CUDA]"
# Triton's launcher gives cuGetErrorString's text and no number; those that are not the node's.
_NUMBERS = {
    "out of memory": 2,
    "device kernel image is invalid": 200,
    "no kernel image is available": 209,
}
_NO_KERNEL = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
# What Triton raises as a bare RuntimeError where a program is missing (3.6 and 3.8).
_MISSING = ("Failed to find C compiler", "Cannot find ptxas")
# Of bitsandbytes' native library where it has no such function, or stands in for one.
_STAND_IN = ("native library functionality", "CPU-only version of bitsandbytes")
# By name, as Triton is not imported here: a file or program that is not there, a compiler that
# ends with an error, code that does not fit the other library's release. All nodes do the same.
_BROKEN = frozenset(
    (
        *("OSError", "CalledProcessError", "TritonError", "ImportError"),
        *("AttributeError", "TypeError", "NameError", "NotImplementedError", "SyntaxError"),
    )
)


def failure(library: str, error: Exception, profile: Profile) -> BootError:
    """The exception in our words; what nothing speaks against is taken for the device's fault."""
    known = device.out_of_memory(error, least_bytes=profile.min_memory_bytes)
    if known is not None:
        return known
    found = blame.blamed(error)
    return BootError.of(found or _by_words(library, error) or _numerics(library, error))


def _by_words(library: str, error: Exception) -> Finding | None:
    for cause in causes(error):
        told, text = blame.short(cause), str(cause)
        number = next((number for words, number in _NUMBERS.items() if words in text), None)
        if _TRITON in text or number == _NO_KERNEL:
            return blame.accelerator(number, told)
        if isinstance(cause, OSError) and cause.errno not in (None, errno.ENOENT):
            return _no_cache(cause, told)
        classes = {each.__name__ for each in type(cause).__mro__}
        if classes & _BROKEN or any(words in text for words in (*_MISSING, *_STAND_IN)):
            return Finding(
                Status.FAIL,
                f"{library} cannot run a kernel: {told}",
                expected=f"{library}, its compiler and its native library as the lock has them",
                actual=told,
                next_step="use this profile's image, or rebuild it from its lock; where a compiler "
                "is missing, unset CC and TRITON_PTXAS_PATH",
                fault=Fault.INTERNAL,
                source="the exception",
            )
    return None


def _no_cache(error: OSError, told: str) -> Finding:
    """A file where a folder must be, a path too long: what only the compiler's cache can do."""
    return Finding(
        Status.FAIL,
        f"a folder of the compiler cannot be used: {told}",
        expected="a compiler cache that can be written",
        actual=told,
        next_step="set TRITON_CACHE_DIR to a folder that this uid may write to",
        fault=Fault.CONFIG,
        source=f"errno {error.errno} of the exception",
    )


def _numerics(library: str, error: Exception) -> Finding:
    told = blame.short(error)
    return Finding(
        Status.FAIL,
        f"a kernel of {library} failed: {told}",
        expected="a small kernel that ends",
        actual=told,
        next_step="run the boot on another node; if it passes there, take this one out of service",
        fault=Fault.NUMERICS,
        source="the exception",
    )
