"""The room below float16's largest number: how large activations and their gradients get."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from app.engine.arithmetic import Arithmetic
from app.engine.batch import Batch, shortened
from app.engine.packed import base_model
from app.engine.steps import loss_of
from app.engine.weights import to_host
from app.facts.headroom import HeadroomFacts, Largest
from app.facts.names import dtype_name, origin_name

# The largest activations stand at the first tokens and at marks of the template, not far behind.
_TOKENS = 512
_LEAST_BYTES = 2  # floats of one byte are codes of packed weights, and have no norm


class _Place(NamedTuple):
    """Whose value it is: `label` is the module's class, with ` input` for what went into it."""

    label: str
    name: str
    dtype: torch.dtype


# The largest magnitude yet, on the value's device, in the order of first meeting.
_Peaks = dict[_Place, torch.Tensor]


def measure(model: nn.Module, batch: Batch, how: Arithmetic) -> HeadroomFacts:
    """One forward and one backward pass of a model in training mode; gradients are left behind.

    Hooks see nothing of what is compiled, as the steps have done on a GPU with every layer: here
    all runs uncompiled, which takes more memory, so that a long text is cut.
    """
    started = time.perf_counter()
    watch = _Watch()
    batch = shortened(batch, _TOKENS)
    with watch.watching(base_model(model)), torch.compiler.set_stance("force_eager"):
        loss = loss_of(model, batch, how)
        if loss.requires_grad:  # else no pair is in the graph, which is judged elsewhere
            loss.backward()
    return HeadroomFacts(
        forward=_largest(watch.forward),
        backward=_largest(watch.backward),
        n_modules=len({place.name for place in watch.forward}),
        seconds=time.perf_counter() - started,
    )


class _Watch:
    """Hooks that only look. Loss and gradients stay bit-identical with them.

    A value belongs to the innermost module that puts it out: wrappers that hand it on do not count
    again. Of what goes into a module the rest is taken where it is part of the graph, as masks are
    not: MLPs multiply, and layers add, outside any module. What runs inside a fused or compiled
    function is not seen. Full backward hooks would change the loss, and raise under checkpointing.
    """

    def __init__(self) -> None:
        """Nothing was met yet."""
        self.forward: _Peaks = {}
        self.backward: _Peaks = {}
        self._handles: list[RemovableHandle] = []  # of tensors too: parameters outlive the graph
        # The version in which a tensor was met: one that is changed in place is met again.
        self._met = WeakIdKeyDictionary()

    @contextmanager
    def watching(self, base: nn.Module) -> Iterator[None]:
        """Every module of it, in what runs inside."""
        for path, module in base.named_modules():
            label, name = type(module).__name__, origin_name(path)
            before, after = partial(self._enters, label, name), partial(self._leaves, label, name)
            self._handles += [
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after),
            ]
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def _enters(self, label: str, name: str, _module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # no part of a graph that outlives the hooks
            return
        for value in _tensors((args, kwargs)):
            if value.requires_grad:
                self._meet(f"{label} input", name, value)

    def _leaves(self, label: str, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for value in _tensors(output):
            self._meet(label, name, value)

    def _meet(self, label: str, name: str, value: torch.Tensor) -> None:
        if self._met.get(value) == value._version:
            return
        self._met[value] = value._version
        place = _Place(label, name, value.dtype)
        _add(self.forward, place, value)
        # Reentrant checkpointing runs a layer first without a graph, then again with one.
        if value.requires_grad:
            self._handles.append(value.register_hook(partial(_add, self.backward, place)))


def _add(peaks: _Peaks, place: _Place, value: torch.Tensor) -> None:
    """Nothing is waited for. Of a detached value no norm can be part of a checkpointed graph."""
    size = torch.linalg.vector_norm(value.detach(), math.inf)  # NaN comes through, in maximum too
    before = peaks.get(place)
    peaks[place] = size if before is None else torch.maximum(before, size)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Floating tensors with a shape, and anything in it, however deep they stand.

    A loss has no shape, an expert may get no token; an inference tensor has no version to tell.
    """
    if isinstance(value, torch.Tensor):
        wide = value.is_floating_point() and value.itemsize >= _LEAST_BYTES
        if wide and value.ndim and value.numel() and not value.is_inference():
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _largest(peaks: _Peaks) -> tuple[Largest, ...]:
    """The largest of each class and dtype, in the order of meeting; one wait for the device."""
    worst: dict[tuple[str, torch.dtype], Largest] = {}
    for place, size in zip(peaks, to_host(list(peaks.values())), strict=True):
        found = Largest(place.label, place.name, size, dtype_name(place.dtype))
        key = place.label, place.dtype
        if key not in worst or found.bits < worst[key].bits:
            worst.pop(key, None)  # so that the order is that of what is kept
            worst[key] = found
    return tuple(worst.values())
