"""The report's `forecast`, from the facts of the same name."""

from __future__ import annotations

from app.facts.forecast import ForecastFacts, PlaceT, Pool
from app.sections_forecast import Forecast, ForecastPart, ForecastPool


def forecast_section(facts: ForecastFacts) -> Forecast | None:
    """None where the checkpoint could not be read."""
    if facts.problem:
        return None
    return Forecast(
        device=_pool(facts, facts.device, "device"),
        host=_pool(facts, facts.host, "host"),
        device_is_host=facts.device_is_host,
        n_tokens=facts.tokens,
        fitting_tokens=facts.fitting_tokens,
        no_training=facts.no_training,
        parts=[
            ForecastPart(
                name=part.name,
                place=part.place,
                phase=part.phase,
                low_bytes=part.low_bytes,
                high_bytes=part.high_bytes,
                basis=part.basis,
            )
            for part in facts.parts
            if part.high_bytes
        ],
    )


def _pool(facts: ForecastFacts, pool: Pool, place: PlaceT) -> ForecastPool:
    return ForecastPool(
        name=pool.name,
        total_bytes=pool.total_bytes,
        free_bytes=pool.free_bytes,
        low_bytes=facts.low(place),
        high_bytes=facts.high(place),
    )
