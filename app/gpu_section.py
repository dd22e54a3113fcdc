"""The report's `gpus`, from what the gpu stage found."""

from __future__ import annotations

from app.facts.gpu import GpuFacts
from app.sections_gpu import Gpu


def gpu_sections(facts: GpuFacts) -> list[Gpu]:
    """One part for each visible device."""
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
