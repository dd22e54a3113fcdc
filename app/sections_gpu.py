"""The report's account of a CUDA device. Bytes are bytes; None is what could not be read."""

from __future__ import annotations

from app.sections import Section


class Gpu(Section):
    """One visible device."""

    index: int
    name: str
    uuid: str | None = None
    compute_capability: str
    memory_total_bytes: int
    memory_free_bytes: int | None = None
    driver: str | None = None
