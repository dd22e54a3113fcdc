"""The proofs in their order. One more is one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.bake import _libraries, _packages, _programs
from app.bake.scene import Scene
from app.errors import BootError
from app.outcome import Finding


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that an image must hold; `source` says where that is known from."""

    name: str
    source: str
    prove: Callable[[Scene], Finding]

    def finding(self, scene: Scene) -> Finding:
        """What it finds; a step that cannot go on says so in its own words."""
        try:
            return self.prove(scene)
        except BootError as error:
            return error.finding


PROOFS: tuple[Proof, ...] = (
    Proof("lock", "the lock, records of installed packages (*.dist-info)", _packages.lock),
    Proof("driver", "torch/version.py, NVIDIA's CUDA compatibility guide", _packages.driver),
    Proof("architectures", "torch's library, CUDA's rules", _packages.architectures),
    Proof("cudnn", "cudnnGetVersion, NVIDIA's support matrix of cuDNN", _packages.cudnn),
    Proof("bitsandbytes", "bitsandbytes 0.50.2, cextension.py", _packages.bitsandbytes),
    Proof("libraries", "the loader, all symbols bound at once", _libraries.libraries),
    Proof("glibc", "symbol versions in the libraries", _programs.of_host("host.glibc")),
    Proof("compiler", "one compile with Triton's flags", _programs.of_host("host.c_compiler")),
    Proof("python.h", "one compile with Triton's flags", _programs.of_host("host.python_h")),
    Proof("ptxas", "one run of it", _programs.ptxas),
    Proof("entry", "one run of it", _programs.entry),
    Proof("metadata", "records of installed packages", _programs.of_host("host.packages")),
    Proof("imports", "one import of all of it, on the CPU", _programs.imports),
)
