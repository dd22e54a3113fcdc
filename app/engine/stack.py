"""Imports the stack in the right order, and says what it consists of."""

from __future__ import annotations

import errno
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from app.errors import BootError
from app.facts.stack import StackFacts
from app.outcome import Fault

# Unsloth patches these while it imports them; loaded before, they stay unpatched with a warning.
_AFTER_UNSLOTH = ("transformers", "trl", "peft")

# Without one of these a boot of the default model cannot work. timm and torchvision are no
# dependencies of unsloth, but Gemma 3n's vision tower needs both.
REQUIRED_PACKAGES: tuple[str, ...] = (
    *("torch", "torchvision", "triton", "unsloth", "unsloth_zoo", "transformers", "peft"),
    *("bitsandbytes", "trl", "accelerate", "datasets", "timm", "tokenizers", "safetensors"),
    *("huggingface_hub", "numpy"),
)
# Recorded where present: each has broken a boot elsewhere, and none is needed by every profile.
OPTIONAL_PACKAGES: tuple[str, ...] = (
    *("torchao", "xformers", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)


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
    try:
        import unsloth  # noqa: F401 - imported for its effects
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        # NotImplementedError, which it raises without a device, is a RuntimeError. What is none of
        # these bubbles up as it is, and the step guard keeps its causes.
        raise _import_failed(error) from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what caused it, innermost last. Unsloth and transformers mask causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _import_failed(error: BaseException) -> BootError:
    """The import's failure in our words, with the innermost cause and the fault of its class."""
    chain = list(causes(error))
    innermost = chain[-1]
    fault, next_step = _import_fault(chain)
    outer = "" if innermost is error else f" (seen as {type(error).__name__}: {_line(error)})"
    return BootError(
        f"importing unsloth failed: {type(innermost).__name__}: {_line(innermost)}{outer}",
        fault=fault,
        expected="import unsloth",
        actual=_line(innermost),
        source="unsloth 2026.10.9",
        next_step=next_step,
    )


def _import_fault(chain: list[BaseException]) -> tuple[Fault, str]:
    for cause in chain:
        # What unsloth_zoo/device_type.py raises when torch sees no accelerator.
        if isinstance(cause, NotImplementedError):
            if _torch_is_cpu_only():
                return Fault.INTERNAL, "the image has a CPU-only torch: rebuild it from its lock"
            return Fault.NODE_UNFIT, "torch sees no GPU: check the node's driver and device request"
        if isinstance(cause, MemoryError):
            return Fault.HARDWARE_MISMATCH, "raise the memory limit of the container"
        if isinstance(cause, OSError) and cause.errno in (errno.EIO, errno.ESTALE):
            return Fault.READ_ERROR, "check the disk or image layer that holds the packages"
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EROFS, errno.ENOSPC):
            where = f" {cause.filename}" if cause.filename else ""
            return Fault.CONFIG, f"make{where} writable for uid of this process, with space left"
    return Fault.INTERNAL, "rebuild the image from its lock; the traceback is in the log"


def _torch_is_cpu_only() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "cuda", None) is None


def _line(error: BaseException) -> str:
    """The text of an exception on one line, short enough for a report."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def gather() -> StackFacts:
    """Read the stack. Needs `import_stack` before; touches no CUDA context but Unsloth's own."""
    import torch
    import unsloth
    from bitsandbytes import cextension

    library = cextension.lib
    found = {name: _version(name) for name in (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES)}
    return StackFacts(
        python=platform.python_version(),
        packages={name: version for name, version in found.items() if version is not None},
        missing=tuple(name for name in REQUIRED_PACKAGES if found[name] is None),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        architectures=_architectures(),
        device_type=str(unsloth.DEVICE_TYPE),
        bnb_library=type(library).__name__,
        bnb_compiled_with_cuda=bool(library.compiled_with_cuda),
        bnb_problem=_line_of(vars(library).get("error_msg", "")),
    )


def _architectures() -> tuple[str, ...]:
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


def _line_of(text: object) -> str:
    return " ".join(str(text).split())[:500]
