"""The report's `forecast`, from the facts of the same name."""

from __future__ import annotations

from app.facts.forecast import ForecastFacts
from app.sections_forecast import Forecast


def forecast_section(facts: ForecastFacts) -> Forecast | None:
    """None where the checkpoint could not be read."""
    if facts.problem:
        return None
    return Forecast(device_bytes=facts.device_bytes, host_bytes=facts.host_bytes)
