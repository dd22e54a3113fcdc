"""The worker's stages: from the imported stack to a model that has trained."""

from __future__ import annotations

import gc
from typing import Any

from app.checks import adapter, load, numerics, precision, stack
from app.engine import adapter as adapter_engine
from app.engine import census, device, loader
from app.engine import numerics as numerics_engine
from app.engine import stack as stack_engine
from app.facts.adapter import AdapterFacts
from app.facts.census import Census
from app.facts.checkpoint import CheckpointFacts
from app.facts.load import LoadFacts
from app.facts.numerics import NumericsFacts
from app.facts.stack import StackFacts
from app.pipeline import Part, Stage
from app.plan import Plan
from app.probes.safetensors import read_headers
from app.sections import Section


class Work:
    """The session of the worker's stages: holds the model from `load` on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._checkpoint: CheckpointFacts | None = None
        self.model: Any = None
        self.tokenizer: Any = None
        self._loaded: Census | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Stack to numerics, in the order of `app.stages`."""
        # What runs out of device memory says how much it needs and who has it.
        on_device = device.accounted(least_bytes=self.plan.profile.min_memory_bytes)
        return (
            Stage("stack", (Part(stack_engine.gather, stack.CHECKS, self._software),)),
            Stage("load", (Part(self._load, load.CHECKS),)),
            Stage("precision", (Part(on_device(self._census), precision.CHECKS, self._precision),)),
            Stage(
                "adapter",
                (
                    Part(on_device(self._attach), adapter.CHECKS, self._adapter),
                    Part(on_device(self._second_census), precision.CHECKS, self._second_precision),
                ),
            ),
            Stage("numerics", (Part(on_device(self._numerics), numerics.CHECKS, self._numbers),)),
        )

    def _software(self, facts: StackFacts) -> dict[str, Section]:
        return {"software": stack.section(facts)}

    def _load(self) -> LoadFacts:
        if self.plan.resolved is None:
            raise AssertionError("the supervisor says go only with a resolved model")
        self._checkpoint = read_headers(self.plan.resolved.folder)
        loaded = loader.load(self.plan, self._checkpoint)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        return loaded.facts

    def _census(self) -> Census:
        self._loaded = census.take(self.model, self._checkpoint)
        return self._loaded

    def _precision(self, facts: Census) -> dict[str, Section]:
        return {"precision": precision.section(facts, None, self.plan)}

    def _attach(self) -> AdapterFacts:
        self.model = adapter_engine.attach(self.model, self.plan)
        # Let the collector run from here on, past all that lives as long as the process.
        gc.freeze()
        gc.enable()
        return adapter_engine.gather(self.model)

    def _adapter(self, facts: AdapterFacts) -> dict[str, Section]:
        return {"adapter": adapter.section(facts, self.plan)}

    def _second_census(self) -> Census:
        return census.take(self.model, self._checkpoint)

    def _second_precision(self, facts: Census) -> dict[str, Section]:
        if self._loaded is None:
            raise AssertionError("precision comes before adapter")
        return {"precision": precision.section(self._loaded, facts, self.plan)}

    def _numerics(self) -> NumericsFacts:
        return numerics_engine.run(self.model, self.tokenizer, self.plan, self._checkpoint)

    def _numbers(self, facts: NumericsFacts) -> dict[str, Section]:
        return {"numerics": numerics.section(facts)}
