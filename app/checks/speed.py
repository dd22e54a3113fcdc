"""The judge of the speed of the arithmetic: emulated precision and throttled cards show in it."""

from __future__ import annotations

from app import sections_numerics as sections
from app.checks import Check
from app.facts.speed import SpeedFacts
from app.outcome import Fault, Finding, Severity, passed, skipped, warned
from app.plan import Plan
from app.profiles import Floors


def speed(facts: SpeedFacts, plan: Plan) -> Finding:
    """Product and copy against the profile's floors, the product against float32's.

    Only a warning even where the hardware is known: a slow card computes right, and 80 would have
    it taken out of service.
    """
    floors = plan.profile.floors
    if floors is None:
        return skipped(f"no speed is promised of this hardware: {_figures(facts)}")
    if facts.slice:
        return skipped(f"no speed is promised of a slice of a card: {_figures(facts)}")
    slow = _below(facts, floors)
    if not slow:
        return passed(f"as fast as such a card must be: {_figures(facts)}", expected=_least(floors))
    return warned(
        f"{facts.device} is slower than a healthy one, {'; '.join(slow)}: {_likely(facts, floors)}",
        expected=_least(floors),
        actual=_figures(facts),
        next_step="look at clocks, power limit and temperature (nvidia-smi -q -d CLOCK,POWER,"
        "TEMPERATURE,PERFORMANCE), at other processes on the card, and at the stack's dtype",
    )


def _below(facts: SpeedFacts, floors: Floors) -> list[str]:
    """What is below its floor, in words."""
    found = []
    if facts.matmul_flops < floors.matmul_flops:
        found.append(
            f"{facts.dtype} products {_flops(facts.matmul_flops)} of at least "
            f"{_flops(floors.matmul_flops)}"
        )
    if facts.copy_bytes < floors.copy_bytes:
        found.append(f"copies {_bytes(facts.copy_bytes)} of at least {_bytes(floors.copy_bytes)}")
    if _speedup(facts) < floors.speedup:
        found.append(
            f"{facts.dtype} {_speedup(facts):.1f} times as fast as float32, of at least "
            f"{floors.speedup:g}"
        )
    return found


def _likely(facts: SpeedFacts, floors: Floors) -> str:
    """Throttling slows float32 down as well; an emulation only what it emulates."""
    if _speedup(facts) < floors.speedup:
        return f"{facts.dtype} seems to be emulated there, or to run without tensor cores"
    return "a card that is throttled, limited in power, or shared with another process"


def _speedup(facts: SpeedFacts) -> float:
    return facts.matmul_flops / facts.float32_flops


def _least(floors: Floors) -> str:
    return (
        f"products {_flops(floors.matmul_flops)}, copies {_bytes(floors.copy_bytes)}, "
        f"{floors.speedup:g} times float32"
    )


def _figures(facts: SpeedFacts) -> str:
    return (
        f"{facts.dtype} products {_flops(facts.matmul_flops)} "
        f"({_speedup(facts):.1f} times float32), copies {_bytes(facts.copy_bytes)}"
    )


def _flops(value: float) -> str:
    return f"{value / 1e12:.1f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.1f} GFLOP/s"  # noqa: PLR2004


def _bytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


def section(facts: SpeedFacts) -> sections.Speed:
    """The measurement, as the report shows it."""
    return sections.Speed(
        device=facts.device,
        dtype=facts.dtype,
        side=facts.side,
        matmul_flops=facts.matmul_flops,
        float32_flops=facts.float32_flops,
        copy_bytes=facts.copy_bytes,
        seconds=facts.seconds,
    )


CHECKS: tuple[Check[SpeedFacts], ...] = (
    Check(
        "numerics.speed",
        Fault.NUMERICS,
        "a third of the data sheet's figures (app/profiles.py)",
        speed,
        Severity.WARNING,
        cause="a card that is throttled, limited in power or shared, or a dtype that it only "
        "emulates",
        fix="look at clocks, power limit, temperature and other processes on the card",
    ),
)
