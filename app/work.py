"""The worker's stages: from the imported stack to a model that has trained."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

from app.checks import (
    Check,
    adapter,
    cast,
    fingerprint,
    golden,
    kernels,
    load,
    numerics,
    precision,
    speed,
    stack,
)
from app.engine import adapter as adapter_engine
from app.engine import cast as cast_engine
from app.engine import census, device, loader
from app.engine import fingerprint as fingerprint_engine
from app.engine import golden as golden_engine
from app.engine import kernels as kernels_engine
from app.engine import numerics as numerics_engine
from app.engine import speed as speed_engine
from app.engine import stack as stack_engine
from app.facts.adapter import AdapterFacts
from app.facts.census import Census
from app.facts.checkpoint import CheckpointFacts
from app.facts.kernels import KernelFacts
from app.facts.load import LoadFacts
from app.facts.numerics import NumericsFacts
from app.facts.stack import StackFacts
from app.pipeline import Part, Stage
from app.plan import Plan
from app.probes.safetensors import read_headers
from app.sections import Precision, Section, Software
from app.sections_numerics import Numerics

FactsT = TypeVar("FactsT")


class Work:
    """The session of the worker's stages: holds the model from `load` on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._checkpoint: CheckpointFacts | None = None
        self.model: Any = None
        self.tokenizer: Any = None
        self._looks: list[Census] = []  # after load, after the adapter, after the steps
        self._software: Software | None = None
        self._numbers = Numerics()

    def stages(self) -> tuple[Stage, ...]:
        """Stack to numerics, in the order of `app.stages`."""
        # What runs out of device memory says how much it needs and who has it.
        on_device = device.accounted(least_bytes=self.plan.profile.min_memory_bytes)
        look = Part(on_device(self._census), precision.CHECKS, self._precision)
        return (
            Stage(
                "stack",
                (
                    Part(stack_engine.gather, stack.CHECKS, self._stack),
                    Part(on_device(self._kernels), kernels.CHECKS, self._kernels_told),
                ),
            ),
            Stage("load", (Part(self._load, load.CHECKS),)),
            Stage("precision", (look,)),
            Stage("adapter", (Part(on_device(self._attach), adapter.CHECKS, self._adapter), look)),
            Stage("numerics", (*self._numerics(on_device), look), tells="numerics.loss_falls"),
        )

    def _numerics(self, on_device: Callable[[Any], Any]) -> tuple[Part, ...]:
        """What costs least and explains most comes first; the speed last, on a warm device."""

        def part(
            field: str,
            gather: Callable[[], FactsT],
            checks: tuple[Check[FactsT], ...],
            section: Callable[[FactsT], Section],
        ) -> Part:
            return Part(
                on_device(gather), checks, lambda facts: self._told({field: section(facts)})
            )

        def files(measure: Callable[..., FactsT]) -> Callable[[], FactsT]:
            return lambda: measure(self.model, self._checkpoint, self.plan)

        return (
            part("cast", files(cast_engine.measure), cast.CHECKS, cast.section),
            part("nf4", files(golden_engine.prove), golden.CHECKS, golden.section),
            Part(
                on_device(self._steps),
                numerics.CHECKS,
                lambda facts: self._told(numerics.section(facts)),
            ),
            part(
                "fingerprint",
                lambda: fingerprint_engine.take(self.model, self.plan),
                fingerprint.CHECKS,
                fingerprint.section,
            ),
            part("speed", lambda: speed_engine.measure(self.plan), speed.CHECKS, speed.section),
        )

    def _told(self, found: dict[str, Section]) -> dict[str, Section]:
        """The report's `numerics` with one more part of it known."""
        self._numbers = self._numbers.model_copy(update=found)
        return {"numerics": self._numbers}

    def _stack(self, facts: StackFacts) -> dict[str, Section]:
        self._software = stack.section(facts)
        return {"software": self._software}

    def _kernels(self) -> KernelFacts:
        return kernels_engine.run(self.plan)

    def _kernels_told(self, facts: KernelFacts) -> dict[str, Section]:
        if self._software is None:
            raise AssertionError("the stack is known before its kernels run")
        update = {"device": facts.device, "kernels": kernels.section(facts)}
        return {"software": self._software.model_copy(update=update)}

    def _load(self) -> LoadFacts:
        if self.plan.resolved is None:
            raise AssertionError("the supervisor says go only with a resolved model")
        self._checkpoint = read_headers(self.plan.resolved.folder)
        loaded = loader.load(self.plan, self._checkpoint)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        return loaded.facts

    def _census(self) -> Census:
        self._looks.append(census.take(self.model, self._checkpoint))
        return self._looks[-1]

    def _precision(self, facts: Census) -> dict[str, Section]:
        del facts  # the last of the looks
        found: Precision = precision.section(self._looks, self.plan)
        return {"precision": found}

    def _attach(self) -> AdapterFacts:
        self.model = adapter_engine.attach(self.model, self.plan)
        # Let the collector run from here on, past all that lives as long as the process.
        gc.freeze()
        gc.enable()
        return adapter_engine.gather(self.model)

    def _adapter(self, facts: AdapterFacts) -> dict[str, Section]:
        return {"adapter": adapter.section(facts, self.plan)}

    def _steps(self) -> NumericsFacts:
        return numerics_engine.run(self.model, self.tokenizer, self.plan, self._checkpoint)
