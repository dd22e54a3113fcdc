"""Imports the stack in the right order, and says what it consists of."""

from __future__ import annotations

import importlib
import logging
import platform
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from app import blame
from app.engine import places
from app.errors import BootError, causes
from app.facts import disk
from app.facts.packages import OPTIONAL_PACKAGES, REQUIRED_PACKAGES
from app.facts.stack import StackFacts
from app.outcome import Fault, Finding

# Unsloth patches these while it imports them; loaded before, they stay unpatched with a warning.
_AFTER_UNSLOTH = ("transformers", "trl", "peft")

# Unsloth comes up without these, or with them broken: it drops 4-bit, or the vision tower fails at
# the load. `ops` is where torchvision's compiled part is.
_PROVEN = ("timm", "torchvision.ops", "bitsandbytes")
# Its CPU backend is imported while this one is handled, and so becomes the context of all that
# fails there: a way to branch, no cause.
_BRANCH = "_CPUBackendSelected"

# They warn at every healthy start, of what no user can change: torch tells torchao's authors that a
# call is no longer needed, bitsandbytes would download a CPU kernel from the hub.
_TALKATIVE = ("torch.utils._pytree", "bitsandbytes.backends.cpu.ops")


def import_stack(*, tolerate_torch: bool = False) -> None:
    """Import Unsloth, hence torch, transformers, peft and trl, in the one order that works.

    Nothing is asked when Unsloth is there already: then it came first, or somebody else has
    decided. `tolerate_torch` is for callers inside a training process; it touches no CUDA context.

    Raises:
        BootError: something was imported before Unsloth, or the import failed (innermost cause).
    """
    if "unsloth" in sys.modules:
        return
    early = _AFTER_UNSLOTH if tolerate_torch else (*_AFTER_UNSLOTH, "torch")
    found = [name for name in early if name in sys.modules]
    if found:
        raise BootError(
            f"{', '.join(found)} imported before unsloth",
            fault=Fault.INTERNAL,
            expected="unsloth is imported first, so that its patches reach all of them",
            actual=f"already loaded: {', '.join(found)}",
            source="unsloth 2026.10.9, _gpu_init.py",
            next_step="call the engine, or import unsloth, before anything that imports them",
        )
    if not tolerate_torch:  # the process is our own
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)
    _import("unsloth")


def _import(name: str) -> None:
    """Import a module for its effects; whatever that throws ends as a BootError.

    Any class can come out of an import: AttributeError between versions that do not fit,
    SyntaxError from a file that is cut off, SystemExit from a module that was written as a program.
    """
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _broken() -> Iterator[tuple[str, Finding]]:
    """Which of the packages that Unsloth does not insist on cannot be imported, and why."""
    for name in _PROVEN:
        try:
            _import(name)
        except BootError as error:
            yield name, error.finding


def _import_failed(name: str, error: BaseException) -> BootError:
    """The import's failure in our words, with the innermost cause and the fault of its class."""
    chain = [cause for cause in causes(error) if type(cause).__name__ != _BRANCH]
    innermost = chain[-1]
    fault, next_step = _import_fault(name, chain)
    told = blame.short(innermost)
    outer = "" if innermost is error else f" (seen as {blame.short(error)})"
    return BootError(
        f"importing {name} failed: {told}{outer}",
        fault=fault,
        expected=f"import {name}",
        actual=f"{told}{_place(innermost)}",
        source="the import itself",
        next_step=next_step,
    )


def _place(error: BaseException) -> str:
    """Where it was raised, Python's own import machinery left out."""
    raised = traceback.walk_tb(error.__traceback__)
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in raised]
    ours = [place for place in places if not place.startswith("<frozen")]
    return f" ({ours[-1]})" if ours else ""


def _import_fault(name: str, chain: list[BaseException]) -> tuple[Fault, str]:
    for cause in chain:
        # What unsloth_zoo/device_type.py raises when torch sees no accelerator.
        if isinstance(cause, NotImplementedError) and name == "unsloth":
            if _torch_is_cpu_only():
                return Fault.INTERNAL, "the image has a CPU-only torch: rebuild it from its lock"
            return Fault.NODE_UNFIT, "torch sees no GPU: check the node's driver and device request"
        if isinstance(cause, MemoryError):
            return Fault.HARDWARE_MISMATCH, "raise the memory limit of the container"
        fault = disk.fault_of(cause.errno) if isinstance(cause, OSError) else None
        if fault is not None:
            where = getattr(cause, "filename", None) or "what the packages read and write at import"
            return fault, f"see that {where} is readable and writable for this uid, and has room"
    return Fault.INTERNAL, "rebuild the image from its lock; the traceback is in the log"


def _torch_is_cpu_only() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "cuda", None) is None


def gather() -> StackFacts:
    """Read the stack. Needs `import_stack` before; touches no CUDA context but Unsloth's own."""
    import torch
    import unsloth

    broken = dict(_broken())
    found = {name: _version(name) for name in (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES)}
    return StackFacts(
        python=platform.python_version(),
        packages={name: version for name, version in found.items() if version is not None},
        missing=tuple(name for name in REQUIRED_PACKAGES if found[name] is None),
        cuda=torch.version.cuda,
        architectures=architectures(),
        device_type=str(unsloth.DEVICE_TYPE),
        broken=broken,
        origins=tuple(places.origins()),
        code_folders=places.code_folders(),
        **_cudnn(),
        **({} if "bitsandbytes" in broken else _native_library()),
    )


def _cudnn() -> dict[str, Any]:
    """As the library itself says.

    `torch.backends.cudnn.version` also asks the devices, which makes a context, and raises where
    something does not fit: that is for the judge to say.
    """
    import torch

    library = getattr(torch._C, "_cudnn", None)  # absent from CPU wheels
    if library is None:
        return {}
    return {"cudnn": library.getVersionInt(), "cudnn_built": tuple(library.getCompileVersion())}


def _native_library() -> dict[str, Any]:
    """What bitsandbytes has loaded, or stands in for what it could not load."""
    from bitsandbytes import cextension

    library = cextension.lib
    return {
        "bnb_library": type(library).__name__,
        "bnb_compiled_with_cuda": bool(library.compiled_with_cuda),
        "bnb_problem": " ".join(str(vars(library).get("error_msg", "")).split())[:500],
        "bnb_file": str(getattr(vars(library).get("_lib"), "_name", "")),
    }


def architectures() -> tuple[str, ...]:
    """Of torch's wheel. `torch.cuda.get_arch_list` is empty without a device; this is not."""
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # absent from CPU wheels
    listed = flags() if flags is not None else None
    return tuple(listed.split()) if listed else ()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
