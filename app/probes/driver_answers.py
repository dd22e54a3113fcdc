"""What the processes that ask the driver have told, as values; anything may have come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from app.facts.board import NvmlFacts
from app.facts.gpu import DeviceFacts
from app.facts.words import one_line

# What is told in a line for each, and the field that gathers it.
_GATHERED = {"device": "devices", "board": "boards"}


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


AnswerT = TypeVar("AnswerT", CudaAnswer, NvmlFacts)


def told_by(output: bytes, problem: str, kind: type[AnswerT]) -> AnswerT:
    """The lines of a child as one value.

    `problem` is why there may be no more of them. Anything may have come: what is none of ours is
    a problem too, and then nothing else is believed.
    """
    told: dict[str, Any] = {}
    try:
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):  # else it was cut
                _add(told, json.loads(line, parse_constant=_no_number))
        done = bool(told.pop("done", False))
        if not done and not told.get("problem"):
            told["problem"] = _where(problem or "the probing process ended early", told.get("call"))
        text = json.dumps(told, allow_nan=False)
        answer: AnswerT = TypeAdapter(kind).validate_json(text, strict=True)
    except (ValueError, RecursionError):  # pydantic's own error is a ValueError
        return kind(problem=problem or "the probing process told what makes no sense")
    return answer


def _add(told: dict[str, Any], line: object) -> None:
    if not isinstance(line, dict):
        raise ValueError("no object")  # noqa: TRY004 - as of JSON that is none
    for one, many in _GATHERED.items():
        if many in line:
            raise ValueError(f"all {many} at once")
        if one in line:
            told.setdefault(many, []).append(line.pop(one))
    told |= line


def _no_number(name: str) -> float:
    raise ValueError(name)


def _where(problem: str, call: object) -> str:
    return f"{problem} (in {one_line(call)})" if isinstance(call, str) and call else problem
