"""The report's forecast of memory, in bytes, made before anything is loaded."""

from __future__ import annotations

from app.sections import Section


class Forecast(Section):
    """What loading and training are expected to take, in parts."""

    device_bytes: int  # of the device at its peak, all parts together
    host_bytes: int  # of the host's memory while the weights are loaded
