"""The torch-free stages: what can be known before a minute of loading.

They run in a child: a file system, a driver or a hub that does not answer must not hold up the
supervisor, and what a tokenizer of 30 MB takes to parse is gone with the child.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from app.checks import cache, checkpoint, forecast, gpu, host
from app.events import Ended, PlanKnown
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.facts.forecast import ForecastFacts, make_forecast
from app.facts.gpu import GpuFacts
from app.facts.host import HostFacts
from app.forecast_section import forecast_section
from app.gpu_section import gpu_sections
from app.image import read_image
from app.limits import NEVER
from app.model_section import model_section
from app.node_section import node_section
from app.pipe_sink import PipeSink, peak_bytes
from app.pipeline import Part, Stage, run_stages
from app.plan import Plan
from app.probes.gpu import probe_gpu
from app.probes.host import probe_host
from app.probes.hub import Means, resolve_model
from app.probes.safetensors import read_checkpoint
from app.report import Memory
from app.sections import Section
from app.sections_gpu import Gpu
from app.settings import BootSettings
from app.streams import put


class Preflight:
    """The session of these stages: `plan` knows the model once it is resolved."""

    def __init__(
        self, settings: BootSettings, environ: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        image = read_image()  # the settings stage has read it, so that it can be
        self.plan: Plan = replace(settings.plan(), baked=image.baked() if image else None)
        self._settings = settings
        self._environ = environ
        self._say = say
        self._host: HostFacts | None = None
        self._gpu: GpuFacts | None = None
        self._cache: CacheFacts | None = None
        self._checkpoint: CheckpointFacts | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Host to checkpoint, in the order of `app.stages`."""
        return (
            Stage("host", (Part(self._probe_host, host.CHECKS, self._node),)),
            Stage("gpu", (Part(self._probe_gpu, gpu.checks_for(self.plan), self._gpus),)),
            Stage("cache", (Part(self._resolve, cache.CHECKS),)),
            Stage(
                "checkpoint",
                (
                    Part(self._read, checkpoint.CHECKS, self._model),
                    Part(self._forecast, forecast.CHECKS, self._forecast_section),
                ),
            ),
        )

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

    def _resolve(self) -> CacheFacts:
        token = self._settings.hf_token.get_secret_value() if self._settings.hf_token else None
        self._say(f"resolving {self.plan.request.base_model_id} (a first time takes a while)")
        limits = self._settings.limits()
        # The supervisor's own log goes to its standard error, and in JSON no bar may stand in it.
        text = self._settings.log_format == "text"
        means = Means(
            limit_s=limits.of("cache"),
            stall_s=self._settings.stall_timeout_s or NEVER,
            say=self._say,
            terminal=f"/proc/{os.getppid()}/fd/2" if text else None,
        )
        self._cache = resolve_model(self.plan, self._environ, token=token, means=means)
        self.plan = replace(self.plan, resolved=self._cache.resolved)
        return self._cache

    def _read(self) -> CheckpointFacts:
        if self.plan.resolved is None:
            raise AssertionError("the cache stage passes only with a folder")
        self._checkpoint = read_checkpoint(Path(self.plan.resolved.folder))
        return self._checkpoint

    def _model(self, facts: CheckpointFacts) -> dict[str, Section]:
        if self._cache is None:
            raise AssertionError("the cache stage comes first")
        return {"model": model_section(self.plan, self._cache, facts)}

    def _forecast(self) -> ForecastFacts:
        if self._checkpoint is None or self._host is None:
            raise AssertionError("the checkpoint has been read and the host probed before")
        return make_forecast(self.plan, self._checkpoint, self._gpu, self._host.memory)

    def _forecast_section(self, facts: ForecastFacts) -> dict[str, Section]:
        section = forecast_section(facts)
        return {} if section is None else {"forecast": section}


def run(
    settings: BootSettings, environ: Mapping[str, str], stop_after: str | None, pipe: BinaryIO
) -> None:
    """All of these stages, told on the pipe: the child's work."""
    sink = PipeSink(pipe)
    preflight = Preflight(settings, environ, lambda text: put(sys.stderr, text + "\n"))
    if run_stages(preflight.stages(), preflight, sink, stop_after=stop_after):
        sink.send(PlanKnown(plan=preflight.plan, late_device=preflight.late_device))
    sink.send(Ended(peak_bytes=peak_bytes()))
