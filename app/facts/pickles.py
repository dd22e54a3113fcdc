"""Facts of pickled weights: what a pickle would do, read off its opcodes and never run.

A leaf: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PickledFile:
    """One pickle. `problem` is one line of why it is no plain table of tensors, empty when it is.

    `code` are the functions and classes that it names beyond those that rebuild tensors.
    """

    name: str
    n_bytes: int
    problem: str = ""
    code: tuple[str, ...] = ()
    n_tensors: int = 0


@dataclass(frozen=True, slots=True)
class PickledWeights:
    """The pickles that a loader would open where there are no safetensors.

    `index` maps tensor to file as `pytorch_model.bin.index.json` says, empty without one.
    `errnos`: name -> the system's number for what could not be read.
    """

    files: tuple[PickledFile, ...] = ()
    index: Mapping[str, str] = field(default_factory=dict)
    index_problem: str = ""
    errnos: Mapping[str, int] = field(default_factory=dict)
