"""What the processes that ask the driver have told, as values; anything may have come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from app.facts.gpu import DeviceFacts
from app.facts.words import one_line

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class CudaAnswer:
    """What `app.probes.cuda_child` told; the fields of `app.facts.gpu.GpuFacts`, and of memory."""

    libcuda: str = ""
    load_error: str = ""
    cuda_version: int | None = None
    call: str = ""
    init_error: int | None = None
    n_devices: int | None = None
    devices: tuple[DeviceFacts, ...] = ()
    unopenable: Mapping[str, int] = field(default_factory=dict)
    free_bytes: int | None = None
    context_error: int = 0
    problem: str = ""
    start_errno: int = 0


def told_by(output: bytes, problem: str, kind: type[AnswerT], one: str, many: str) -> AnswerT:
    """The lines of a child as one value; lines of `one` are gathered as `many`.

    `problem` is why there may be no more of them. Anything may have come: what is none of ours is
    a problem too, and then nothing else is believed.
    """
    told: dict[str, Any] = {many: []}
    try:
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):  # else it was cut
                _add(told, json.loads(line, parse_constant=_no_number), one, many)
        done = bool(told.pop("done", False))
        if not done and not told.get("problem"):
            told["problem"] = _where(problem or "the probing process ended early", told.get("call"))
        text = json.dumps(told, allow_nan=False)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except (ValueError, RecursionError, ValidationError):
        pass
    text = json.dumps({"problem": problem or "the probing process told what makes no sense"})
    return TypeAdapter(kind).validate_json(text)


def _add(told: dict[str, Any], line: object, one: str, many: str) -> None:
    if not isinstance(line, dict):
        raise ValueError("no object")  # noqa: TRY004 - as of JSON that is none
    if one in line:
        told[many].append(line.pop(one))
    if many in line:
        raise ValueError(f"all {many} at once")
    told |= line


def _no_number(name: str) -> float:
    raise ValueError(name)


def _where(problem: str, call: object) -> str:
    return f"{problem} (in {one_line(call)})" if isinstance(call, str) and call else problem
