"""What loading and training will take of memory, computed from headers and settings alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.facts._forecast_parts import Need
from app.facts._forecast_shape import shape_of
from app.facts._forecast_weights import weights
from app.facts.checkpoint import CheckpointFacts
from app.facts.gpu import GpuFacts
from app.facts.host import MemoryFacts
from app.facts.memory_part import MemoryPart, PhaseT, PlaceT
from app.plan import Plan

__all__ = ["ForecastFacts", "MemoryPart", "PlaceT", "Pool", "make_forecast"]

_PEAKS: tuple[frozenset[PhaseT], ...] = (
    frozenset(("always", "load")),
    frozenset(("always", "training", "loss")),
    frozenset(("always", "training", "backward")),
)
_SHORTEST = 64  # tokens: nobody trains on less


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory that there is, in bytes; None where it was not read, and `problem` says why.

    `total_bytes` is what can ever be had, `swap_bytes` what can be had beyond it, slowly, and
    `free_bytes` what can be had now. `holders` are others that hold some of it, in words.
    """

    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str = ""
    swap_bytes: int = 0
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForecastFacts:
    """The need in parts, and what there is. `problem` says why there is no forecast.

    `tokens` is the length that it is for. `fitting_tokens`: a shorter one whose upper bound fits
    what is free, None where none is needed or none was found. `no_training`: why the parts hold no
    training.
    """

    problem: str = ""
    parts: tuple[MemoryPart, ...] = ()
    device: Pool = Pool("the device")
    host: Pool = Pool("this machine")
    device_is_host: bool = False
    tokens: int = 0
    fitting_tokens: int | None = None
    no_training: str = ""

    def sure(self, place: PlaceT) -> int:
        """Taken there before any training, at the least, and not to be had back."""
        mapped = sum(each.mapped_bytes for each in self.parts if each.place == place)
        return self._sum(place, _PEAKS[0])[0] - mapped

    def low(self, place: PlaceT) -> int:
        """Taken there at the least, at whichever moment takes most."""
        return max(self._sum(place, peak)[0] for peak in _PEAKS)

    def high(self, place: PlaceT) -> int:
        """Taken there at the most."""
        return max(self._sum(place, peak)[1] for peak in _PEAKS)

    def _sum(self, place: PlaceT, peak: frozenset[PhaseT]) -> tuple[int, int]:
        held = [each for each in self.parts if each.place == place and each.phase in peak]
        return sum(each.low_bytes for each in held), sum(each.high_bytes for each in held)


def make_forecast(
    plan: Plan, checkpoint: CheckpointFacts, gpu: GpuFacts | None, memory: MemoryFacts
) -> ForecastFacts:
    """The need against what there is."""
    problem = _unreadable(checkpoint)
    if problem:
        return ForecastFacts(problem=problem)
    shape = shape_of(checkpoint)
    held = weights(checkpoint, shape, plan)
    on_host = not plan.profile.needs_gpu
    host = _host_pool(memory)
    device = host if on_host else _device_pool(gpu)
    need = Need(held, shape, plan, device.free_bytes)
    tokens = plan.request.max_seq_length
    parts, problem = need.parts(tokens)
    found = ForecastFacts(
        parts=parts,
        device=device,
        host=host,
        device_is_host=on_host,
        tokens=tokens,
        no_training=problem,
    )
    if problem or device.free_bytes is None or found.high("device") <= device.free_bytes:
        return found
    return replace(found, fitting_tokens=_fitting(need, tokens, device.free_bytes))


def _unreadable(checkpoint: CheckpointFacts) -> str:
    """Why nothing can be said of these files."""
    if checkpoint.config_problem:
        return "config.json could not be read"
    if checkpoint.index_problem or any(shard.problem for shard in checkpoint.shards):
        return "a weight file or its index could not be read"
    return "" if checkpoint.tensors else "there are no safetensors headers to compute it from"


def _fitting(need: Need, tokens: int, free: int) -> int | None:
    """Half the length, a quarter, ...: the first whose upper bound fits."""
    while tokens >= 2 * _SHORTEST:
        tokens //= 2
        parts, _ = need.parts(tokens)
        if ForecastFacts(parts=parts).high("device") <= free:
            return tokens
    return None


def _host_pool(memory: MemoryFacts) -> Pool:
    known = [n for n in (memory.total_bytes, memory.limit_bytes) if n is not None]
    limited = memory.limit_bytes is not None and memory.limit_bytes == min(known)
    name = f"the limit of {memory.limited_by}" if limited and memory.limited_by else "this machine"
    problem = "" if known else "neither /proc/meminfo nor a control group says how much there is"
    swap = memory.swap_bytes or 0
    return Pool(name, min(known, default=None), memory.available_bytes, problem, swap)


def _device_pool(gpu: GpuFacts | None) -> Pool:
    if gpu is None or len(gpu.devices) != 1:
        return Pool("the device", problem="no single device was found to compare with")
    device = gpu.devices[0]
    problem = "" if device.free_bytes is not None else "the driver did not tell how much is free"
    users = gpu.users_of(device)
    holders = tuple(f"process {u.pid}" + (f" ({u.name})" if u.name else "") for u in users)
    return Pool(device.name, device.total_bytes, device.free_bytes, problem, holders=holders)
