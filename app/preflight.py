"""The torch-free stages: what can be known before a minute of loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from app.checks import cache, checkpoint, gpu, host
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.facts.gpu import GpuFacts
from app.facts.host import HostFacts
from app.model_section import model_section
from app.pipeline import Part, Stage
from app.plan import Plan
from app.probes.gpu import probe_gpu
from app.probes.host import probe_host
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint
from app.report import Gpu, Memory
from app.sections import Section
from app.settings import BootSettings


class Preflight:
    """The session of the supervisor's stages: `plan` knows the model once it is resolved."""

    def __init__(
        self, settings: BootSettings, environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self.plan: Plan = settings.plan()
        self._token = settings.hf_token
        self._environ = environ
        self._say = say
        self._host: HostFacts | None = None
        self._gpu: GpuFacts | None = None
        self._cache: CacheFacts | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Host to checkpoint, in the order of `app.stages`."""
        return (
            Stage("host", (Part(self._probe_host, host.CHECKS),)),
            Stage("gpu", (Part(self._probe_gpu, gpu.checks_for(self.plan)),)),
            Stage("cache", (Part(self._resolve, cache.CHECKS),)),
            Stage("checkpoint", (Part(self._read, checkpoint.CHECKS, self._model),)),
        )

    def gpus(self) -> list[Gpu]:
        """The visible devices, for the report."""
        facts = self._gpu or GpuFacts()
        return [
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

    def memory(self) -> Memory | None:
        """The memory that the host leaves us, None before it was read."""
        if self._host is None:
            return None
        return Memory(host_limit_bytes=self._host.memory.limit_bytes)

    def _probe_host(self) -> HostFacts:
        self._host = probe_host(self.plan, self._environ)
        return self._host

    def _probe_gpu(self) -> GpuFacts:
        self._gpu = probe_gpu(self.plan, self._environ)
        return self._gpu

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
