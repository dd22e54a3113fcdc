"""The stages of the model: cache and checkpoint, with the forecast of memory.

Apart from `app.preflight`, which imports this when node and device have passed: a boot that ends
there has no use for it, and it takes half as long to import as those stages take to run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from app.checks import cache, checkpoint, forecast
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts
from app.facts.forecast import ForecastFacts, make_forecast
from app.facts.gpu import GpuFacts
from app.facts.host import HostFacts
from app.forecast_section import forecast_section
from app.limits import NEVER
from app.model_section import model_section
from app.pipeline import Part, Stage
from app.plan import Plan
from app.probes.fetch_request import Means
from app.probes.hub import resolve_model
from app.probes.safetensors import read_checkpoint
from app.sections import Section
from app.settings import BootSettings


class ModelStages:
    """What finds and reads the model. `began` is when preflight did, by the monotonic clock."""

    def __init__(
        self,
        plan: Plan,
        settings: BootSettings,
        environ: Mapping[str, str],
        say: Callable[[str], object],
        began: float,
    ) -> None:
        self.plan = plan
        self._settings, self._environ, self._say, self._began = settings, environ, say, began
        self._cache: CacheFacts | None = None
        self._checkpoint: CheckpointFacts | None = None

    def stages(self, host: HostFacts | None, gpu: GpuFacts | None) -> Iterator[Stage]:
        """Both, in order. The forecast asks what the stages before them have found."""

        def forecasted() -> ForecastFacts:
            if self._checkpoint is None or host is None:
                raise AssertionError("the checkpoint has been read and the host probed before")
            return make_forecast(self.plan, self._checkpoint, gpu, host.memory)

        yield Stage("cache", (Part(self._resolve, cache.CHECKS),))
        yield Stage(
            "checkpoint",
            (
                Part(self._read, checkpoint.CHECKS, self._model),
                Part(forecasted, forecast.CHECKS, _forecast_section),
            ),
        )

    def _resolve(self) -> CacheFacts:
        token = self._settings.hf_token.get_secret_value() if self._settings.hf_token else None
        self._say(f"resolving {self.plan.request.base_model_id} (a first time takes a while)")
        limits = self._settings.limits()
        # The supervisor's own log goes to its standard error, and in JSON no bar may stand in it.
        text = self._settings.log_format == "text"
        left_s = limits.total - (time.monotonic() - self._began)
        means = Means(
            limit_s=min(limits.of("cache"), left_s),
            limit=f"BOOT_TOTAL_TIMEOUT_S={limits.total:g}" if left_s < limits.of("cache") else "",
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


def _forecast_section(facts: ForecastFacts) -> dict[str, Section]:
    section = forecast_section(facts)
    return {} if section is None else {"forecast": section}
