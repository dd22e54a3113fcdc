"""The torch-free stages: what can be known before a minute of loading.

They run in a child: a file system, a driver or a hub that does not answer must not hold up the
supervisor, and what a tokenizer of 30 MB takes to parse is gone with the child.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from app.checks import gpu, host
from app.events import Ended, PlanKnown
from app.facts.gpu import GpuFacts
from app.facts.host import HostFacts
from app.gpu_section import gpu_sections
from app.image import read_image
from app.node_section import node_section
from app.pipe_sink import PipeSink, peak_bytes
from app.pipeline import Part, Stage, run_stages
from app.plan import Plan
from app.probes.gpu import probe_gpu
from app.probes.host import probe_host
from app.report import Memory
from app.sections import Section
from app.sections_gpu import Gpu
from app.settings import BootSettings
from app.streams import put

if TYPE_CHECKING:
    from app.preflight_model import ModelStages


class Preflight:
    """The session of these stages: `plan` knows the model once it is resolved."""

    def __init__(
        self, settings: BootSettings, environ: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        image = read_image()  # the settings stage has read it, so that it can be
        self._plan: Plan = replace(settings.plan(), baked=image.baked() if image else None)
        self._began = time.monotonic()
        self._settings = settings
        self._environ = environ
        self._say = say
        self._host: HostFacts | None = None
        self._gpu: GpuFacts | None = None
        self._model: ModelStages | None = None

    @property
    def plan(self) -> Plan:
        """As known so far."""
        return self._plan if self._model is None else self._model.plan

    def stages(self) -> Iterator[Stage]:
        """Host to checkpoint, in the order of `app.stages`; each is made when it is due."""
        yield Stage("host", (Part(self._probe_host, host.CHECKS, self._node),))
        yield Stage("gpu", (Part(self._probe_gpu, gpu.checks_for(self.plan), self._gpus),))
        from app.preflight_model import ModelStages  # not before it is needed: see there

        self._model = ModelStages(self._plan, self._settings, self._environ, self._say, self._began)
        yield from self._model.stages(self._host, self._gpu)

    @property
    def late_device(self) -> bool:
        """Whether the driver was not ready at first."""
        return self._gpu is not None and self._gpu.waited_s > 0

    def _probe_host(self) -> HostFacts:
        limit_s = self._settings.host_timeout_s
        self._host = probe_host(self.plan, self._environ, limit_s=limit_s)
        return self._host

    def _node(self, facts: HostFacts) -> dict[str, Section]:
        memory = Memory(host_limit_bytes=facts.memory.limit_bytes)
        return {"node": node_section(facts), "memory": memory}

    def _probe_gpu(self) -> GpuFacts:
        self._gpu = probe_gpu(
            self.plan, self._environ, limit_s=self._settings.gpu_timeout_s, say=self._say
        )
        return self._gpu

    def _gpus(self, facts: GpuFacts) -> dict[str, list[Gpu]]:
        return {"gpus": gpu_sections(facts)}


def run(
    settings: BootSettings, environ: Mapping[str, str], stop_after: str | None, pipe: BinaryIO
) -> None:
    """All of these stages, told on the pipe: the child's work."""
    sink = PipeSink(pipe)
    preflight = Preflight(settings, environ, lambda text: put(sys.stderr, text + "\n"))
    if run_stages(preflight.stages(), preflight, sink, stop_after=stop_after):
        sink.send(PlanKnown(plan=preflight.plan, late_device=preflight.late_device))
    sink.send(Ended(peak_bytes=peak_bytes()))
