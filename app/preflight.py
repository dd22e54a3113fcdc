"""The torch-free stages: what can be known before a minute of loading.

They run in a child: a file system, a driver or a hub that does not answer must not hold up the
supervisor, and what a tokenizer of 30 MB takes to parse is gone with the child.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from app.checks import cache, checkpoint, gpu, host
from app.events import Ended, PlanKnown
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.facts.gpu import GpuFacts
from app.facts.host import HostFacts
from app.model_section import model_section
from app.pipe_sink import PipeSink, peak_bytes
from app.pipeline import Part, Stage, run_stages
from app.plan import Plan
from app.probes.gpu import probe_gpu
from app.probes.host import probe_host
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint
from app.report import Gpu, Memory
from app.sections import Section
from app.settings import BootSettings
from app.streams import put


class Preflight:
    """The session of these stages: `plan` knows the model once it is resolved."""

    def __init__(
        self, settings: BootSettings, environ: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        self.plan: Plan = settings.plan()
        self._token = settings.hf_token
        self._environ = environ
        self._say = say
        self._cache: CacheFacts | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Host to checkpoint, in the order of `app.stages`."""
        return (
            Stage("host", (Part(self._probe_host, host.CHECKS, self._memory),)),
            Stage("gpu", (Part(self._probe_gpu, gpu.checks_for(self.plan), self._gpus),)),
            Stage("cache", (Part(self._resolve, cache.CHECKS),)),
            Stage("checkpoint", (Part(self._read, checkpoint.CHECKS, self._model),)),
        )

    def _gpus(self, facts: GpuFacts) -> dict[str, list[Gpu]]:
        found = [
            Gpu(
                index=device.index,
                name=device.name,
                uuid=device.uuid or None,
                compute_capability=".".join(str(part) for part in device.capability),
                memory_total_bytes=device.total_bytes,
                memory_free_bytes=device.free_bytes,
                driver=facts.driver or None,
            )
            for device in facts.devices
        ]
        return {"gpus": found}

    def _memory(self, facts: HostFacts) -> dict[str, Section]:
        return {"memory": Memory(host_limit_bytes=facts.memory.limit_bytes)}

    def _probe_host(self) -> HostFacts:
        return probe_host(self.plan, self._environ)

    def _probe_gpu(self) -> GpuFacts:
        return probe_gpu(self.plan, self._environ)

    def _resolve(self) -> CacheFacts:
        token = self._token.get_secret_value() if self._token else None
        self._say(f"resolving {self.plan.request.base_model_id} (a first time takes a while)")
        self._cache = resolve_model(self.plan, self._environ, token=token)
        self.plan = replace(self.plan, resolved=self._cache.resolved)
        return self._cache

    def _read(self) -> CheckpointFacts:
        if self.plan.resolved is None:
            raise AssertionError("the cache stage passes only with a folder")
        return read_checkpoint(Path(self.plan.resolved.folder))

    def _model(self, facts: CheckpointFacts) -> dict[str, Section]:
        if self._cache is None:
            raise AssertionError("the cache stage comes first")
        return {"model": model_section(self.plan, self._cache, facts)}


def run(
    settings: BootSettings, environ: Mapping[str, str], stop_after: str | None, pipe: BinaryIO
) -> None:
    """All of these stages, told on the pipe: the child's work."""
    sink = PipeSink(pipe)
    preflight = Preflight(settings, environ, lambda text: put(sys.stderr, text + "\n"))
    if run_stages(preflight.stages(), preflight, sink, stop_after=stop_after):
        sink.send(PlanKnown(plan=preflight.plan))
    sink.send(Ended(peak_bytes=peak_bytes()))
